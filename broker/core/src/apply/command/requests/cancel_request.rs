//! Cancels a request.

use comity_types::{EndReason, RequestId, RequestState};
use serde::{Deserialize, Serialize};

use crate::model::refusal::{Code, Refusal};
use crate::model::reply::{Reply, ReplyBody};
use crate::state::transition::Transition;

/// Cancels a request and ends its leases. Cancelling a cancelled request is a no-op.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CancelRequest {
    /// The request.
    pub request: RequestId,
}

impl CancelRequest {
    pub(crate) fn apply(&self, transition: &mut Transition<'_>) -> Reply {
        let request = transition
            .state()
            .requests
            .get(&self.request)
            .ok_or_else(|| Refusal::not_found("request", self.request, "request"))?;
        let lease = request.lease;
        match request.state {
            RequestState::Cancelled => {}
            RequestState::Queued => transition.change_request(self.request, |request| {
                request.state = RequestState::Cancelled;
                "cancelled by its owner".clone_into(&mut request.message);
            }),
            RequestState::Placed => {
                if let Some(lease) = lease {
                    transition.end_lease(lease, EndReason::Cancelled, "cancelled by its owner");
                }
            }
            RequestState::Completed | RequestState::Failed => {
                return Err(Refusal::new(
                    Code::WrongState,
                    format!("{} has ended already", self.request),
                    "nothing is left to cancel",
                )
                .at("request", self.request));
            }
        }
        Ok(ReplyBody::Request(self.request))
    }
}
