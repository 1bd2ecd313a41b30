//! Runs the scheduler: plans placements of queued requests and proposes them.

use std::time::Duration;

use comity_core::Command;
use comity_core::ReplyBody;
use comity_core::command::PlaceRequests;
use comity_core::limits::MAX_PLACEMENTS_PER_PLAN;
use comity_core::proposal::ProposedPlacement;
use comity_core::scheduler::{Plan, Planner};

use crate::context::Context;
use crate::group::{Consistency, Unavailable};
use crate::tasks::{MAX_POLICY_CHECK_INTERVAL, RETRY_INTERVAL};

/// A plan visits the whole queue and blocks apply. The pause is this many times as long as a fruitless plan, so such
/// plans take at most 1/4 of the time.
const PLAN_PAUSE_FACTOR: u32 = 3;
/// Shorter plans need no pause.
const MAX_PLAN_WITHOUT_PAUSE: Duration = Duration::from_micros(200);

/// Plans on each change of the state while requests wait, leases are being reclaimed, or gangs lack members.
pub(super) async fn run(context: &Context) {
    let mut revision = context.group.revision();
    let mut planner = Planner::default();
    loop {
        revision.mark_unchanged();
        let pause = match place(context, &mut planner).await {
            Ok(Next::Plan) => continue,
            Ok(Next::Wait { pause }) => pause,
            Err(error) => {
                tracing::warn!(%error, "scheduling waits");
                context.clock.sleep(RETRY_INTERVAL).await;
                continue;
            }
        };
        if !pause.is_zero() {
            context.clock.sleep(pause).await;
        }
        tokio::select! {
            changed = revision.changed() => if changed.is_err() { return },
            () = context.clock.sleep(MAX_POLICY_CHECK_INTERVAL) => {}
        }
    }
}

/// Next step after a plan.
#[derive(Debug, PartialEq, Eq)]
enum Next {
    /// Plan again at once: more may be placed.
    Plan,
    /// Pause, then wait for the next change.
    Wait { pause: Duration },
}

impl Next {
    fn wait_after(took: Duration, placed: usize) -> Self {
        let fruitless_and_long = placed == 0 && took > MAX_PLAN_WITHOUT_PAUSE;
        Self::Wait { pause: if fruitless_and_long { took * PLAN_PAUSE_FACTOR } else { Duration::ZERO } }
    }
}

/// Plans once and proposes the plan.
async fn place(context: &Context, planner: &mut Planner) -> Result<Next, Unavailable> {
    let began = context.clock.elapsed();
    let plan = plan(context, planner).await?;
    let (took, placed) = (context.clock.elapsed().saturating_sub(began), plan.placements.len());
    let again = carry_out(context, planner, plan.placements, plan.unplaced.len(), plan.based_on).await?;
    // Proposed after the placements with which they were planned.
    crate::tasks::reclaimer::reclaim(context, Vec::new(), plan.reclaims).await?;
    Ok(if again { Next::Plan } else { Next::wait_after(took, placed) })
}

/// Proposes placements; returns whether to plan again at once.
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
        let applied = crate::tasks::propose(context, Command::PlaceRequests(command)).await?;
        match applied.reply {
            Ok(ReplyBody::Placed { leases, refused }) => {
                made += leases.len();
                tracing::info!(leases = ?leases, based_on, "placed");
                if !refused.is_empty() {
                    planner.forget();
                }
                for (request, refusal) in refused {
                    tracing::info!(%request, code = refusal.code.as_str(), reason = %refusal.reason, "placement \
                        refused");
                }
            }
            Ok(_) => {}
            Err(refusal) => tracing::error!(%refusal, "the plan was refused as a whole"),
        }
    }
    // Whether to plan again: after a full or partly refused plan. A plan without placements waits for the next change.
    Ok(made > 0 && (placed == MAX_PLACEMENTS_PER_PLAN || made < placed || unplaced > 0))
}

async fn plan(context: &Context, planner: &mut Planner) -> Result<Plan, Unavailable> {
    let began = context.clock.elapsed();
    // Plans under the read lock: copying a large state would cost more than the plan.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fruitless_long_plans_leave_three_quarters_of_the_time() {
        let ms = Duration::from_millis;
        assert_eq!(Next::wait_after(ms(40), 0), Next::Wait { pause: ms(120) });
        assert_eq!(Next::wait_after(MAX_PLAN_WITHOUT_PAUSE, 0), Next::Wait { pause: Duration::ZERO });
        assert_eq!(Next::wait_after(ms(40), 7), Next::Wait { pause: Duration::ZERO });
    }
}
