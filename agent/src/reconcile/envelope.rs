//! Kinds of envelopes by their `step` field, and their acknowledgement.

use comity_agent_liqo::messages::Message as _;
use comity_agent_liqo::network::NetworkState;
use comity_agent_liqo::{Challenge, IdentityParams, TenantRequest};
use comity_agent_model::envelope::EnvelopeKey;
use comity_agent_state::record::{PeeringRecord, ReportKey};
use comity_agent_state::store::Change;
use comity_proto::v1::agent_message::Body;
use comity_types::Side;

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

/// Records that an envelope was opened, and acknowledges it to the broker.
pub(crate) fn note_opened(change: &mut Change<'_>, key: &EnvelopeKey) {
    change.change_peering(key.peering, key.epoch, |record| {
        let opened = record.opened.entry(PeeringRecord::kind(key.lease, &key.step)).or_insert(0);
        *opened = key.sequence.max(*opened);
    });
    change.send(ReportKey::EnvelopeAck(key.clone()), Body::EnvelopeAck(key.ack()));
}
