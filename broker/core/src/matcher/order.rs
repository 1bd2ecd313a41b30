//! In which order waiting requests are served: by age. Gangs are served whole or not at all; one that does not fit now
//! does not hold up those behind it.

use crate::id::RequestId;
use crate::request::Request;
use crate::state::State;

/// Waiting requests in the order in which they are served.
pub(super) fn in_order(state: &State) -> impl Iterator<Item = (RequestId, &Request)> {
    state.queued()
}
