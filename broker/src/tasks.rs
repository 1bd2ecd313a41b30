//! Tasks of the leader. They read the state and propose commands; only apply changes the state.
//!
//! `begin_term` runs first in each tenure: it extends leases by the outage, before `expirer` may end any.

mod audit_exporter;
mod begin_term;
mod expirer;
mod failure_detector;
mod policy_puller;
mod reclaimer;
mod scheduler_loop;
mod survey;

use std::time::Duration;

use comity_core::Command;
use comity_core::reply::Applied;
use tokio_util::sync::CancellationToken;

use crate::context::Context;
use crate::group::{Leadership, Tenure, Unavailable};
use crate::replication::proposal::Proposal;

/// Maximum interval of plans and of reclaim passes: policy has dates.
const MAX_POLICY_CHECK_INTERVAL: Duration = Duration::from_secs(10);
/// Interval of retries while the group does not answer.
const RETRY_INTERVAL: Duration = Duration::from_millis(200);

/// Follows leadership until `stop`.
pub async fn run(context: Context, stop: CancellationToken) {
    let survey = tokio::spawn(survey::run(context.clone(), stop.clone()));
    let mut leadership = context.group.leadership();
    let mut leading = None;
    loop {
        let now = *leadership.borrow_and_update();
        context.metrics.set_leading(now.is_leader());
        if let Leadership::Leader(tenure) = now {
            tracing::info!(term = tenure.term, "leading");
        }
        leading = match (now, leading.take()) {
            (Leadership::Leader(tenure), None) => Some(Leading::begin(tenure, &context, &stop)),
            (Leadership::Leader(tenure), Some(running)) if running.tenure == tenure => Some(running),
            // Lost leadership and regained it: a new tenure.
            (Leadership::Leader(tenure), Some(running)) => {
                running.end().await;
                Some(Leading::begin(tenure, &context, &stop))
            }
            (Leadership::Follower { .. }, Some(running)) => {
                running.end().await;
                None
            }
            (Leadership::Follower { .. }, None) => None,
        };
        tokio::select! {
            changed = leadership.changed() => if changed.is_err() { break },
            () = stop.cancelled() => break,
        }
    }
    if let Some(running) = leading {
        running.end().await;
    }
    // Ends by itself; a panic was reported.
    let _ = survey.await;
}

/// The tasks of one tenure.
struct Leading {
    tenure: Tenure,
    stop: CancellationToken,
    task: tokio::task::JoinHandle<()>,
}

impl Leading {
    fn begin(tenure: Tenure, context: &Context, stop: &CancellationToken) -> Self {
        let stop = stop.child_token();
        let (context, token) = (context.clone(), stop.clone());
        let task = tokio::spawn(async move {
            tokio::select! {
                () = lead(&context) => {}
                () = token.cancelled() => {}
            }
        });
        Self { tenure, stop, task }
    }

    async fn end(self) {
        self.stop.cancel();
        // A panic has been reported; the next tenure starts its own tasks.
        let _ = self.task.await;
    }
}

async fn lead(context: &Context) {
    begin_term::run(context).await;
    tokio::join!(
        scheduler_loop::run(context),
        reclaimer::run(context),
        expirer::run(context),
        failure_detector::run(context),
        policy_puller::run(context),
        audit_exporter::run(context)
    );
}

async fn propose(context: &Context, command: Command) -> Result<Applied, Unavailable> {
    context.commit(Proposal::of_leader(context.id, command)).await
}
