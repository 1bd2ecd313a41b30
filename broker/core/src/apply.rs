//! Commands, and the one function that changes the state.

pub mod command;
pub mod entry;
pub(crate) mod transition;

use crate::apply::entry::{FAIRNESS_SINCE, HEALTH_SINCE, LogEnvelope};
use crate::apply::transition::{FailureMemory, Transition};
use crate::model::idempotency::{self, StoredReply};
use crate::model::limits::MAX_IDEMPOTENCY_RECORDS;
use crate::model::reply::{Applied, Idempotency, Reply};
use crate::state::State;
use crate::state::fairness::Ledger;
use crate::state::timers::Due;

impl State {
    /// Applies one log entry. Total and deterministic: equal states and entries give equal states and replies. A
    /// refused command changes nothing but log time.
    pub fn apply(&mut self, entry: &LogEnvelope) -> Applied {
        self.log_time = self.log_time.max(entry.time.shifted(self.time_shift_ms));
        if let Some(reply) = entry.idempotency.as_ref().and_then(|key| idempotency::seen(&self.idempotency, key)) {
            return Applied { reply, revision: self.revision, changes: Vec::new() };
        }
        if self.fairness.is_none() && entry.format >= FAIRNESS_SINCE {
            self.fairness = Some(Ledger::begin(self.log_time, &self.derived.holdings));
        }
        let failure_memory = if entry.format >= HEALTH_SINCE { FailureMemory::On } else { FailureMemory::Off };
        let mut transition = Transition::begin(self, &entry.actor, &entry.traceparent, failure_memory);
        let reply = entry.command.apply(&mut transition);
        let changes = transition.finish();
        debug_assert!(reply.is_ok() || changes.is_empty(), "a refused command changed {changes:?}");
        // Do not store refusals: a caller who fixes the cause may repeat the same call.
        if let (Some(key), Ok(_)) = (&entry.idempotency, &reply) {
            self.remember(key, &reply);
        }
        let applied = Applied { reply, revision: self.revision, changes };
        #[cfg(debug_assertions)]
        crate::state::invariants::assert_all(self);
        applied
    }

    fn remember(&mut self, key: &Idempotency, reply: &Reply) {
        while self.idempotency.len() >= MAX_IDEMPOTENCY_RECORDS {
            let Some(oldest) = self.derived.timers.oldest_answer().map(str::to_owned) else { break };
            self.forget(&oldest);
        }
        let name = idempotency::record_name(key);
        let record = StoredReply { body_sha256: key.body_sha256.clone(), reply: reply.clone(), at: self.log_time };
        self.derived.timers.set(Due::Idempotency(name.clone()), Some(record.at.after(idempotency::KEPT_FOR)));
        self.idempotency.insert(name, record);
    }

    pub(crate) fn forget(&mut self, name: &str) {
        self.idempotency.remove(name);
        self.derived.timers.set(Due::Idempotency(name.to_owned()), None);
    }
}
