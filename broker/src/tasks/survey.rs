//! Counts what takes time to count, for the metrics; on every broker.

use std::time::Duration;

use tokio_util::sync::CancellationToken;

use crate::context::Context;
use crate::group::Consistency;

/// As often as a scraper usually looks.
const EVERY: Duration = Duration::from_secs(5);

/// Counts now and then until `stop`.
pub(super) async fn run(context: Context, stop: CancellationToken) {
    loop {
        if context.group.read(Consistency::Stale, |state| context.metrics.survey(state)).await.is_err() {
            return;
        }
        context.metrics.clocks(&context.group.clocks());
        tokio::select! {
            () = context.clock.sleep(EVERY) => {}
            () = stop.cancelled() => return,
        }
    }
}
