//! Commands that end a member's part: they void certificates and treat leases.

pub(crate) mod evict_cluster;
pub(crate) mod resume_institution;
pub(crate) mod revoke_user;
pub(crate) mod suspend_institution;

use comity_policy::Bundle;
use comity_types::{LeaseState, LeaseTreatment};

use crate::model::actor::Actor;
use crate::model::lease::Lease;
use crate::model::refusal::{Code, Refusal};
use crate::model::revocation::Exclusion;
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

/// Refuses to treat the leases of who takes no part already, unless they end earlier by it. `done` says what was done and
/// by whom, as in "cluster west is evicted already, by olga".
fn check_tightens<'l>(
    earlier: &Exclusion,
    asked: LeaseTreatment,
    done: String,
    mut leases: impl Iterator<Item = &'l Lease>,
) -> Result<(), Refusal> {
    let treated = earlier.leases;
    if asked > treated {
        return Ok(());
    }
    let tighter = match treated {
        LeaseTreatment::Finish => Some("`--leases drain` or `--leases stop`"),
        LeaseTreatment::Drain => Some("`--leases stop`"),
        LeaseTreatment::Stop => None,
    };
    let Some(tighter) = tighter else {
        let remedy = if leases.any(|lease| lease.state != LeaseState::Ended) {
            "wait: its leases were told to stop, and have ended once their clusters have removed them"
        } else {
            "nothing is left to do: its leases have ended"
        };
        return Err(Refusal::new(Code::WrongState, done, remedy));
    };
    let remedy = format!("to end its leases earlier, choose {tighter}; `--leases {}` would end none", asked.as_str());
    Err(Refusal::new(Code::WrongState, format!("{done}, with `--leases {}`", treated.as_str()), remedy))
}
