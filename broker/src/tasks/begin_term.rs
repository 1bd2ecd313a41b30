//! Proposes `BeginTerm` before the other tasks of a leader begin.

use crate::context::Context;
use crate::replication::proposal::Proposal;
use crate::tasks::RETRY_INTERVAL;

/// Retries until committed.
pub(super) async fn run(context: &Context) {
    loop {
        if let Some(outage) = context.group.outage().await {
            match context.commit(Proposal::begins_term(context.id, outage)).await {
                Ok(_) => return,
                Err(error) => tracing::warn!(%error, "the term cannot begin yet"),
            }
        }
        context.clock.sleep(RETRY_INTERVAL).await;
    }
}
