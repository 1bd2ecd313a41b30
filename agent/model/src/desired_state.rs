//! The desired state, converted once where it arrives.

use comity_proto::v1;
use prost::Message as _;

use crate::lease::Lease;
use crate::peering::PeeringDirective;

/// All leases, peerings and envelopes of this cluster.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct DesiredState {
    /// Revision of the broker's state.
    pub revision: u64,
    /// Leases with this cluster as origin or donor, until they ended.
    pub leases: Vec<Lease>,
    /// Peerings of this cluster, until they are closed.
    pub peerings: Vec<PeeringDirective>,
    /// Envelopes for this cluster.
    pub envelopes: Vec<v1::Envelope>,
    /// The message as received, without envelopes: the broker sends them again after a restart.
    pub encoded: Vec<u8>,
}

impl DesiredState {
    /// Reads what was [`encoded`](Self::encoded); empty if it cannot be read.
    #[must_use]
    pub fn decode(encoded: &[u8]) -> Self {
        v1::DesiredState::decode(encoded).unwrap_or_default().into()
    }
}

impl From<v1::DesiredState> for DesiredState {
    fn from(mut state: v1::DesiredState) -> Self {
        let envelopes = std::mem::take(&mut state.envelopes);
        let encoded = state.encode_to_vec();
        Self {
            revision: state.revision,
            leases: state.leases.into_iter().map(Lease::from).collect(),
            peerings: state.peerings.into_iter().filter_map(PeeringDirective::read).collect(),
            envelopes,
            encoded,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::delivery_kind::DeliveryKind;
    use crate::lease::LeaseState;
    use crate::peering::PeeringState;

    #[test]
    fn a_state_survives_its_encoding_without_envelopes_and_what_is_unknown_is_called_so() {
        let peering = v1::Peering { id: "peer-1".into(), state: 5, epoch: 2, ..v1::Peering::default() };
        let directive = v1::PeeringDirective { peering: Some(peering), ..v1::PeeringDirective::default() };
        let received = v1::DesiredState {
            revision: 7,
            leases: vec![v1::Lease { id: "lease-1".into(), state: 99, delivery: 2, ..v1::Lease::default() }],
            peerings: vec![directive, v1::PeeringDirective::default()],
            envelopes: vec![v1::Envelope::default()],
            ..v1::DesiredState::default()
        };
        let state = DesiredState::from(received);
        assert_eq!((state.leases[0].state, state.leases[0].delivery), (LeaseState::Unknown, DeliveryKind::VirtualNode));
        assert_eq!((state.peerings.len(), state.peerings[0].peering.state), (1, PeeringState::Established));
        assert_eq!(state.envelopes.len(), 1);
        let kept = DesiredState::decode(&state.encoded);
        assert_eq!(kept, DesiredState { envelopes: Vec::new(), ..state });
        assert_eq!(DesiredState::decode(b"no message").revision, 0);
    }
}
