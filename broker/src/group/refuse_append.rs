//! Refuses entries that would replace applied ones.
//!
//! A leader has every committed entry. Such an append therefore means that the group lost entries, or was recovered
//! from an older copy; this broker then stops and keeps its log.

use openraft::async_runtime::WatchReceiver as _;
use openraft::raft::AppendEntriesRequest;

use crate::eligibility::Halt;
use crate::group::Inner;
use crate::replication::types::{LogId, TypeConfig};

impl Inner {
    /// Stops this broker if its log contradicts the leader's.
    pub(crate) fn refuse_other_history(&self, request: &AppendEntriesRequest<TypeConfig>) -> Result<(), String> {
        let (own_vote, applied) = {
            let metrics = self.raft.metrics();
            let metrics = metrics.borrow_watched();
            (metrics.vote, metrics.last_applied)
        };
        let Some(applied) = applied else { return Ok(()) };
        let (own, theirs) = (own_vote.leader_id, request.vote.leader_id);
        // A term has one leader. A second one was elected by brokers that forgot their votes.
        let second_leader = own_vote.committed && own.term == theirs.term && own.voted_for != theirs.voted_for;
        // An earlier leader that does not know of its successor proves nothing about the log.
        if theirs.term < own.term {
            return Ok(());
        }
        let sent = request.prev_log_id.iter().chain(request.entries.iter().map(|entry| &entry.log_id));
        let other = sent.take_while(|id| id.index <= applied.index).find(|id| self.contradicts(id, &applied));
        if other.is_none() && !second_leader {
            return Ok(());
        }
        let what = match other {
            Some(other) => format!("has another entry {}", other.index),
            None => format!("is the second leader of term {}", theirs.term),
        };
        let halt = self.ahead_of(theirs.voted_for, applied.index, &what);
        let reason = halt.reason().to_owned();
        self.eligibility.halt(halt);
        Err(reason)
    }

    /// Why this broker, which has applied entry `applied`, must not follow `leader`.
    pub(crate) fn ahead_of(&self, leader: u64, applied: u64, what: &str) -> Halt {
        let me = self.config.id;
        Halt::Stopped(format!(
            "the log of broker {me} is ahead of its group's: it has applied entry {applied}, and broker {leader}, \
             which leads, {what}; if the group is right, run `comity-broker rebuild --data DIR` here; if this copy \
             is the better one, stop the others and run `comity-broker recover --from DIR` on it"
        ))
    }

    fn contradicts(&self, other: &LogId, applied: &LogId) -> bool {
        if other.index == applied.index {
            return other.leader_id != applied.leader_id;
        }
        // Terms only grow along a log. If the entry is still in the log, its own term is compared.
        other.leader_id > applied.leader_id || self.log.id_at(other.index).is_some_and(|own| own != *other)
    }
}
