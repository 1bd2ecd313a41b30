//! Proposes `BeginTerm`, the first command of every leader.

use comity_core::Command;
use comity_core::command::BeginTerm;

use crate::context::Context;
use crate::tasks::RETRY_INTERVAL;

/// Retries until committed; a leader proposes nothing else before.
pub(super) async fn run(context: &Context) {
    loop {
        if let Some(outage) = context.group.outage().await {
            let command = Command::BeginTerm(BeginTerm { broker: context.id, outage });
            match crate::tasks::propose(context, command).await {
                Ok(_) => return,
                Err(error) => tracing::warn!(%error, "the term cannot begin yet"),
            }
        }
        context.clock.sleep(RETRY_INTERVAL).await;
    }
}
