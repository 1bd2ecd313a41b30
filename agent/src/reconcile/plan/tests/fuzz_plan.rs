//! Fuzzes plans: whatever a broker says to an agent with a running lease, credentials stay with that lease's peering.

use std::cell::RefCell;

use comity_fuzz::fuzz;
use prost::Message as _;

use super::hostile_broker::running;
use super::*;
use crate::reconcile::steps::lease::{LeaseStep, SealCredential};

/// A state with the running lease of each side, as an honest broker describes it.
fn honest() -> v1::DesiredState {
    let share = v1::DeviceShare { device: 0, milli: 1_000, units: 1, ..v1::DeviceShare::default() };
    let node = v1::NodePlacement { node: "n".into(), devices: vec![share], ..v1::NodePlacement::default() };
    let placement = v1::Placement {
        donor: "donor".into(),
        nodes: vec![node],
        resource_name: "nvidia.com/gpu".into(),
        resource_count: 1,
        ..v1::Placement::default()
    };
    let lease = v1::Lease {
        id: "lease-1".into(),
        request: "req-1".into(),
        origin: "origin".into(),
        placement: Some(placement),
        peering: "peer-1".into(),
        state: v1::LeaseState::Active.into(),
        fencing_token: 7,
        hold_until_ms: NOW + 120_000,
        expires_at_ms: NOW + 3_600_000,
        term_ms: 3_600_000,
        ..v1::Lease::default()
    };
    let peering = v1::Peering {
        id: "peer-1".into(),
        origin: "origin".into(),
        donor: "donor".into(),
        state: v1::PeeringState::Established.into(),
        epoch: 1,
        ..v1::Peering::default()
    };
    let directive = v1::PeeringDirective {
        peering: Some(peering),
        origin_keys: Some(bundle("origin", Side::Origin)),
        donor_keys: Some(bundle("donor", Side::Donor)),
        peer_identity_key: remote().identity_key.to_string(),
        reported_established: true,
        ..v1::PeeringDirective::default()
    };
    let envelope = v1::Envelope {
        peering: "peer-1".into(),
        epoch: 1,
        lease: "lease-1".into(),
        step: "credential".into(),
        sequence: 2,
        from: "donor".into(),
        to: "origin".into(),
        ..v1::Envelope::default()
    };
    v1::DesiredState {
        revision: 9,
        leases: vec![lease],
        peerings: vec![directive],
        envelopes: vec![envelope],
        ..v1::DesiredState::default()
    }
}

#[test]
fn plans_of_dictated_states() {
    let sims = RefCell::new([Side::Donor, Side::Origin].map(|side| running(side).with_peering_of_the_broker()));
    fuzz!("desired_plan", vec![honest().encode_to_vec()], move |bytes: &[u8]| {
        let Ok(state) = v1::DesiredState::decode(bytes) else { return false };
        let desired = DesiredState::from(state);
        for sim in sims.borrow_mut().iter_mut() {
            sim.desired.clone_from(&desired);
            for now_ms in [0, NOW, u64::MAX] {
                sim.now_ms = now_ms;
                for step in sim.plan() {
                    if let Step::Lease(LeaseStep::SealCredential(SealCredential { epoch, .. })) = &step {
                        assert_eq!(epoch.peering(), PEERING, "a credential goes to another peering");
                    }
                }
            }
        }
        desired.skipped.is_empty()
    });
}
