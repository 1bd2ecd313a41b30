//! Placement near data, near the origin, and spread over nodes.

use std::collections::{BTreeMap, BTreeSet};

use comity_core::data::DataSite;
use comity_core::demand::{Members, RequestSpec, Share, Topology};
use comity_core::inventory::{Offer, Sharing};
use comity_types::{ClusterId, DataNeed, LeaseId};

use super::federation::{Federation, cluster, device, offer, spec};

/// `north` and `south` with `nodes` nodes of eight devices each.
fn alike(nodes: usize) -> Federation {
    let mut federation = Federation::ready();
    for name in ["north", "south"] {
        federation.offer(name, equal(2, name, nodes));
    }
    federation
}

fn equal(generation: u64, name: &str, nodes: usize) -> Offer {
    let names: Vec<String> = (1..=nodes).map(|number| format!("{}{number}", &name[..1])).collect();
    let nodes: Vec<_> = names.iter().map(|name| (name.as_str(), 8, device(81_559, Sharing::Exclusive))).collect();
    offer(generation, &nodes)
}

impl Federation {
    fn lands(&mut self, spec: RequestSpec) -> LeaseId {
        self.submit(spec);
        self.place()[0]
    }

    fn lands_at(&mut self, spec: RequestSpec) -> ClusterId {
        let lease = self.lands(spec);
        self.state.leases[&lease].placement.donor.clone()
    }

    /// Shares of a request on each of its nodes, the most first.
    fn lies(&mut self, spec: RequestSpec) -> Vec<u64> {
        let lease = self.lands(spec);
        let nodes = self.state.leases[&lease].placement.nodes.values();
        let mut shares: Vec<u64> =
            nodes.map(|part| part.devices.values().map(|share| u64::from(share.units)).sum()).collect();
        shares.sort_unstable_by(|a, b| b.cmp(a));
        shares
    }
}

fn holding(datasets: &[&str], egress_mbits: u64) -> DataSite {
    let datasets = datasets.iter().map(|name| (*name).to_owned()).collect();
    DataSite { datasets, egress_mbits, ..DataSite::default() }
}

fn reading(dataset: &str, gib: u64) -> RequestSpec {
    let data = vec![DataNeed { dataset: dataset.to_owned(), mib: gib << 10 }];
    RequestSpec { data, ..spec(1, Share::Whole, "big") }
}

#[test]
fn requests_go_to_their_data_if_moving_it_takes_long() {
    // North wins a tie.
    let at_south = |data: DataSite, asked: RequestSpec| {
        let mut federation = alike(1);
        federation.offer("south", Offer { data, ..equal(3, "south", 1) });
        federation.lands_at(asked) == cluster("south")
    };
    assert!(!at_south(holding(&["laion"], 0), spec(1, Share::Whole, "big")));
    // Over a line of the default rate 200 GiB take half an hour, and 5 GiB less than a minute.
    assert!(at_south(holding(&["laion"], 0), reading("laion", 200)));
    assert!(!at_south(holding(&["laion"], 0), reading("laion", 5)));
    // 200 GiB take less than a minute over a line of 100 Gbit/s, whatever rate that cluster has to others.
    let line = DataSite { egress_mbits_to: BTreeMap::from([(cluster("north"), 100_000)]), ..holding(&["laion"], 10) };
    assert!(!at_south(line, reading("laion", 200)));
    // The measured rate counts if none is stated, otherwise the higher of both: the stated rate may still be true.
    for (gib, said, seen, moves) in
        [(200, 0, 100_000, true), (200, 10, 100_000, true), (5, 0, 100, false), (5, 10_000, 100, true)]
    {
        let mut federation = alike(1);
        let measured_mbits_from = BTreeMap::from([(cluster("south"), seen)]);
        let data = DataSite { measured_mbits_from, ..DataSite::default() };
        federation.offer("north", Offer { data, ..equal(3, "north", 1) });
        federation.offer("south", Offer { data: holding(&["laion"], said), ..equal(3, "south", 1) });
        let lands = federation.lands_at(reading("laion", gib));
        assert_eq!(lands == cluster("north"), moves, "{said} said, {seen} seen");
    }
    // A dataset that no donor holds comes from the origin, equally to both.
    assert!(!at_south(holding(&["laion"], 0), reading("own", 200)));

    // Data outweighs packing, which prefers nodes in use.
    let mut federation = alike(1);
    federation.offer("south", Offer { data: holding(&["laion"], 0), ..equal(3, "south", 1) });
    let begun = [spec(1, Share::Whole, "big"), spec(1, Share::Whole, "big")].map(|spec| federation.lands_at(spec));
    assert_eq!(begun, [cluster("north"), cluster("north")]);
    assert_eq!(federation.lands_at(reading("laion", 200)), cluster("south"));
}

