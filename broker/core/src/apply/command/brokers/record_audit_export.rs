//! Records how much of the audit log a collector has.

use serde::{Deserialize, Serialize};

use crate::model::actor::Actor;
use crate::model::refusal::{Code, Refusal};
use crate::model::reply::{Reply, ReplyBody};
use crate::state::transition::Transition;

/// A collector has all records before a number, so that the next leader goes on from there.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RecordAuditExport {
    /// Number after the last record that it has. A lower one than recorded changes nothing.
    pub until: u64,
}

impl RecordAuditExport {
    pub(crate) fn apply(&self, transition: &mut Transition<'_>) -> Reply {
        let Actor::Leader(_) = transition.actor() else {
            let reason = "only the leader records what it exported";
            return Err(Refusal::new(Code::PermissionDenied, reason, "leave it to the leader"));
        };
        let size = transition.state().audit.size();
        if self.until > size {
            let why = format!("is more than the {size} records of the log");
            return Err(Refusal::invalid("until", self.until, &why, "name a number within the log"));
        }
        if self.until > transition.state().audit_exported {
            transition.set_audit_exported(self.until);
        }
        Ok(ReplyBody::Done)
    }
}
