//! The network of the two Liqos: its state is sent, and leases wait for it.

use comity_agent_liqo::network::{NetworkStatus, ObservedNetwork};

use super::*;

/// A side whose pods, and the other side's, go through Liqo's gateways.
fn with_liqo_network(mut sim: Sim) -> Sim {
    sim.network = v1::ClusterNetwork { liqo_network: true, pod_cidrs: Vec::new(), ..sim.network };
    let directive = &mut sim.desired.peerings[0];
    for bundle in [&mut directive.origin_keys, &mut directive.donor_keys] {
        bundle.as_mut().unwrap().network = Some(sim.network.clone());
    }
    let (shown, side) = (directive.origin_keys.clone().unwrap(), sim.side);
    sim.change_peering(1, |record| {
        let own = v1::KeyBundle { cluster: side_name(side).into(), side: v1::Side::from(side).into(), ..shown };
        record.bundle = prost::Message::encode_to_vec(&own);
        let network = &mut record.remote.as_mut().unwrap().network;
        (network.liqo_network, network.pod_cidrs) = (true, Vec::new());
    });
    sim
}

fn side_name(side: Side) -> &'static str {
    if side == Side::Donor { "donor" } else { "origin" }
}

fn see(sim: &mut Sim, local: Option<NetworkState>, status: NetworkStatus) {
    sim.live.networks.insert(PEERING, ObservedNetwork { local, status });
}

#[test]
fn the_observed_network_is_sent_and_leases_wait_until_it_is_ready() {
    let waits = || NetworkStatus::Pending("the gateway has no endpoint".into());
    let mut sim = with_liqo_network(connected_donor()).with_node_lease();
    assert_eq!(sim.settle(), ["admit-lease", "liqo-challenge"]);
    sim.acknowledged();
    see(&mut sim, Some(network_state(1)), waits());
    assert_eq!(sim.settle(), ["liqo-network"]);
    sim.acknowledged();
    sim.desired.envelopes = vec![envelope("liqo-tenant", "")];
    let done = sim.settle();
    assert!(done.contains(&"liqo-admit") && !done.contains(&"prepare-lease"), "{done:?}");
    // The other side sends its network: it is stored, and the message acknowledged.
    sim.desired.envelopes = vec![envelope("liqo-client", "")];
    sim.acknowledged();
    assert_eq!(sim.settle(), ["liqo-network"]);
    assert_eq!(sim.liqo().network.unwrap().remote, Some(network_state(2)));
    sim.desired.envelopes.clear();
    sim.acknowledged();
    // Facts that become known later are reported again, once.
    let mut known = network_state(1);
    known.public_key = Some("a2V5".into());
    see(&mut sim, Some(known), waits());
    assert_eq!(sim.settle(), ["liqo-network"]);
    sim.acknowledged();
    assert_eq!(sim.settle(), [""; 0]);
    let record = sim.liqo().network.unwrap();
    see(&mut sim, record.sent, NetworkStatus::Ready { connected: false });
    assert!(sim.settle().contains(&"prepare-lease"));
}

#[test]
fn a_message_that_may_be_lost_is_sent_again_while_a_lease_waits() {
    let mut sim = with_liqo_network(connected_donor()).with_node_lease();
    sim.settle();
    see(&mut sim, Some(network_state(1)), NetworkStatus::Pending("more".into()));
    sim.settle();
    sim.acknowledged();
    sim.now_ms += HOUR;
    assert!(sim.settle().contains(&"liqo-network"));
    sim.acknowledged();
    sim.desired.leases[0].origin_ready = true;
    sim.now_ms += HOUR;
    assert!(!sim.settle().contains(&"liqo-network"));
}

#[test]
fn both_sides_choose_the_same_network_or_say_what_to_set() {
    let code = |sim: &Sim| match &sim.plan()[..] {
        [Step::Lease(LeaseStep::RefuseLease(RefuseLease { code, message, .. }))] => format!("{code}: {message}"),
        other => panic!("{other:?}"),
    };
    let mut ours = with_liqo_network(connected_origin()).with_node_lease();
    ours.change_peering(1, |record| record.remote.as_mut().unwrap().network.liqo_network = false);
    assert!(code(&ours).contains("set liqo.network: liqo there, or comity here"), "{}", code(&ours));
    let mut theirs = connected_origin().with_node_lease();
    theirs.change_peering(1, |record| {
        let network = &mut record.remote.as_mut().unwrap().network;
        (network.liqo_network, network.pod_cidrs) = (true, Vec::new());
    });
    assert!(code(&theirs).contains("set liqo.network: liqo here, or comity there"), "{}", code(&theirs));
    // A permanent error of Liqo's network is reported for the lease.
    let mut refused = with_liqo_network(connected_origin()).with_node_lease();
    refused.desired.envelopes = vec![envelope("liqo-identity", "")];
    refused.settle();
    refused.desired.envelopes.clear();
    see(&mut refused, None, NetworkStatus::Refused("liqo-network-by-hand: it is there".into()));
    assert!(code(&refused).starts_with("liqo-refused: liqo-network-by-hand"), "{}", code(&refused));
}

#[test]
fn pods_with_another_class_get_another_request() {
    let mut sim = with_liqo_network(connected_donor()).with_node_lease();
    sim.settle();
    sim.change_liqo(|record| record.network = None);
    assert_eq!(sim.names(), ["liqo-remove"]);
    let mut sim = with_liqo_network(connected_donor()).with_node_lease();
    sim.settle();
    sim.change_liqo(|record| record.network.as_mut().unwrap().leaving = true);
    assert_eq!(sim.names(), ["liqo-remove"], "a removal that broke off goes on");
}
