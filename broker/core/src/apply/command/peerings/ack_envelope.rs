//! An envelope was opened, or is of no use.

use serde::{Deserialize, Serialize};

use crate::apply::transition::Transition;
use crate::model::envelope::EnvelopeKey;
use crate::model::reply::{Reply, ReplyBody};

/// Deletes an envelope. Repeating it does no harm.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AckEnvelope {
    /// Which one.
    pub key: EnvelopeKey,
}

impl AckEnvelope {
    pub(crate) fn apply(&self, transition: &mut Transition<'_>) -> Reply {
        transition.remove_envelope(&self.key);
        Ok(ReplyBody::Done)
    }
}
