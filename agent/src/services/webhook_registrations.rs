//! Which webhooks a configuration needs. The owner's command, the agent and `comity-agent doctor` agree on it.

use comity_agent_workload::burst::gate_registration;
use comity_agent_workload::lease_pods::lease_pods_registration;
use comity_agent_workload::webhook::Registration;

use super::remapped_addresses::remapped_addresses_registration;
use crate::config::{Config, FabricModeName, LiqoNetworkName};

/// The registrations of a configuration with the section `webhook`.
#[must_use]
pub fn webhook_registrations(config: &Config) -> Vec<Registration> {
    let mut registrations = vec![lease_pods_registration()];
    if config.burst.enabled {
        registrations.push(gate_registration());
    }
    if can_remap(config) {
        registrations.push(remapped_addresses_registration());
    }
    registrations
}

/// Whether pod networks of other clusters may be remapped. The owner's file need not say `fabric.mode: tun`: the
/// manifests of a gateway set it by a variable.
fn can_remap(config: &Config) -> bool {
    let Config { liqo, fabric, .. } = config;
    let is_tun = liqo.require_tun || fabric.mode == FabricModeName::Tun;
    liqo.enabled && liqo.network == LiqoNetworkName::Comity && is_tun && !fabric.tun.remap.is_empty()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(change: impl FnOnce(&mut Config)) -> Vec<&'static str> {
        let mut config = Config::default();
        config.liqo.enabled = true;
        config.burst.enabled = true;
        change(&mut config);
        webhook_registrations(&config).into_iter().map(|registration| registration.name).collect()
    }

    #[test]
    fn only_webhooks_that_are_needed_are_registered() {
        let [pods, gate, addresses] = ["comity-lease-pods", "comity-burst", "comity-remapped-addresses"];
        assert_eq!(names(|_| {}), [pods, gate, addresses]);
        assert_eq!(names(|config| config.burst.enabled = false), [pods, addresses]);
        assert_eq!(names(|config| config.fabric.tun.remap.clear()), [pods, gate]);
        assert_eq!(names(|config| config.liqo.network = LiqoNetworkName::Liqo), [pods, gate]);
        assert_eq!(names(|config| config.liqo.require_tun = false), [pods, gate]);
        assert_eq!(names(|config| *config = Config::default()), [pods]);
    }
}
