//! What the leader does by itself. Tasks read the state and propose; only apply changes it.
//!
//! They start when this broker begins to lead and stop when it ends to: `begin_term` first, for it gives every lease its
//! time back after an outage, before `expirer` may end any.

mod begin_term;
mod expirer;
mod failure_detector;
mod matcher_loop;
mod reclaimer;
mod survey;

use comity_core::Command;
use comity_core::log::Applied;
use tokio_util::sync::CancellationToken;

use crate::context::Context;
use crate::group::{Leadership, Proposal, Unavailable};

/// Follows leadership until `stop`.
pub async fn run(context: Context, stop: CancellationToken) {
    let survey = tokio::spawn(survey::run(context.clone(), stop.clone()));
    let mut leadership = context.group.leadership();
    let mut term = None;
    loop {
        let now = *leadership.borrow_and_update();
        context.metrics.set_leader(now.is_leader());
        if let Leadership::Leader { term } = now {
            tracing::info!(term, "leading");
        }
        term = match (now, term.take()) {
            (Leadership::Leader { term }, None) => Some(Term::begin(term, &context, &stop)),
            (Leadership::Leader { term }, Some(running)) if running.number == term => Some(running),
            // It led, lost that and leads again: the new term begins like any other.
            (Leadership::Leader { term }, Some(running)) => {
                running.end().await;
                Some(Term::begin(term, &context, &stop))
            }
            (Leadership::Follower { .. }, Some(term)) => {
                term.end().await;
                None
            }
            (Leadership::Follower { .. }, None) => None,
        };
        tokio::select! {
            changed = leadership.changed() => if changed.is_err() { break },
            () = stop.cancelled() => break,
        }
    }
    if let Some(term) = term {
        term.end().await;
    }
    // It ends by itself; a panic in it has been reported.
    let _ = survey.await;
}

/// The tasks of one time of leading.
struct Term {
    number: u64,
    stop: CancellationToken,
    task: tokio::task::JoinHandle<()>,
}

impl Term {
    fn begin(number: u64, context: &Context, stop: &CancellationToken) -> Self {
        let stop = stop.child_token();
        let (context, token) = (context.clone(), stop.clone());
        let task = tokio::spawn(async move {
            tokio::select! {
                () = lead(&context) => {}
                () = token.cancelled() => {}
            }
        });
        Self { number, stop, task }
    }

    async fn end(self) {
        self.stop.cancel();
        // A panic has been reported; the next term begins anew.
        let _ = self.task.await;
    }
}

async fn lead(context: &Context) {
    begin_term::run(context).await;
    tokio::join!(
        matcher_loop::run(context),
        reclaimer::run(context),
        expirer::run(context),
        failure_detector::run(context)
    );
}

async fn propose(context: &Context, command: Command) -> Result<Applied, Unavailable> {
    context.commit(Proposal::of_leader(context.id, command)).await
}
