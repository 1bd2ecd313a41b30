//! Chooses the addresses at which this cluster sees another cluster's pod networks. Pure.
//!
//! A network keeps its addresses if this cluster's configuration lists them, and they conflict neither with this
//! cluster's nor with another one's. Otherwise it gets a range of its own size from `fabric.tun.remap`.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use ipnet::{IpNet, Ipv4Net};

use super::allowed::{OwnNetwork, overlap};
use crate::{FabricError, PodNetwork};

/// Another cluster's pod networks, and what is known about their addresses here.
#[derive(Clone, Debug)]
pub struct PlacementRequest<'a> {
    /// The peering.
    pub peering: &'a str,
    /// Its other side.
    pub cluster: &'a str,
    /// The other side's pod networks.
    pub networks: &'a [Ipv4Net],
    /// Where the other side may be reached outside the tunnel.
    pub endpoints: &'a [SocketAddr],
    /// Networks in which pods of other clusters keep their addresses.
    pub listed: &'a [Ipv4Net],
    /// Pod networks of this cluster.
    pub own: &'a [Ipv4Net],
    /// Ranges that this cluster chose before; they stay where possible.
    pub chosen: &'a [PodNetwork],
    /// Ranges that stand for other clusters' networks.
    pub taken: &'a [Ipv4Net],
}

/// Addresses that a range must not have, with the place where they were found.
pub(super) struct Busy {
    networks: Vec<OwnNetwork>,
}

impl Busy {
    /// The networks of this node, those of the request, and `others`, the networks of other clusters.
    pub(super) fn of(
        request: &PlacementRequest<'_>,
        mut own: Vec<OwnNetwork>,
        others: impl Iterator<Item = Ipv4Net>,
    ) -> Self {
        let mut add = |net: IpNet, what: &str| {
            own.push(OwnNetwork { net, what: what.to_owned(), is_address: false });
        };
        request.own.iter().for_each(|net| add((*net).into(), "a pod network of this cluster"));
        request.taken.iter().copied().chain(others).for_each(|net| add(net.into(), "another cluster's pods"));
        for endpoint in request.endpoints {
            add(IpNet::from(endpoint.ip().to_canonical()), "the tunnel's own way to the other side");
        }
        Self { networks: own }
    }

    fn conflict(&self, net: Ipv4Net) -> Option<&OwnNetwork> {
        let net = IpNet::V4(net);
        self.networks.iter().find(|busy| overlap(&net, &busy.net))
    }

    /// The network for which a range cannot stand for one of `theirs`: a range outside of all of them, so that no
    /// address is translated twice.
    fn conflict_of_range(&self, range: Ipv4Net, theirs: &[Ipv4Net]) -> Option<IpNet> {
        let known = self.conflict(range).map(|busy| busy.net);
        let mut theirs = theirs.iter().copied().map(IpNet::V4);
        known.or_else(|| theirs.find(|net| overlap(&IpNet::V4(range), net)))
    }
}

/// Chooses this cluster's addresses of each network, in their order.
pub(super) fn place(
    request: &PlacementRequest<'_>,
    pool: &[Ipv4Net],
    mut busy: Busy,
) -> Result<Vec<PodNetwork>, FabricError> {
    let networks: Vec<Ipv4Net> = request.networks.iter().map(Ipv4Net::trunc).collect();
    let mut placed = Vec::with_capacity(networks.len());
    for there in &networks {
        let before = request.chosen.iter().find(|chosen| chosen.there == *there);
        let obstacle = match busy.conflict(*there) {
            Some(conflict) => Some(format!("overlaps with {} ({})", conflict.net, conflict.what)),
            None if request.listed.iter().any(|listed| listed.contains(there)) => None,
            None => Some("is in none of liqo.peerNetworks".to_owned()),
        };
        let network = match (before, obstacle) {
            (Some(before), _) if busy.conflict_of_range(before.here, &networks).is_none() => *before,
            (_, None) => PodNetwork::unchanged(*there),
            (_, Some(why)) => {
                let here =
                    free_range(there.prefix_len(), pool, &busy, &networks).ok_or_else(|| FabricError::NoFreeRange {
                        peering: request.peering.to_owned(),
                        theirs: *there,
                        why,
                        pool: shown(pool),
                    })?;
                PodNetwork { there: *there, here }
            }
        };
        busy.networks.push(OwnNetwork {
            net: network.here.into(),
            what: "another pod network of the other side".to_owned(),
            is_address: false,
        });
        placed.push(network);
    }
    Ok(placed)
}

/// The lowest free range of this size. Skips each busy network as a whole, so a small range in a large pool is found
/// soon.
fn free_range(prefix_len: u8, pool: &[Ipv4Net], busy: &Busy, theirs: &[Ipv4Net]) -> Option<Ipv4Net> {
    let size = 1_u64 << (32 - u32::from(prefix_len));
    for pool in pool.iter().filter(|pool| pool.prefix_len() <= prefix_len) {
        let mut start = u64::from(pool.network().to_bits());
        while start <= u64::from(pool.broadcast().to_bits()) {
            let address = Ipv4Addr::from_bits(u32::try_from(start).ok()?);
            let range = Ipv4Net::new(address, prefix_len).ok()?;
            match busy.conflict_of_range(range, theirs).map(|net| net.broadcast()) {
                None => return Some(range),
                Some(IpAddr::V4(last)) => {
                    start = (u64::from(last.to_bits()) + 1).next_multiple_of(size).max(start + size)
                }
                Some(IpAddr::V6(_)) => start += size,
            }
        }
    }
    None
}

