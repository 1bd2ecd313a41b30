//! Checks the section `mig` of the agent's configuration.

use comity_agent_model::settings::SettingChecks;

use crate::mig::mig_settings::MigSettings;

/// Longest of its times: a day.
const MAX_MIG_SECONDS: u64 = 86_400;

pub(super) fn check(settings: &MigSettings, has_kubernetes: bool, checks: &mut SettingChecks) {
    if !settings.repartition {
        return;
    }
    if !has_kubernetes {
        let reason = "without kubernetes no MIG manager cuts; write repartition at the devices of the inventory file";
        checks.refuse("mig.repartition", settings.repartition, reason);
    }
    if settings.namespace_and_name().is_none_or(|(_, name)| name.contains('/')) {
        let reason = "write NAMESPACE/NAME of the MIG manager's ConfigMap, as in gpu-operator/mig-parted-config";
        checks.refuse("mig.configMap", &settings.config_map, reason);
    }
    if settings.key.is_empty() {
        checks.refuse("mig.key", "", "name the key of the ConfigMap; the MIG manager reads config.yaml");
    }
    let times = [
        ("mig.emptySeconds", settings.empty_seconds, 0),
        ("mig.changeSeconds", settings.change_seconds, 10),
        ("mig.mountSeconds", settings.mount_seconds, 0),
        ("mig.backoffSeconds", settings.backoff_seconds, 1),
    ];
    for (field, seconds, least) in times {
        if !(least..=MAX_MIG_SECONDS).contains(&seconds) {
            checks.refuse(field, seconds, format!("want {least} to {MAX_MIG_SECONDS}"));
        }
    }
}
