//! Counts objects for the metrics, on every broker, on a copy of the state.

use std::time::Duration;

use comity_core::scheduler::limited_donors;
use comity_core::{State, snapshot};
use tokio_util::sync::CancellationToken;

use crate::context::Context;
use crate::group::Consistency;

/// Interval of the counts: that of usual scrapes.
const SURVEY_INTERVAL: Duration = Duration::from_secs(5);

/// Updates the gauges until `stop`.
pub(super) async fn run(context: Context, stop: CancellationToken) {
    loop {
        context.metrics.clocks(&context.group.clocks());
        // Counts on a copy, so that apply does not wait.
        let Ok(state) = context.group.read(Consistency::Stale, snapshot::copy).await else { return };
        context.metrics.survey(&state);
        drop(state);
        let limited = |state: &State| limited_donors(state).count();
        let Ok(limited) = context.group.read(Consistency::Stale, limited).await else { return };
        context.metrics.set_reclaim_limited(limited);
        tokio::select! {
            () = context.clock.sleep(SURVEY_INTERVAL) => {}
            () = stop.cancelled() => return,
        }
    }
}