#[test]
fn of_two_donors_with_warm_peerings_the_nearer_one_lends() {
    let mut federation = alike(1);
    for (donor, rtt_us) in [("north", 40_000), ("south", 3_000)] {
        let mut only = spec(1, Share::Whole, "big");
        only.allow_donors = vec![cluster(donor)];
        let lease = federation.lands(only);
        let peering = federation.state.leases[&lease].peering;
        federation.shake_hands_with(donor, peering, 1, rtt_us);
    }
    assert_eq!(federation.lands_at(spec(1, Share::Whole, "big")), cluster("south"));
    // South is busier now, so only its shorter round trip lets it win. A ratio below two does not suffice.
    let mut federation = alike(1);
    for (donor, rtt_us) in [("north", 3_900), ("south", 2_000)] {
        let mut only = spec(1, Share::Whole, "big");
        only.allow_donors = vec![cluster(donor)];
        let lease = federation.lands(only);
        let peering = federation.state.leases[&lease].peering;
        federation.shake_hands_with(donor, peering, 1, rtt_us);
    }
    assert_eq!(federation.lands_at(spec(1, Share::Whole, "big")), cluster("north"));
}

#[test]
fn spread_requests_use_as_many_nodes_as_possible() {
    let spread = |count| RequestSpec {
        topology: Topology { spread_nodes: true, ..Topology::default() },
        allow_donors: vec![cluster("north")],
        ..spec(count, Share::Whole, "big")
    };
    let mut federation = alike(4);
    assert_eq!(federation.lies(spread(3)), [1, 1, 1]);
    assert_eq!(federation.lies(spread(6)), [2, 2, 1, 1]);
    assert_eq!(federation.lies(spread(1)), [1]);
    // With uneven free capacity too: 22 of 32 are free.
    assert_eq!(federation.lies(spread(22)).iter().sum::<u64>(), 22);
    assert_eq!(federation.state.queued_len(), 0);

    // Each member stays on one node, and members spread over nodes.
    let mut federation = alike(4);
    let members = Some(Members { min: 3, desired: 3 });
    assert_eq!(federation.lies(RequestSpec { members, ..spread(2) }), [2, 2, 2]);
    let members = Some(Members { min: 6, desired: 6 });
    assert_eq!(federation.lies(RequestSpec { members, ..spread(2) }), [4, 4, 2, 2]);
    // The donor where the request spreads over more nodes wins.
    let mut federation = alike(2);
    federation.offer("south", equal(3, "south", 4));
    assert_eq!(federation.lands_at(RequestSpec { allow_donors: Vec::new(), ..spread(4) }), cluster("south"));
}

#[test]
fn spread_nodes_contradicts_same_node() {
    let mut together = spec(4, Share::Whole, "big");
    together.topology = Topology { spread_nodes: true, same_node: true, ..Topology::default() };
    let refusal = together.check().unwrap_err();
    assert_eq!(refusal.field, "spec.topology.spread_nodes");
    assert!(refusal.reason.contains("contradicts spec.topology.same_node"), "{refusal:?}");
}

#[test]
fn an_offer_with_changed_data_is_advertised_as_a_whole() {
    let held = equal(1, "north", 4);
    let other = Offer { generation: 2, data: holding(&["laion"], 0), ..held.clone() };
    assert_eq!(comity_core::command::ReviseOffer::between(&cluster("north"), &held, &other), None);
    let names: BTreeSet<String> = (0..2_000).map(|number| format!("d{number}")).collect();
    let refusal = Offer { data: DataSite { datasets: names, ..DataSite::default() }, ..held }.check(&cluster("north"));
    assert_eq!(refusal.unwrap_err().field, "offer.data.datasets");
}
