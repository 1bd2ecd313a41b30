//! The section `access` of the agent's configuration.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use comity_agent_model::settings::SettingChecks;
use ipnet::IpNet;
use rustls_pki_types::ServerName;
use serde::{Deserialize, Serialize};

/// Most networks of clients.
const MAX_CLIENT_NETWORKS: usize = 64;

/// Where tenants of this origin reach borrowed namespaces: one TCP port for each lease, forwarded to the donor's API
/// server, which requires the lease's token.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct AccessSettings {
    /// Listen address: the loopback, or in a pod the pod's address.
    pub listen: IpAddr,
    /// Its name or address in kubeconfigs; absent: the address.
    pub host: Option<String>,
    /// Networks whose hosts may use every lease's port, besides this host and the pods of the lease's namespace.
    pub clients: Vec<IpNet>,
}

impl Default for AccessSettings {
    fn default() -> Self {
        Self { listen: Ipv4Addr::LOCALHOST.into(), host: None, clients: Vec::new() }
    }
}

impl AccessSettings {
    /// "host:port" of a local port in kubeconfigs.
    #[must_use]
    pub fn server(&self, local: SocketAddr) -> String {
        match &self.host {
            Some(host) if host.contains(':') => format!("[{host}]:{}", local.port()),
            Some(host) => format!("{host}:{}", local.port()),
            None => local.to_string(),
        }
    }

    pub(super) fn check(&self, checks: &mut SettingChecks) {
        if self.clients.len() > MAX_CLIENT_NETWORKS {
            let reason = format!("name at most {MAX_CLIENT_NETWORKS} networks");
            checks.refuse("access.clients", self.clients.len(), reason);
        }
        match &self.host {
            Some(host) if ServerName::try_from(host.as_str()).is_err() => {
                let reason = "write a name or an address without a port, as in comity-agent.comity-system.svc";
                checks.refuse("access.host", host, reason);
            }
            None if self.listen.is_unspecified() => {
                let reason = "no client can use it as an address; set access.host to the name for kubeconfigs";
                checks.refuse("access.listen", self.listen, reason);
            }
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kubeconfigs_have_the_host_and_the_port_that_is_open() {
        let server = |host: Option<&str>| {
            let access = AccessSettings { host: host.map(str::to_owned), ..AccessSettings::default() };
            access.server(SocketAddr::from((access.listen, 41234)))
        };
        assert_eq!(server(None), "127.0.0.1:41234");
        assert_eq!(server(Some("comity-agent.comity-system.svc")), "comity-agent.comity-system.svc:41234");
        assert_eq!(server(Some("2001:db8::1")), "[2001:db8::1]:41234");
    }
}
