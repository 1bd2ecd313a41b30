//! The other side's network in a key bundle.

use std::net::{IpAddr, SocketAddr};

use comity_proto::v1;
use ipnet::Ipv4Net;
use serde::{Deserialize, Serialize};

/// A cluster's network, after its bundle was verified.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RemoteNetwork {
    /// Addresses of its pods.
    pub pod_cidrs: Vec<Ipv4Net>,
    /// "host:port" of its API server, by a name that the server's certificate carries; empty if it serves no virtual
    /// nodes.
    pub api_server: String,
    /// Cluster id of its Liqo; empty if it has none.
    pub liqo_cluster_id: String,
    /// Version of its Liqo; empty if it has none.
    pub liqo_version: String,
    /// Whether its fabric routes pods.
    pub tun: bool,
    /// Whether its pods reach others through the gateways of its Liqo.
    pub liqo_network: bool,
}

impl RemoteNetwork {
    /// Its API server, if named by an IP address: only packets to addresses can be redirected into the tunnel.
    #[must_use]
    pub fn api_address(&self) -> Option<SocketAddr> {
        self.api_server.parse().ok()
    }

    /// Checks whether packets for this network may be routed into the tunnel, apart from [`overlap`](Self::overlap):
    /// claims of this cluster's own addresses would take over its traffic.
    ///
    /// # Errors
    /// The conflict, and the remedy.
    pub fn check(&self, own: Option<&v1::ClusterNetwork>, allowed: &[Ipv4Net]) -> Result<(), String> {
        let own_cidrs = own_cidrs(own);
        if let Some(cidr) = self.pod_cidrs.first().filter(|_| self.liqo_network) {
            return Err(format!(
                "it names the pod network {cidr} and leaves its pods to Liqo's gateways; run the same version of the \
                 agent on both sides"
            ));
        }
        for cidr in &self.pod_cidrs {
            if !allowed.is_empty() && !allowed.iter().any(|allowed| allowed.contains(cidr)) {
                return Err(format!(
                    "its pods have addresses in {cidr}, which is in none of liqo.peerNetworks; add it there if that is \
                     right"
                ));
            }
        }
        let Some(api) = self.api_address() else { return Ok(()) };
        let inside = |ip: IpAddr| matches!(ip, IpAddr::V4(ip) if own_cidrs.iter().any(|own| own.contains(&ip)));
        let own_api = own.and_then(|own| own.api_server.parse::<SocketAddr>().ok());
        if api.ip().is_unspecified() || api.ip().is_multicast() || inside(api.ip()) || own_api == Some(api) {
            return Err(format!(
                "its API server has the address {api}, which belongs to this cluster; correct liqo.apiServer there"
            ));
        }
        Ok(())
    }

    /// The first of its pod networks that overlaps with one of this cluster, as a sentence. Such a network must be
    /// remapped.
    #[must_use]
    pub fn overlap(&self, own: Option<&v1::ClusterNetwork>) -> Option<String> {
        let own_cidrs = own_cidrs(own);
        self.pod_cidrs.iter().find_map(|cidr| {
            let own = own_cidrs.iter().find(|own| own.contains(cidr) || cidr.contains(*own))?;
            Some(format!("its pods have addresses in {cidr}, which overlaps {own} of this cluster"))
        })
    }
}

fn own_cidrs(own: Option<&v1::ClusterNetwork>) -> Vec<Ipv4Net> {
    own.iter().flat_map(|own| &own.pod_cidrs).filter_map(|cidr| cidr.parse().ok()).collect()
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    fn remote(cidr: &str, api: &str) -> RemoteNetwork {
        let pod_cidrs = vec![cidr.parse().unwrap()];
        RemoteNetwork { pod_cidrs, api_server: api.to_owned(), ..RemoteNetwork::default() }
    }

    #[test]
    fn nobody_takes_over_addresses_of_this_cluster() {
        let own = v1::ClusterNetwork {
            pod_cidrs: vec!["10.44.0.0/16".into()],
            api_server: "192.0.2.1:6443".into(),
            ..v1::ClusterNetwork::default()
        };
        let allowed = ["10.0.0.0/8".parse().unwrap()];
        let check = |cidr, api| remote(cidr, api).check(Some(&own), &allowed);
        assert_eq!(check("10.45.0.0/16", "192.0.2.2:6443"), Ok(()));
        assert_eq!(check("10.45.0.0/16", "api.example.org:6443"), Ok(()));
        for (cidr, api, reason) in [
            ("192.168.0.0/16", "192.0.2.2:6443", "liqo.peerNetworks"),
            ("10.45.0.0/16", "192.0.2.1:6443", "belongs to this cluster"),
            ("10.45.0.0/16", "10.44.0.9:80", "belongs to this cluster"),
        ] {
            let error = check(cidr, api).unwrap_err();
            assert!(error.contains(reason), "{cidr} {api}: {error}");
        }
        assert_eq!(remote("192.168.0.0/16", "").check(None, &[]), Ok(()));
        for (cidr, overlaps) in [("10.0.0.0/8", true), ("10.44.7.0/24", true), ("10.45.0.0/16", false)] {
            let found = remote(cidr, "").overlap(Some(&own));
            assert_eq!(found.is_some_and(|found| found.contains(cidr) && found.contains("10.44.0.0/16")), overlaps);
        }
        let both = RemoteNetwork { liqo_network: true, ..remote("10.45.0.0/16", "") };
        assert!(both.check(Some(&own), &allowed).unwrap_err().contains("Liqo's gateways"));
    }
}
