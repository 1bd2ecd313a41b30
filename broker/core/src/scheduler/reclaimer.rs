//! What the leader proposes for donors: what their local work needs, and what policy has withdrawn.

use std::collections::{BTreeMap, BTreeSet};

use crate::feasibility::reclaim_checks::failed::failures;
use crate::feasibility::reclaim_checks::limit;
use crate::feasibility::reclaim_checks::need::{Need, gone_for_local_work};
use crate::feasibility::reclaim_checks::terms::withdrawn;
use crate::model::id::{ClusterId, LeaseId};
use crate::model::lease::{Lease, LeaseState};
use crate::model::limits::MAX_RECLAIMS_PER_COMMAND;
use crate::model::proposal::ProposedReclaim;
use crate::model::reclaim::ReclaimReason;
use crate::model::time::{Millis, Timestamp};
use crate::scheduler::victims::{Victim, choose};
use crate::state::State;

/// How long a need must last before leases are being reclaimed for it: a pod that is gone again needs nothing.
const LASTS: Millis = Millis::from_secs(5);
/// A donor at which nothing changes is looked at as often: policy has dates.
const AT_LEAST_EVERY: Millis = Millis::from_mins(1);

/// Looks again and again; a donor at which nothing has changed is not looked at twice.
#[derive(Clone, Debug, Default)]
pub struct Reclaimer {
    policy: String,
    seen: BTreeMap<ClusterId, Seen>,
    /// What re-bases of log time had shifted when it looked last.
    shift_ms: i64,
}

#[derive(Clone, Debug)]
struct Seen {
    /// Generation of its offer, changes of what it lends, and leases that are being reclaimed.
    looks_like: (u64, u64, usize),
    at: Timestamp,
    /// Since when it needs something back.
    needs_since: Option<Timestamp>,
}

impl Reclaimer {
    /// What to reclaim at `now`, which is not before log time, at donors whose need has lasted.
    pub fn look(&mut self, state: &State, now: Timestamp) -> Vec<ProposedReclaim> {
        let hash = state.policy.as_ref().map_or("", |record| record.bundle.hash.as_str());
        if self.policy != hash {
            hash.clone_into(&mut self.policy);
            self.seen.clear();
        }
        if self.shift_ms != state.time_shift_ms {
            self.shift_ms = state.time_shift_ms;
            self.seen.clear();
        }
        self.seen.retain(|donor, _| state.clusters.contains_key(donor));
        let mut all = Vec::new();
        for (donor, cluster) in &state.clusters {
            let Some(offer) = &cluster.offer else { continue };
            let looks_like =
                (offer.generation, state.occupancy().changes(donor).count(), state.derived.reclaiming.len());
            let before = self.seen.get(donor);
            let same = before.is_some_and(|seen| {
                seen.looks_like == looks_like && seen.needs_since.is_none() && now.since(seen.at) < AT_LEAST_EVERY
            });
            if same {
                continue;
            }
            let (failed, found): (Vec<_>, Vec<_>) =
                reclaims_at(state, donor, now).into_iter().partition(|reclaim| reclaim.reason.is_failure());
            // What failed does not get better by waiting; and who is spared in time loses nothing.
            all.extend(failed);
            let needs_since = (!found.is_empty()).then(|| before.and_then(|seen| seen.needs_since).unwrap_or(now));
            self.seen.insert(donor.clone(), Seen { looks_like, at: now, needs_since });
            if needs_since.is_some_and(|since| now.since(since) >= LASTS) {
                all.extend(found);
            }
            if all.len() >= MAX_RECLAIMS_PER_COMMAND {
                break;
            }
        }
        all.truncate(MAX_RECLAIMS_PER_COMMAND);
        all
    }

    /// When to look again though nothing changes: a need is being watched.
    #[must_use]
    pub fn look_again_at(&self) -> Option<Timestamp> {
        self.seen.values().filter_map(|seen| seen.needs_since).map(|since| since.after(LASTS)).min()
    }
}

/// What to reclaim at one donor at `now`, whether its need has lasted or not: what failed, what policy has withdrawn,
/// then for local work, then what is above the donor's limit.
#[must_use]
pub fn reclaims_at(state: &State, donor: &ClusterId, now: Timestamp) -> Vec<ProposedReclaim> {
    let lent = state.leases_of(donor).filter(|(_, lease)| {
        lease.placement.donor == *donor && matches!(lease.state, LeaseState::Active | LeaseState::Suspect)
    });
    let mut gone = gone_for_local_work(state, donor);
    let (mut reclaims, mut rest) = (Vec::new(), Vec::new());
    for (id, reason) in failures(state, donor) {
        reclaims.push(ProposedReclaim { lease: id, reason });
        gone.insert(id);
    }
    let well: Vec<(LeaseId, &Lease)> = lent.filter(|(id, _)| !gone.contains(id)).collect();
    for (id, lease) in well {
        if let Some(code) = withdrawn(state, lease, now) {
            reclaims
                .push(ProposedReclaim { lease: id, reason: ReclaimReason::PolicyChanged { code: code.to_owned() } });
            gone.insert(id);
        } else {
            rest.push(Victim::of(state, id, lease));
        }
    }
    // Who lends nothing that could be reclaimed needs nothing back: not all devices are looked at then.
    let need = if rest.is_empty() { None } else { Need::of(state, donor) };
    if let Some(need) = need {
        let concerned: Vec<Victim<'_>> = rest.iter().filter(|victim| need.concerns(victim.id)).copied().collect();
        for id in relieve(concerned, &mut gone, &|gone| need.short_milli(gone)) {
            reclaims.push(ProposedReclaim { lease: id, reason: ReclaimReason::LocalNeed });
        }
    }
    rest.retain(|victim| !gone.contains(&victim.id));
    for id in relieve(rest, &mut gone, &|gone| limit::over_milli(state, donor, gone)) {
        let reason = ReclaimReason::PolicyChanged { code: limit::CODE.to_owned() };
        reclaims.push(ProposedReclaim { lease: id, reason });
    }
    reclaims
}

/// The cheapest leases by which a shortage becomes as small as all of them could make it; they count as gone from then
/// on.
fn relieve(
    mut candidates: Vec<Victim<'_>>,
    gone: &mut BTreeSet<LeaseId>,
    short: &dyn Fn(&BTreeSet<LeaseId>) -> u64,
) -> Vec<LeaseId> {
    let now = short(gone);
    if now == 0 {
        return Vec::new();
    }
    let with = |set: &[Victim<'_>]| short(&gone.iter().copied().chain(set.iter().map(|victim| victim.id)).collect());
    // A lease that relieves nothing alone, where the whole is a sum of shortages, relieves nothing among others either.
    candidates.retain(|victim| with(&[*victim]) < now);
    let least = with(&candidates);
    let chosen = choose(candidates, &mut |set| with(set) == least);
    let chosen: Vec<LeaseId> = chosen.into_iter().flat_map(|(_, set)| set).map(|victim| victim.id).collect();
    gone.extend(&chosen);
    chosen
}
