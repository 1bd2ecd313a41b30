//! Lifts the suspension of an institution.

use comity_types::InstitutionId;
use serde::{Deserialize, Serialize};

use super::check_caller;
use crate::model::actor::Actor;
use crate::model::refusal::{Code, Refusal};
use crate::model::reply::{Reply, ReplyBody};
use crate::state::State;
use crate::state::transition::Transition;

/// Lifts a suspension: the certificates are valid again, the clusters connect, and waiting requests are placed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ResumeInstitution {
    /// The institution.
    pub institution: InstitutionId,
}

impl ResumeInstitution {
    /// Checks the command for `actor`.
    ///
    /// # Errors
    /// The refusal that [`State::apply`] would answer.
    pub fn check(&self, state: &State, actor: &Actor) -> Result<(), Refusal> {
        let name = &self.institution;
        check_caller(
            state,
            actor,
            |_, _| false,
            &format!("resume institution {name}"),
            "let one of the `maintainers` of the Federation document resume it",
        )?;
        if !state.suspensions.contains_key(name) {
            let reason = format!("institution {name} is not suspended");
            return Err(Refusal::new(Code::WrongState, reason, "nothing is left to resume").at("institution", name));
        }
        Ok(())
    }

    pub(crate) fn apply(&self, transition: &mut Transition<'_>) -> Reply {
        self.check(transition.state(), transition.actor())?;
        transition.remove_suspension(&self.institution);
        transition.refresh_drained_sides();
        Ok(ReplyBody::Done)
    }
}
