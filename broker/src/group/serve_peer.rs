//! Serves proposals, membership changes and read indexes that followers forward.

use std::time::Duration;

use openraft::ReadPolicy;

use crate::group::propose::Attempt;
use crate::group::{Group, GroupError};
use crate::transport::{ForwardReply, ForwardRequest};

impl Group {
    /// Serves a forwarded request; never forwards it again.
    pub(crate) async fn serve_forwarded(&self, request: ForwardRequest) -> ForwardReply {
        match request {
            ForwardRequest::Propose { proposal, timeout_ms } => {
                let Ok(_permit) = self.inner.in_flight.try_acquire() else { return ForwardReply::NotAppended };
                let timeout = Duration::from_millis(timeout_ms).min(self.inner.config.deadline);
                match self.inner.append(proposal, timeout).await {
                    Attempt::Applied(applied) => ForwardReply::Applied(applied),
                    Attempt::NotAppended => ForwardReply::NotAppended,
                    Attempt::Unknown(reason) | Attempt::Stopped(reason) => ForwardReply::Unknown(reason),
                }
            }
            ForwardRequest::ChangeMembers(change) if self.inner.leadership.borrow().is_leader() => {
                match self.change_members_here(&change).await {
                    Ok(true) => ForwardReply::MembersChanged,
                    Ok(false) => ForwardReply::NotAppended,
                    Err(GroupError::Members(reason)) => ForwardReply::MembersRefused(reason),
                    Err(GroupError::Refused(refusal)) => ForwardReply::Refused(refusal),
                    Err(error) => ForwardReply::Unknown(error.to_string()),
                }
            }
            ForwardRequest::ChangeMembers(_) => ForwardReply::NotAppended,
        }
    }

    /// Index that a read starting now must wait for, or why it is unknown.
    pub(crate) async fn serve_read_index(&self) -> Result<u64, String> {
        let index = self.inner.raft.get_read_log_id(ReadPolicy::ReadIndex);
        let (read, _applied) = index.await.map_err(|error| error.to_string())?;
        Ok(read.log_id().index)
    }
}
