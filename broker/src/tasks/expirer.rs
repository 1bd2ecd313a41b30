//! Proposes `Expire` when a timer in the state is due.

use std::time::Duration;

use comity_core::Command;
use comity_core::command::Expire;

use crate::context::Context;
use crate::group::Consistency;

/// Maximum sleep with nothing due: log time may be re-based.
const LONGEST_SLEEP: Duration = Duration::from_secs(30);
/// Minimum interval of proposals, which batches timers.
const SHORTEST_SLEEP: Duration = Duration::from_millis(20);

/// Sleeps until the next thing is due or the state changes.
pub(super) async fn run(context: &Context) {
    let mut revision = context.group.revision();
    loop {
        revision.mark_unchanged();
        let Ok(next) = context.group.read(Consistency::Stale, |state| state.next_due()).await else { return };
        let now = context.now();
        match next {
            Some(due) if due <= now => {
                if let Err(error) = crate::tasks::propose(context, Command::Expire(Expire {})).await {
                    tracing::warn!(%error, "nothing expires yet");
                }
                context.clock.sleep(SHORTEST_SLEEP).await;
            }
            next => {
                let wait = next.map_or(LONGEST_SLEEP, |due| Duration::from_millis(due.since(now).0).min(LONGEST_SLEEP));
                tokio::select! {
                    changed = revision.changed() => if changed.is_err() { return },
                    () = context.clock.sleep(wait.max(SHORTEST_SLEEP)) => {}
                }
            }
        }
    }
}
