//! Acknowledges an envelope that was opened or is useless.

use serde::{Deserialize, Serialize};

use crate::model::envelope::EnvelopeKey;
use crate::model::reply::{Reply, ReplyBody};
use crate::state::transition::Transition;

/// Deletes an envelope. Repeating it is a no-op.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AckEnvelope {
    /// The envelope.
    pub key: EnvelopeKey,
}

impl AckEnvelope {
    pub(crate) fn apply(&self, transition: &mut Transition<'_>) -> Reply {
        transition.remove_envelope(&self.key);
        Ok(ReplyBody::Done)
    }
}
