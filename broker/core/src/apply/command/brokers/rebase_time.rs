//! Corrects log time after the brokers' clocks were wrong.

use serde::{Deserialize, Serialize};

use crate::model::refusal::{Code, Refusal};
use crate::model::reply::{Reply, ReplyBody};
use crate::state::transition::Transition;

/// Shifts log time, possibly backwards; no other command does. Every timestamp that the brokers made shifts too, so
/// each lease, notice and deadline keeps its remaining time. Dates that people set stay: start windows, agreement
/// dates, certificate expiry.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RebaseTime {
    /// The value of `time_shift_ms` that the operator based this shift on. It makes a repeated command a no-op.
    pub from_shift_ms: i64,
    /// The shift in milliseconds; may be negative.
    pub by_ms: i64,
}

impl RebaseTime {
    pub(crate) fn apply(&self, transition: &mut Transition<'_>) -> Reply {
        let shift = transition.state().time_shift_ms;
        if shift != self.from_shift_ms {
            return Err(Refusal::new(
                Code::WrongState,
                "log time was re-based meanwhile",
                "look again with `comity raft rebase-time`",
            )
            .at("from_shift_ms", self.from_shift_ms));
        }
        let moved = transition.now().0.checked_add_signed(self.by_ms).zip(shift.checked_add(self.by_ms));
        let Some((_, shift)) = moved else {
            let remedy = format!("move log time, which is {} now, to a time after 1970", transition.now().0);
            return Err(Refusal::invalid("by_ms", self.by_ms, "leads out of all time", remedy));
        };
        transition.rebase(self.by_ms, shift);
        Ok(ReplyBody::Done)
    }
}