fn shown(pool: &[Ipv4Net]) -> String {
    pool.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    fn net(text: &str) -> Ipv4Net {
        text.parse().unwrap()
    }

    fn nets(texts: &[&str]) -> Vec<Ipv4Net> {
        texts.iter().map(|text| net(text)).collect()
    }

    struct Case<'a> {
        networks: &'a [&'a str],
        listed: &'a [&'a str],
        own: &'a [&'a str],
        chosen: &'a [PodNetwork],
        taken: &'a [&'a str],
        pool: &'a [&'a str],
    }

    const CASE: Case<'_> = Case {
        networks: &["10.244.0.0/16"],
        listed: &["0.0.0.0/0"],
        own: &["10.244.0.0/16"],
        chosen: &[],
        taken: &[],
        pool: &["100.64.0.0/10"],
    };

    fn placed(case: &Case<'_>) -> Result<Vec<String>, String> {
        let (networks, own, taken) = (nets(case.networks), nets(case.own), nets(case.taken));
        let listed = nets(case.listed);
        let endpoints = ["192.0.2.7:51871".parse().unwrap()];
        let request = PlacementRequest {
            peering: "peer-1",
            cluster: "north",
            networks: &networks,
            endpoints: &endpoints,
            listed: &listed,
            own: &own,
            chosen: case.chosen,
            taken: &taken,
        };
        let route = OwnNetwork { net: "100.65.0.0/24".parse().unwrap(), what: "a route".into(), is_address: false };
        let busy = Busy::of(&request, vec![route], [net("10.9.0.0/16")].into_iter());
        let placed = place(&request, &nets(case.pool), busy).map_err(|error| error.to_string())?;
        Ok(placed.iter().map(|network| network.here.to_string()).collect())
    }

    #[test]
    fn only_networks_that_conflict_are_remapped() {
        assert_eq!(
            placed(&Case { networks: &["10.1.0.0/16", "10.2.0.0/24"], ..CASE }).unwrap(),
            ["10.1.0.0/16", "10.2.0.0/24"]
        );
        assert_eq!(placed(&CASE).unwrap(), ["100.64.0.0/16"]);
        // Parts, wider networks, other clusters' networks and the way to the other side conflict too.
        for networks in [&["10.244.7.0/24"], &["10.0.0.0/11"], &["10.9.0.0/24"], &["192.0.2.0/24"]] {
            let own: &[&str] = &["10.244.0.0/16", "10.1.0.0/16"];
            assert!(placed(&Case { networks, own, ..CASE }).unwrap()[0].starts_with("100."), "{networks:?}");
        }
    }

    #[test]
    fn a_network_that_is_not_listed_is_remapped() {
        // The other side could claim the addresses of anybody whom this cluster's pods talk to.
        let case = Case { networks: &["10.1.0.0/16", "192.168.0.0/24"], listed: &["10.1.0.0/16"], ..CASE };
        assert_eq!(placed(&case).unwrap(), ["10.1.0.0/16", "100.64.0.0/24"]);
        let part_of_it = Case { networks: &["10.0.0.0/15"], listed: &["10.1.0.0/16"], ..CASE };
        assert!(placed(&part_of_it).unwrap()[0].starts_with("100."));
        let error = placed(&Case { networks: &["172.0.0.0/9"], listed: &[], ..CASE }).unwrap_err();
        assert!(error.contains("is in none of liqo.peerNetworks") && error.contains("fabric.tun.remap"), "{error}");
    }

    #[test]
    fn a_range_is_free_of_everything_that_this_cluster_knows() {
        // A range of another cluster, then a route of the node, then the other side's own network.
        let networks = &["10.244.0.0/16", "100.66.0.0/16"];
        let case = Case { networks, taken: &["100.64.0.0/16"], ..CASE };
        assert_eq!(placed(&case).unwrap(), ["100.67.0.0/16", "100.66.0.0/16"]);
        let two = Case { networks: &["10.244.0.0/17", "10.244.128.0/17"], ..CASE };
        assert_eq!(placed(&two).unwrap(), ["100.64.0.0/17", "100.64.128.0/17"]);
    }

    #[test]
    fn a_chosen_range_stays_unless_it_conflicts() {
        let before = |here: &str| [PodNetwork { there: net("10.244.0.0/16"), here: net(here) }];
        // Also if the conflict is gone.
        for own in [&["10.244.0.0/16"], &["10.1.0.0/16"]] {
            let chosen = &before("100.77.0.0/16");
            assert_eq!(placed(&Case { own, chosen, ..CASE }).unwrap(), ["100.77.0.0/16"]);
        }
        assert_eq!(placed(&Case { chosen: &before("100.65.0.0/16"), ..CASE }).unwrap(), ["100.64.0.0/16"]);
        let networks = &["10.244.0.0/16", "100.77.0.0/16"];
        let own_too = Case { networks, chosen: &before("100.77.0.0/16"), ..CASE };
        assert_eq!(placed(&own_too).unwrap(), ["100.64.0.0/16", "100.77.0.0/16"]);
    }

    #[test]
    fn without_a_free_range_the_error_names_field_and_remedy() {
        for pool in [&[][..], &["100.65.0.0/24"], &["100.64.0.0/17"], &["10.244.0.0/16"]] {
            let error = placed(&Case { pool, ..CASE }).unwrap_err();
            for part in ["peer-1", "fabric.tun.remap", "10.244.0.0/16 (a pod network of this cluster)"] {
                assert!(error.contains(part), "{error}");
            }
        }
    }
}
