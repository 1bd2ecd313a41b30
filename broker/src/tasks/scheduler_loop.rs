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

/// Maximum interval: policy has dates.
const AT_LEAST_EVERY: Duration = Duration::from_secs(10);
/// A plan visits the whole queue and blocks apply: fruitless plans take at most 1/4 of the time.
const ONE_PART_IN: u32 = 4;
/// Shorter plans need no pause.
const SHORT: Duration = Duration::from_micros(200);
/// Pause after the group did not answer.
const PAUSE: Duration = Duration::from_millis(200);

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
                tracing::warn!(%error, "matching waits");
                context.clock.sleep(PAUSE).await;
                continue;
            }
        };
        if !pause.is_zero() {
            context.clock.sleep(pause).await;
        }
        tokio::select! {
            changed = revision.changed() => if changed.is_err() { return },
            () = context.clock.sleep(AT_LEAST_EVERY) => {}
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
    fn after(took: Duration, placed: usize, again: bool) -> Self {
        if again {
            return Self::Plan;
        }
        let fruitless_and_long = placed == 0 && took > SHORT;
        Self::Wait { pause: if fruitless_and_long { took * (ONE_PART_IN - 1) } else { Duration::ZERO } }
    }
}

/// One plan.
async fn place(context: &Context, planner: &mut Planner) -> Result<Next, Unavailable> {
    let began = context.clock.elapsed();
    let plan = plan(context, planner).await?;
    let (took, placed) = (context.clock.elapsed().saturating_sub(began), plan.placements.len());
    let again = carry_out(context, planner, plan.placements, plan.unplaced.len(), plan.based_on).await?;
    // Proposed after the placements with which they were planned.
    crate::tasks::reclaimer::reclaim(context, Vec::new(), plan.reclaims).await?;
    Ok(Next::after(took, placed, again))
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
    // Plan again after a full or partly refused plan. A plan without any placement waits for the next change.
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
        assert_eq!(Next::after(ms(40), 0, false), Next::Wait { pause: ms(120) });
        assert_eq!(Next::after(SHORT, 0, false), Next::Wait { pause: Duration::ZERO });
        assert_eq!(Next::after(ms(40), 7, false), Next::Wait { pause: Duration::ZERO });
        assert_eq!(Next::after(ms(40), 7, true), Next::Plan);
    }
}
