//! Proposes `BeginTerm`, the first command of every leader.

use comity_audit::NonceKey;
use comity_core::Command;
use comity_core::command::BeginTerm;
use comity_runtime::{Entropy as _, SystemEntropy};

use crate::context::Context;
use crate::tasks::RETRY_INTERVAL;

/// Retries until committed; a leader proposes nothing else before.
pub(super) async fn run(context: &Context) {
    loop {
        if let Some(outage) = context.group.outage().await {
            let mut nonce_key = [0; NonceKey::BYTES];
            SystemEntropy.fill(&mut nonce_key);
            let nonce_key = NonceKey::of_bytes(nonce_key);
            let command = Command::BeginTerm(BeginTerm { broker: context.id, outage, nonce_key });
            match crate::tasks::propose(context, command).await {
                Ok(_) => return,
                Err(error) => tracing::warn!(%error, "the term cannot begin yet"),
            }
        }
        context.clock.sleep(RETRY_INTERVAL).await;
    }
}
