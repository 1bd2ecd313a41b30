//! Calls leases back for their donors, and spares those whose reason has gone away.

use std::time::Duration;

use comity_core::command::{ProposedReclaim, ReclaimLeases};
use comity_core::limits::MAX_RECLAIMS_PER_COMMAND;
use comity_core::scheduler::{Reclaimer, spared};
use comity_core::{Command, LeaseId, ReplyBody};

use crate::context::Context;
use crate::group::{Consistency, Unavailable};

/// Also without a change, for policy has dates.
const AT_LEAST_EVERY: Duration = Duration::from_secs(10);
/// Changes that come close together are looked at together: an offer changes with each pod that starts.
const TOGETHER: Duration = Duration::from_millis(250);
/// A look goes through all devices of all donors, and nothing is applied meanwhile: it takes at most one part in so
/// many of the time, however large the federation is.
const ONE_PART_IN: u32 = 10;
/// Shortest sleep while a need is watched that has not lasted yet.
const WATCHING: Duration = Duration::from_millis(500);

/// Looks on each change of the state, for as long as this broker leads.
pub(super) async fn run(context: &Context) {
    let mut revision = context.group.revision();
    let mut reclaimer = Reclaimer::default();
    loop {
        revision.mark_unchanged();
        let began = context.clock.elapsed();
        if let Err(error) = look(context, &mut reclaimer).await {
            tracing::warn!(%error, "nothing is being reclaimed yet");
        }
        let took = context.clock.elapsed().saturating_sub(began);
        let now = context.now();
        let again = reclaimer.look_again_at().map(|at| Duration::from_millis(at.since(now).0).max(WATCHING));
        let sleep = again.map_or(AT_LEAST_EVERY, |again| again.min(AT_LEAST_EVERY));
        tokio::select! {
            changed = revision.changed() => if changed.is_err() { return },
            () = context.clock.sleep(sleep) => {}
        }
        context.clock.sleep(TOGETHER.max(took * (ONE_PART_IN - 1))).await;
    }
}

async fn look(context: &Context, reclaimer: &mut Reclaimer) -> Result<(), Unavailable> {
    let now = context.now();
    let found = context.group.read(Consistency::Stale, |state| {
        let now = now.max(state.log_time);
        (spared(state), reclaimer.look(state, now))
    });
    let (mut spare, reclaims) = found.await?;
    spare.truncate(MAX_RECLAIMS_PER_COMMAND);
    reclaim(context, spare, reclaims).await
}

/// Proposes it, if it is anything.
pub(super) async fn reclaim(
    context: &Context,
    spare: Vec<LeaseId>,
    reclaims: Vec<ProposedReclaim>,
) -> Result<(), Unavailable> {
    if spare.is_empty() && reclaims.is_empty() {
        return Ok(());
    }
    match crate::tasks::propose(context, Command::ReclaimLeases(ReclaimLeases { spare, reclaims })).await?.reply {
        Ok(ReplyBody::Reclaimed { leases, spared, refused }) => {
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
