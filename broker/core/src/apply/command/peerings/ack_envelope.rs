//! Acknowledges an envelope that was opened or is useless.

use serde::{Deserialize, Serialize};

use crate::model::envelope::EnvelopeKey;
use crate::model::refusal::Refusal;
use crate::model::reply::{Reply, ReplyBody};
use crate::state::transition::Transition;

/// Deletes an envelope to the caller. Repeating it is a no-op.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AckEnvelope {
    /// The envelope.
    pub key: EnvelopeKey,
}

impl AckEnvelope {
    pub(crate) fn apply(&self, transition: &mut Transition<'_>) -> Reply {
        let EnvelopeKey { to, peering, .. } = &self.key;
        // A stranger cannot tell a peering of others from none, nor whether an envelope waits.
        if transition.state().peerings.get(peering).is_none_or(|held| held.side_of(to).is_none()) {
            return Err(Refusal::not_found("envelope_ack.peering", peering, "peering"));
        }
        transition.remove_envelope(&self.key);
        Ok(ReplyBody::Done)
    }
}
