//! Commands, and the one function that changes the state.

mod audited_command;
pub mod command;
mod consequences;
pub mod entry;

use crate::apply::command::Command;
use crate::apply::entry::LogEnvelope;
use crate::model::idempotency;
use crate::model::refusal::Refusal;
use crate::model::reply::Applied;
use crate::state::State;
use crate::state::transition::{Finished, IllegalChange, Transition};

impl State {
    /// Applies one log entry. Deterministic: equal states and entries give equal states and replies. A refused command
    /// changes nothing but log time and the audit log.
    ///
    /// # Errors
    ///
    /// The entry would break the state's rules, which only a bug can cause. The state is then half changed: stop, and
    /// do not use it any more.
    pub fn apply(&mut self, entry: &LogEnvelope) -> Result<Applied, IllegalChange> {
        Transition::advance_log_time(self, entry.time);
        if let Some(reply) = entry.idempotency.as_ref().and_then(|key| idempotency::seen(&self.idempotency, key)) {
            return Ok(Applied { reply, revision: self.revision, changes: Vec::new(), audit: Vec::new() });
        }
        let mut transition = Transition::begin(self, (&entry.actor, entry.generation), &entry.traceparent);
        let audited = entry.command.audited(transition.state());
        let reply = check_actor(transition.state(), entry).and_then(|()| entry.command.apply(&mut transition));
        if let Some(audited) = audited {
            audited.record(&mut transition, &reply);
        }
        let Finished { changes, audit } = transition.finish(entry.command.name(), &reply)?;
        // Do not store refusals: a caller who fixes the cause may repeat the same call.
        if let (Some(key), Ok(_)) = (&entry.idempotency, &reply) {
            Transition::remember_reply(self, &entry.actor, key, &reply);
        }
        #[cfg(debug_assertions)]
        crate::state::invariants::assert_all(self);
        Ok(Applied { reply, revision: self.revision, changes, audit })
    }
}

/// Refuses an actor whose certificate was voided, or who was suspended, after a broker admitted the call: the command
/// was under way, or that broker lags. Whoever joins acts by the token, which is checked.
fn check_actor(state: &State, entry: &LogEnvelope) -> Result<(), Refusal> {
    match &entry.command {
        Command::JoinCluster(_) | Command::JoinUser(_) | Command::JoinBroker(_) => Ok(()),
        _ => state.check_standing(&entry.actor, entry.generation),
    }
}
