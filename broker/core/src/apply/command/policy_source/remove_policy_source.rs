//! Ends the pulling of the policy.

use serde::{Deserialize, Serialize};

use crate::model::refusal::{Code, Refusal};
use crate::model::reply::{Reply, ReplyBody};
use crate::state::transition::Transition;

/// Forgets the source. The bundle in force stays, and so does the commit that a later source must descend from.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RemovePolicySource {}

impl RemovePolicySource {
    pub(crate) fn apply(&self, transition: &mut Transition<'_>) -> Reply {
        let mut provenance = transition.state().provenance.clone();
        if provenance.source.take().is_none() {
            let reason = "the policy is pulled from no repository";
            return Err(Refusal::new(Code::WrongState, reason, "nothing is left to remove"));
        }
        transition.set_provenance(provenance);
        Ok(ReplyBody::Done)
    }
}
