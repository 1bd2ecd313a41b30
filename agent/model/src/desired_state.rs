//! The desired state, converted once where it arrives.

use comity_proto::v1;
use comity_types::{InvalidId, LeaseId, PeeringId};
use prost::Message as _;

use crate::envelope::Envelope;
use crate::lease::Lease;
use crate::object_id::ObjectId;
use crate::peering::PeeringDirective;

/// All leases, peerings and envelopes of this cluster.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct DesiredState {
    /// Revision of the broker's state.
    pub revision: u64,
    /// Commit whose policy is in force, by the broker's word; empty if it comes from no repository.
    pub policy_commit: String,
    /// Leases with this cluster as origin or donor, until they ended.
    pub leases: Vec<Lease>,
    /// Peerings of this cluster, until they are closed.
    pub peerings: Vec<PeeringDirective>,
    /// Envelopes for this cluster.
    pub envelopes: Vec<Envelope>,
    /// Leases and peerings that were skipped because one of their other ids is malformed. The broker wants them, so
    /// nothing of them is taken down.
    pub skipped: Vec<ObjectId>,
    /// The message as received, without envelopes: the broker sends them again after a restart.
    pub encoded: Vec<u8>,
}

impl DesiredState {
    /// Decodes [`encoded`](Self::encoded); empty if that is invalid.
    #[must_use]
    pub fn decode(encoded: &[u8]) -> Self {
        v1::DesiredState::decode(encoded).unwrap_or_default().into()
    }

    fn skip(&mut self, object: Option<ObjectId>, error: &InvalidId) {
        tracing::warn!(%error, "the broker sent a malformed id; its object is skipped");
        self.skipped.extend(object);
    }
}

impl From<v1::DesiredState> for DesiredState {
    fn from(mut state: v1::DesiredState) -> Self {
        let envelopes = std::mem::take(&mut state.envelopes);
        let encoded = state.encode_to_vec();
        let mut read =
            Self { revision: state.revision, policy_commit: state.policy_commit, encoded, ..Self::default() };
        for lease in state.leases {
            let id = lease.id.parse::<LeaseId>().ok();
            match Lease::try_from(lease) {
                Ok(lease) => read.leases.push(lease),
                Err(error) => read.skip(id.map(ObjectId::Lease), &error),
            }
        }
        for mut directive in state.peerings {
            let Some(peering) = directive.peering.take() else { continue };
            match PeeringDirective::read(&peering, directive) {
                Ok(directive) => read.peerings.push(directive),
                Err(error) => read.skip(peering.id.parse::<PeeringId>().ok().map(ObjectId::Peering), &error),
            }
        }
        for envelope in envelopes {
            match Envelope::try_from(envelope) {
                Ok(envelope) => read.envelopes.push(envelope),
                Err(error) => read.skip(None, &error),
            }
        }
        read
    }
}

#[cfg(test)]
mod tests {
    use comity_types::{Delivery, PeeringState};

    use super::*;

    fn peering(id: &str) -> v1::PeeringDirective {
        let peering = v1::Peering {
            id: id.into(),
            origin: "west".into(),
            donor: "north".into(),
            state: 5,
            epoch: 2,
            ..v1::Peering::default()
        };
        v1::PeeringDirective { peering: Some(peering), ..v1::PeeringDirective::default() }
    }

    fn lease(id: &str, peering: &str) -> v1::Lease {
        v1::Lease {
            id: id.into(),
            request: "req-1".into(),
            origin: "west".into(),
            peering: peering.into(),
            state: 99,
            delivery: 2,
            ..v1::Lease::default()
        }
    }

    #[test]
    fn a_state_survives_its_encoding_without_envelopes_and_with_unknown_states() {
        let envelope = v1::Envelope {
            peering: "peer-1".into(),
            from: "west".into(),
            to: "north".into(),
            ..v1::Envelope::default()
        };
        let received = v1::DesiredState {
            revision: 7,
            leases: vec![lease("lease-1", "peer-1")],
            peerings: vec![peering("peer-1"), v1::PeeringDirective::default()],
            envelopes: vec![envelope],
            ..v1::DesiredState::default()
        };
        let state = DesiredState::from(received);
        assert_eq!((state.leases[0].state, state.leases[0].delivery), (None, Delivery::VirtualNode));
        assert_eq!((state.peerings.len(), state.peerings[0].peering.state), (1, Some(PeeringState::Established)));
        assert_eq!(state.envelopes.len(), 1);
        let kept = DesiredState::decode(&state.encoded);
        assert_eq!(kept, DesiredState { envelopes: Vec::new(), ..state });
        assert_eq!(DesiredState::decode(b"no message").revision, 0);
    }

    #[test]
    fn malformed_objects_are_skipped_and_stay_wanted() {
        let placement = Some(v1::Placement { donor: "no label".into(), ..v1::Placement::default() });
        let misplaced = v1::Lease { placement, ..lease("lease-3", "peer-1") };
        let received = v1::DesiredState {
            leases: vec![lease("lease-1", "peer-x"), lease("7", "peer-1"), lease("lease-2", "peer-1"), misplaced],
            peerings: vec![peering("peer-01"), peering("peer-1")],
            envelopes: vec![v1::Envelope::default()],
            ..v1::DesiredState::default()
        };
        let state = DesiredState::from(received);
        assert_eq!(state.leases.iter().map(|lease| lease.id).collect::<Vec<_>>(), [LeaseId(2)]);
        assert_eq!((state.peerings.len(), state.envelopes.len()), (1, 0));
        assert_eq!(state.skipped, [ObjectId::Lease(LeaseId(1)), ObjectId::Lease(LeaseId(3))]);
    }
}
