//! Kinds of envelopes by their `step` field, and their acknowledgement.

use comity_agent_liqo::messages::Message as _;
use comity_agent_liqo::network::NetworkState;
use comity_agent_liqo::{Challenge, IdentityParams, TenantRequest};
use comity_agent_model::side::Side;
use comity_agent_state::record::{PeeringRecord, ReportKey};
use comity_agent_state::store::Change;
use comity_proto::v1;
use comity_proto::v1::agent_message::Body;

/// The donor's pre-shared key for a tunnel, with a nonce.
pub(crate) const PSK: &str = "psk";
/// The origin's proof that it opened the pre-shared key.
pub(crate) const PROOF: &str = "proof";
/// A credential for a lease.
pub(crate) const CREDENTIAL: &str = "credential";

/// Whether this agent opens envelopes of this kind.
pub(crate) fn is_known(step: &str) -> bool {
    let of_network = [Side::Donor, Side::Origin].map(NetworkState::step);
    let of_liqo = [Challenge::STEP, TenantRequest::STEP, IdentityParams::STEP];
    [PSK, PROOF, CREDENTIAL].contains(&step) || of_liqo.contains(&step) || of_network.contains(&step)
}

/// The acknowledgement of an envelope.
pub(crate) fn ack_of(envelope: &v1::Envelope) -> v1::EnvelopeAck {
    v1::EnvelopeAck {
        peering: envelope.peering.clone(),
        epoch: envelope.epoch,
        lease: envelope.lease.clone(),
        step: envelope.step.clone(),
        sequence: envelope.sequence,
    }
}

/// The outbox key of an acknowledgement.
pub(crate) fn ack_key(ack: &v1::EnvelopeAck) -> ReportKey {
    ReportKey::EnvelopeAck(ack.peering.clone(), ack.epoch, ack.lease.clone(), ack.step.clone(), ack.sequence)
}

/// Records that an envelope was opened, and acknowledges it to the broker.
pub(crate) fn note_opened(change: &mut Change<'_>, envelope: &v1::Envelope) {
    change.change_peering(&envelope.peering, envelope.epoch, |record| {
        let opened = record.opened.entry(PeeringRecord::kind(&envelope.lease, &envelope.step)).or_insert(0);
        *opened = envelope.sequence.max(*opened);
    });
    let ack = ack_of(envelope);
    change.send(ack_key(&ack), Body::EnvelopeAck(ack));
}
