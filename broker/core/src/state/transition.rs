//! The only way to change the state: primitive changes that keep indexes, revisions and the list of changes in step.

pub(crate) mod audit_changes;
mod cluster_changes;
mod gpu_time_changes;
mod group;
mod health_changes;
mod housekeeping;
mod illegal;
mod lease_changes;
mod peering_changes;
mod policy;
mod rebase;
mod request_changes;
mod revocation_changes;

use std::collections::BTreeSet;
use std::fmt::{Debug, Display};
use std::sync::Arc;

use comity_audit::SealedRecord;
use comity_policy::Bundle;

use crate::model::actor::Actor;
use crate::model::reply::{Change, Reply};
use crate::model::settings::Settings;
use crate::model::time::Timestamp;
use crate::state::transition::audit_changes::Act;
use crate::state::{Records, State};

pub use illegal::IllegalChange;

/// The changes that one entry makes. A command reads through [`state`](Self::state) and changes through the other
/// methods; nothing else can change the state.
pub(crate) struct Transition<'a> {
    state: &'a mut State,
    now: Timestamp,
    actor: &'a Actor,
    /// Of the actor's certificate.
    generation: u64,
    traceparent: &'a str,
    settings: Settings,
    /// The bundle in force when the entry began.
    policy: Option<Arc<Bundle>>,
    revision: u64,
    changes: BTreeSet<Change>,
    /// Whether anything was changed, including what no watcher needs to know.
    touched: bool,
    illegal: Option<String>,
    /// Records for the audit log, in order.
    acts: Vec<Act>,
}

/// What an entry changed.
pub(crate) struct Finished {
    pub(crate) changes: Vec<Change>,
    /// Its records of the audit log.
    pub(crate) audit: Vec<SealedRecord>,
}

impl<'a> Transition<'a> {
    /// Advances log time to the entry's. It never goes back.
    pub(crate) fn advance_log_time(state: &mut State, time: Timestamp) {
        let shifted = time.shifted(state.time_shift_ms);
        state.records.log_time = state.log_time.max(shifted);
    }

    /// Begins the changes of an actor, whose certificate has a generation.
    pub(crate) fn begin(state: &'a mut State, (actor, generation): (&'a Actor, u64), traceparent: &'a str) -> Self {
        Self {
            now: state.log_time,
            actor,
            generation,
            traceparent,
            settings: state.settings(),
            policy: state.policy.as_ref().map(|record| Arc::clone(&record.bundle)),
            revision: state.revision + 1,
            changes: BTreeSet::new(),
            touched: false,
            illegal: None,
            acts: Vec::new(),
            state,
        }
    }

    /// Ends the transition: numbers the revision and the records of the audit log, and returns what changed.
    ///
    /// # Errors
    ///
    /// A record made a move that its kind does not allow, or the command refused after it had changed something. Both
    /// are bugs; the state must not be used any more.
    pub(crate) fn finish(mut self, command: &'static str, reply: &Reply) -> Result<Finished, IllegalChange> {
        let revision = self.revision;
        if let Some(what) = self.illegal.take() {
            return Err(IllegalChange { revision, what });
        }
        if let (Err(refusal), true) = (reply, self.touched) {
            let what = format!("the command was refused ({}) after it had changed {:?}", refusal.reason, self.changes);
            return Err(IllegalChange { revision, what });
        }
        if !self.changes.is_empty() {
            self.state.records.revision = revision;
        }
        let audit = self.seal_acts(command, self.state.revision)?;
        Ok(Finished { changes: self.changes.into_iter().collect(), audit })
    }

    /// The state so far.
    pub(crate) fn state(&self) -> &State {
        self.state
    }

    /// Log time of the entry.
    pub(crate) fn now(&self) -> Timestamp {
        self.now
    }

    /// Who proposed the entry.
    pub(crate) fn actor(&self) -> &'a Actor {
        self.actor
    }

    /// Generation of the certificate of who proposed the entry.
    pub(crate) fn generation(&self) -> u64 {
        self.generation
    }

    /// W3C traceparent of the entry; empty if none.
    pub(crate) fn traceparent(&self) -> &'a str {
        self.traceparent
    }

    /// Whether anything was changed so far.
    pub(crate) fn has_changes(&self) -> bool {
        self.touched
    }

    /// The timeouts in force when the entry began.
    pub(crate) fn settings(&self) -> &Settings {
        &self.settings
    }

    /// The records, to change them. Counts as a change, so look up first what may be missing.
    fn records(&mut self) -> &mut Records {
        self.touched = true;
        &mut self.state.records
    }

    fn note(&mut self, change: Change) {
        self.touched = true;
        self.changes.insert(change);
    }

    /// Remembers the first illegal move; [`finish`](Self::finish) reports it.
    fn check_move<S: Copy + PartialEq + Debug>(
        &mut self,
        id: impl Display,
        before: S,
        after: S,
        may_become: impl FnOnce(S, S) -> bool,
    ) {
        if self.illegal.is_none() && before != after && !may_become(before, after) {
            self.illegal = Some(format!("{id} went from {before:?} to {after:?}"));
        }
    }
}

#[cfg(test)]
mod tests;
