//! Commands that end a member's part: they void certificates and treat leases.

pub(crate) mod evict_cluster;
pub(crate) mod resume_institution;
pub(crate) mod revoke_user;
pub(crate) mod suspend_institution;

use comity_policy::Bundle;

use crate::model::actor::Actor;
use crate::model::refusal::{Code, Refusal};
use crate::state::State;

/// Refuses a caller whom the policy in force does not let do this. Before the first bundle, the API alone decides.
fn check_caller(
    state: &State,
    actor: &Actor,
    may: impl FnOnce(&Bundle, &str) -> bool,
    what: &str,
    remedy: &str,
) -> Result<(), Refusal> {
    let (Some(record), Actor::User(caller)) = (&state.policy, actor) else { return Ok(()) };
    if record.bundle.roles_of(caller).federation_admin || may(&record.bundle, caller) {
        return Ok(());
    }
    Err(Refusal::new(Code::PermissionDenied, format!("{caller} may not {what}"), remedy))
}
