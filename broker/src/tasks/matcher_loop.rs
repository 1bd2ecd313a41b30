//! Places what waits, plan by plan: what comes in while one is being committed is in the next.

use std::time::Duration;

use comity_core::Command;
use comity_core::ReplyBody;
use comity_core::command::{PlaceRequests, ProposedPlacement};
use comity_core::limits::MAX_PLACEMENTS_PER_PLAN;
use comity_core::matcher::{Plan, Planner};

use crate::context::Context;
use crate::group::{Consistency, Unavailable};

/// Also without a change, for policy has dates.
const AT_LEAST_EVERY: Duration = Duration::from_secs(10);
/// After the group could not answer.
const PAUSE: Duration = Duration::from_millis(200);

/// Plans on each change of the state while requests wait, leases are called back, or gangs lack members.
pub(super) async fn run(context: &Context) {
    let mut revision = context.group.revision();
    let mut planner = Planner::default();
    loop {
        revision.mark_unchanged();
        match place(context, &mut planner).await {
            Ok(true) => continue,
            Ok(false) => {}
            Err(error) => {
                tracing::warn!(%error, "matching waits");
                context.clock.sleep(PAUSE).await;
                continue;
            }
        }
        tokio::select! {
            changed = revision.changed() => if changed.is_err() { return },
            () = context.clock.sleep(AT_LEAST_EVERY) => {}
        }
    }
}

/// One plan; whether more may be placed at once.
async fn place(context: &Context, planner: &mut Planner) -> Result<bool, Unavailable> {
    let plan = plan(context, planner).await?;
    let again = carry_out(context, planner, plan.placements, plan.unplaced.len(), plan.based_on).await?;
    // After the placements, beside which they were found to be needed.
    super::reclaimer::call_back(context, Vec::new(), plan.reclaims).await?;
    Ok(again)
}

async fn carry_out(
    context: &Context,
    planner: &mut Planner,
    placements: Vec<ProposedPlacement>,
    unplaced: usize,
    based_on: u64,
) -> Result<bool, Unavailable> {
    if placements.is_empty() {
        return Ok(false);
    }
    let placed = placements.len();
    let mut made = 0;
    for command in PlaceRequests::of_plan(placements) {
        let applied = super::propose(context, Command::PlaceRequests(command)).await?;
        match applied.reply {
            Ok(ReplyBody::Placed { leases, refused }) => {
                made += leases.len();
                tracing::info!(leases = ?leases, based_on, "placed");
                if !refused.is_empty() {
                    planner.forget();
                }
                for (request, refusal) in refused {
                    tracing::info!(%request, code = refusal.code.as_str(), reason = %refusal.reason, "placement refused");
                }
            }
            Ok(_) => {}
            Err(refusal) => tracing::error!(%refusal, "the plan was refused as a whole"),
        }
    }
    // A full plan leaves some behind; one that was refused in part is made anew. One of which nothing came waits for the
    // next change, so that no plan is proposed for ever.
    Ok(made > 0 && (placed == MAX_PLACEMENTS_PER_PLAN || made < placed || unplaced > 0))
}

async fn plan(context: &Context, planner: &mut Planner) -> Result<Plan, Unavailable> {
    let began = context.clock.elapsed();
    // Planning looks at the state in place: a copy of a large federation would cost more than the plan.
    let plan = context
        .group
        .read(Consistency::Stale, |state| {
            let nothing =
                state.queued_len() == 0 && state.reclaiming().next().is_none() && state.growing().next().is_none();
            if nothing { Plan::default() } else { planner.plan(state, MAX_PLACEMENTS_PER_PLAN) }
        })
        .await?;
    if !plan.placements.is_empty() || !plan.unplaced.is_empty() {
        context.metrics.planned(context.clock.elapsed().saturating_sub(began).as_secs_f64());
    }
    Ok(plan)
}
