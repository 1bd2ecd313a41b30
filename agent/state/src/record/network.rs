//! The other side's network in a key bundle.

use std::net::{IpAddr, SocketAddr};

use comity_agent_model::node_service::NodeService;
use comity_proto::v1;
use comity_types::Side;
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

    /// Checks whether packets for this network, that of `cluster`, may be routed into the tunnel by this side: its claims of addresses in
    /// this cluster would take over traffic. A name of its API server is checked once it is resolved.
    ///
    /// # Errors
    /// The conflict, and the remedy.
    pub fn check(
        &self,
        cluster: &str,
        own: Option<&v1::ClusterNetwork>,
        service: &NodeService,
        side: Side,
    ) -> Result<(), String> {
        let own_cidrs = own_cidrs(own);
        if let Some(cidr) = self.pod_cidrs.first().filter(|_| self.liqo_network) {
            return Err(format!(
                "it names the pod network {cidr} and leaves its pods to Liqo's gateways; run the same version of the \
                 agent on both sides"
            ));
        }
        if let Err(remedy) = &service.remaps {
            if let Some(overlap) = self.overlap(&own_cidrs) {
                return Err(format!(
                    "{overlap}; {remedy}, so that it is remapped here, or give one of the clusters another pod network"
                ));
            }
            let is_listed = |cidr: &&Ipv4Net| service.peer_networks.iter().any(|listed| listed.contains(*cidr));
            if let Some(cidr) = self.pod_cidrs.iter().find(|cidr| !is_listed(cidr)) {
                return Err(format!(
                    "its pods have addresses in {cidr}, which is in none of liqo.peerNetworks; add it there if that is \
                     right, or {remedy}, so that it is remapped here"
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
        match side {
            Side::Origin => service.check_api_server(cluster, api),
            // A donor opens no connections to an origin's API server.
            Side::Donor => Ok(()),
        }
    }

    /// The first of its pod networks that overlaps with one of this cluster, as a sentence.
    fn overlap(&self, own_cidrs: &[Ipv4Net]) -> Option<String> {
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
    use std::collections::BTreeMap;

    use super::*;

    fn remote(cidr: &str, api: &str) -> RemoteNetwork {
        let pod_cidrs = vec![cidr.parse().unwrap()];
        RemoteNetwork { pod_cidrs, api_server: api.to_owned(), ..RemoteNetwork::default() }
    }

    fn service(remaps: Result<(), String>) -> NodeService {
        NodeService {
            peer_networks: vec!["10.0.0.0/8".parse().unwrap()],
            peer_api_servers: [("north".to_owned(), vec!["192.0.2.0/24".parse().unwrap()])].into(),
            remaps,
            ..NodeService::none("a test")
        }
    }

    fn own() -> v1::ClusterNetwork {
        v1::ClusterNetwork {
            pod_cidrs: vec!["10.44.0.0/16".into()],
            api_server: "192.0.2.1:6443".into(),
            ..v1::ClusterNetwork::default()
        }
    }

    #[test]
    fn nobody_takes_over_addresses_of_this_cluster() {
        let (own, fixed) = (own(), service(Err("set fabric.mode: tun".into())));
        let check = |cidr, api| remote(cidr, api).check("north", Some(&own), &fixed, Side::Origin);
        assert_eq!(check("10.45.0.0/16", "192.0.2.2:6443"), Ok(()));
        assert_eq!(check("10.45.0.0/16", "api.example.org:6443"), Ok(()));
        for (cidr, api, reason) in [
            ("192.168.0.0/16", "192.0.2.2:6443", "liqo.peerNetworks"),
            ("10.0.0.0/8", "192.0.2.2:6443", "overlaps 10.44.0.0/16"),
            ("10.44.7.0/24", "192.0.2.2:6443", "set fabric.mode: tun"),
            ("10.45.0.0/16", "192.0.2.1:6443", "belongs to this cluster"),
            ("10.45.0.0/16", "10.44.0.9:80", "belongs to this cluster"),
        ] {
            let error = check(cidr, api).unwrap_err();
            assert!(error.contains(reason), "{cidr} {api}: {error}");
        }
        // What is not listed, or overlaps, is remapped where that is possible.
        for cidr in ["192.168.0.0/16", "10.44.7.0/24"] {
            assert_eq!(
                remote(cidr, "192.0.2.2:6443").check("north", Some(&own), &service(Ok(())), Side::Origin),
                Ok(())
            );
        }
        let unlisted = NodeService { peer_networks: Vec::new(), ..service(Err("set fabric.mode: tun".into())) };
        assert!(
            remote("10.45.0.0/16", "").check("north", None, &unlisted, Side::Donor).is_err(),
            "no list allows nothing"
        );
        let both = RemoteNetwork { liqo_network: true, ..remote("10.45.0.0/16", "") };
        assert!(both.check("north", Some(&own), &fixed, Side::Origin).unwrap_err().contains("Liqo's gateways"));
    }

    #[test]
    fn donor_api_server_names_third_party_address() {
        let (own, service) = (own(), service(Ok(())));
        for third_party in ["10.0.0.20:5432", "169.254.169.254:80", "[2001:db8::20]:443", "198.51.100.7:6443"] {
            let error =
                remote("10.45.0.0/16", third_party).check("north", Some(&own), &service, Side::Origin).unwrap_err();
            assert!(error.contains(third_party) && error.contains("liqo.peerApiServers"), "{error}");
        }
        // A mapped address is the IPv4 address that it stands for.
        assert!(service.check_api_server("north", "[::ffff:10.0.0.20]:5432".parse().unwrap()).is_err());
        assert_eq!(service.check_api_server("north", "[::ffff:192.0.2.9]:6443".parse().unwrap()), Ok(()));
        // Nor the address of another donor.
        assert!(remote("10.45.0.0/16", "192.0.2.9:6443").check("west", Some(&own), &service, Side::Origin).is_err());
        // A donor opens no connections to its origin.
        assert_eq!(
            remote("10.45.0.0/16", "198.51.100.7:6443").check("north", Some(&own), &service, Side::Donor),
            Ok(())
        );
        let none = NodeService { peer_api_servers: BTreeMap::new(), ..service };
        assert!(remote("10.45.0.0/16", "192.0.2.2:6443").check("north", Some(&own), &none, Side::Origin).is_err());
    }
}
