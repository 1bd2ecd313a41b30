//! Proposes reclaims of leases for their donors, and spares leases whose reason has gone.

use std::collections::BTreeMap;
use std::time::Duration;

use comity_core::command::ReclaimLeases;
use comity_core::feasibility::spared;
use comity_core::limits::MAX_RECLAIMS_PER_COMMAND;
use comity_core::proposal::ProposedReclaim;
use comity_core::scheduler::Reclaimer;
use comity_core::{Command, ReplyBody};
use comity_types::LeaseId;

use crate::context::Context;
use crate::group::{Consistency, Unavailable};
use crate::tasks::MAX_POLICY_CHECK_INTERVAL;

/// Batches changes: an offer changes with each pod that starts.
const TOGETHER: Duration = Duration::from_millis(250);
/// A pass visits all devices of all donors and blocks apply. The pause is this many times as long as the pass, so
/// passes take at most 1/10 of the time.
const RECLAIM_PAUSE_FACTOR: u32 = 9;
/// Minimum sleep while a need has not lasted long enough.
const WATCHING: Duration = Duration::from_millis(500);

/// Runs on each change of the state while this broker leads.
pub(super) async fn run(context: &Context) {
    let mut revision = context.group.revision();
    let mut reclaimer = Reclaimer::default();
    loop {
        revision.mark_unchanged();
        let began = context.clock.elapsed();
        if let Err(error) = check(context, &mut reclaimer).await {
            tracing::warn!(%error, "nothing is being reclaimed yet");
        }
        let took = context.clock.elapsed().saturating_sub(began);
        let now = context.now();
        let again = reclaimer.next_due_at().map(|at| Duration::from_millis(at.since(now).0).max(WATCHING));
        let sleep = again.map_or(MAX_POLICY_CHECK_INTERVAL, |again| again.min(MAX_POLICY_CHECK_INTERVAL));
        tokio::select! {
            changed = revision.changed() => if changed.is_err() { return },
            () = context.clock.sleep(sleep) => {}
        }
        context.clock.sleep(TOGETHER.max(took * RECLAIM_PAUSE_FACTOR)).await;
    }
}

async fn check(context: &Context, reclaimer: &mut Reclaimer) -> Result<(), Unavailable> {
    let now = context.now();
    let found = context.group.read(Consistency::Stale, |state| {
        let now = now.max(state.log_time);
        (spared(state), reclaimer.due_reclaims(state, now))
    });
    let (mut spare, reclaims) = found.await?;
    spare.truncate(MAX_RECLAIMS_PER_COMMAND);
    reclaim(context, spare, reclaims).await
}

/// Proposes reclaims and spared leases, if any.
pub(super) async fn reclaim(
    context: &Context,
    spare: Vec<LeaseId>,
    reclaims: Vec<ProposedReclaim>,
) -> Result<(), Unavailable> {
    if spare.is_empty() && reclaims.is_empty() {
        return Ok(());
    }
    let reasons: BTreeMap<LeaseId, &'static str> =
        reclaims.iter().map(|proposed| (proposed.lease, proposed.reason.as_str())).collect();
    match crate::tasks::propose(context, Command::ReclaimLeases(ReclaimLeases { spare, reclaims })).await?.reply {
        Ok(ReplyBody::Reclaimed { leases, spared, refused }) => {
            for reason in leases.iter().filter_map(|lease| reasons.get(lease).copied()) {
                context.metrics.reclaimed(reason);
            }
            tracing::info!(reclaimed = ?leases, ?spared, "leases");
            for (lease, refusal) in refused {
                tracing::info!(%lease, code = refusal.code.as_str(), reason = %refusal.reason, "reclaim refused");
            }
        }
        Ok(_) => {}
        Err(refusal) => tracing::error!(%refusal, "the reclaims were refused as a whole"),
    }
    Ok(())
}
