//! Peerings: the handshake step by step, lost keys, and causes of a new epoch.

use super::*;
use crate::reconcile::steps::peering::{FailPeering, PeeringStep};

#[test]
fn the_handshake_goes_step_by_step_on_the_donor() {
    let mut sim = Sim::new(Side::Donor).peering(PeeringState::Proposed, 1, Bundles::Unknown);
    assert_eq!(sim.settle(), ["make-keys"]);
    sim = sim.peering(PeeringState::Authenticating, 1, Bundles::Known);
    assert_eq!(sim.settle(), ["send-psk", "configure-fabric"]);
    sim.desired.envelopes = vec![envelope("proof", "")];
    assert_eq!(sim.settle(), ["check-proof"]);
    sim.desired.envelopes.clear();
    sim = sim.peering(PeeringState::Establishing, 1, Bundles::Known);
    assert_eq!(sim.settle(), ["report-established"]);
}

#[test]
fn the_handshake_goes_step_by_step_on_the_origin() {
    let mut sim = Sim::new(Side::Origin).peering(PeeringState::Keys, 1, Bundles::Unknown);
    assert_eq!(sim.settle(), ["make-keys"]);
    sim = sim.peering(PeeringState::Authenticating, 1, Bundles::Known);
    assert_eq!(sim.settle(), [""; 0]);
    sim.desired.envelopes = vec![envelope("psk", "")];
    assert_eq!(sim.settle(), ["open-psk"]);
    sim.desired.envelopes.clear();
    sim = sim.peering(PeeringState::Establishing, 1, Bundles::Known);
    assert_eq!(sim.settle(), ["configure-fabric", "report-established"]);
}

#[test]
fn lost_keys_are_reported_and_not_made_again_in_the_same_epoch() {
    for state in [PeeringState::Keys, PeeringState::Authenticating, PeeringState::Established] {
        let mut sim = Sim::new(Side::Donor).peering(state, 1, Bundles::Known);
        let steps = sim.plan();
        assert!(
            matches!(&steps[..], [Step::Peering(PeeringStep::FailPeering(FailPeering { code: "keys-lost", .. }))]),
            "{steps:?}"
        );
        sim.settle();
    }
}

#[test]
fn a_fabric_that_moved_asks_for_a_new_epoch_and_keeps_its_tunnel() {
    let mut sim = connected_donor();
    sim.endpoints = vec!["127.0.0.1:9".to_owned()];
    let steps = sim.plan();
    assert!(
        matches!(&steps[..], [Step::Peering(PeeringStep::FailPeering(FailPeering { code: "endpoints-changed", .. }))]),
        "{steps:?}"
    );
    sim.settle();
    assert_eq!(sim.live.tunnels[&PEERING], 1);
}

#[test]
fn a_changed_network_requests_a_new_epoch() {
    let mut sim = connected_donor();
    sim.network.liqo_version = "v1.2.1".to_owned();
    let steps = sim.plan();
    assert!(
        matches!(&steps[..], [Step::Peering(PeeringStep::FailPeering(FailPeering { code: "network-changed", .. }))]),
        "{steps:?}"
    );
}

#[test]
fn the_old_tunnel_stays_while_a_new_epoch_is_made_and_comes_back_after_a_restart() {
    let mut sim = connected_donor().peering(PeeringState::Failed, 1, Bundles::Unknown);
    assert_eq!(sim.settle(), [""; 0]);
    sim = sim.peering(PeeringState::Proposed, 2, Bundles::Unknown);
    assert_eq!(sim.settle(), ["make-keys"]);
    assert_eq!(sim.live.tunnels[&PEERING], 1);
    sim.restart();
    assert_eq!(sim.settle(), ["configure-fabric"]);
    assert_eq!(sim.live.tunnels[&PEERING], 1);
}
