//! Which of several leases, so that no more is taken back than needed.

use crate::feasibility::reclaim_checks::preemption::priority;
use crate::model::id::LeaseId;
use crate::model::lease::Lease;
use crate::state::State;

/// Up to this many leases, all combinations are tried; of more, the best found in order is taken.
pub(crate) const EXACT_MOST: usize = 10;

/// Priority, and whether its request did not say that it may be preempted: the lowest are being reclaimed first.
type Rank = (u32, bool);

/// A lease that may be reclaimed.
#[derive(Clone, Copy)]
pub(crate) struct Victim<'a> {
    pub(crate) id: LeaseId,
    pub(crate) lease: &'a Lease,
    rank: Rank,
    milli: u64,
    /// Thousandths of GPUs × milliseconds since it began or its work was last saved.
    lost: u128,
}

impl<'a> Victim<'a> {
    pub(crate) fn of(state: &State, id: LeaseId, lease: &'a Lease) -> Self {
        let milli = lease.placement.milli();
        let request = state.requests.get(&lease.request);
        let keeps = request.and_then(|request| request.spec.preemptible).is_none();
        let since = lease.active_at.max(lease.checkpointed_at).unwrap_or(state.log_time);
        let lost = u128::from(milli) * u128::from(state.log_time.since(since).0);
        Self { id, lease, rank: (priority(state, lease), keeps), milli, lost }
    }
}

impl Victim<'_> {
    /// Who is being reclaimed first.
    pub(crate) fn in_order(&self, other: &Self) -> std::cmp::Ordering {
        let key = |victim: &Self| (victim.rank, victim.lost, victim.milli, victim.id);
        key(self).cmp(&key(other))
    }
}

/// What calling a set back costs, compared field by field: thousandths of GPUs of the highest rank in it, then of the
/// next; how many leases; work lost; ids.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Cost {
    by_rank: Vec<(Rank, u64)>,
    leases: usize,
    lost: u128,
    ids: Vec<LeaseId>,
}

impl Cost {
    /// Whether it takes less, or fewer, whatever work is lost.
    pub(crate) fn takes_less_than(&self, other: &Self) -> bool {
        (&self.by_rank, self.leases) < (&other.by_rank, other.leases)
    }

    fn of(set: &[Victim<'_>]) -> Self {
        let mut by_rank = std::collections::BTreeMap::new();
        for victim in set {
            *by_rank.entry(victim.rank).or_insert(0_u64) += victim.milli;
        }
        Self {
            by_rank: by_rank.into_iter().rev().collect(),
            leases: set.len(),
            lost: set.iter().map(|victim| victim.lost).sum(),
            ids: set.iter().map(|victim| victim.id).collect(),
        }
    }
}

/// The cheapest set that is `enough`; `None` if not even all are. Of up to [`EXACT_MOST`] it is the cheapest there is.
/// Of more, it is the shortest beginning of their order that is enough, without those of it that are not needed.
///
/// More is never worse: what is enough stays so with a lease more.
pub(crate) fn choose<'a>(
    mut candidates: Vec<Victim<'a>>,
    enough: &mut dyn FnMut(&[Victim<'a>]) -> bool,
) -> Option<(Cost, Vec<Victim<'a>>)> {
    candidates.sort_by(Victim::in_order);
    let found = in_order(&candidates, enough)?;
    let cost = Cost::of(&found);
    if candidates.len() > EXACT_MOST {
        return Some((cost, found));
    }
    Some(exact(&candidates, (cost, found), enough))
}

/// The shortest beginning that is enough, less what is not needed of it, the dearest first.
fn in_order<'a>(candidates: &[Victim<'a>], enough: &mut dyn FnMut(&[Victim<'a>]) -> bool) -> Option<Vec<Victim<'a>>> {
    if !enough(candidates) {
        return None;
    }
    let (mut least, mut most) = (0, candidates.len());
    while least < most {
        let middle = least.midpoint(most);
        if enough(&candidates[..middle]) {
            most = middle;
        } else {
            least = middle + 1;
        }
    }
    let mut set = candidates[..most].to_vec();
    for at in (0..set.len()).rev() {
        let victim = set.remove(at);
        if !enough(&set) {
            set.insert(at, victim);
        }
    }
    Some(set)
}

/// All sets that cost less than `best`, the cheapest first. A part of a set that was not enough is not enough either.
fn exact<'a>(
    candidates: &[Victim<'a>],
    best: (Cost, Vec<Victim<'a>>),
    enough: &mut dyn FnMut(&[Victim<'a>]) -> bool,
) -> (Cost, Vec<Victim<'a>>) {
    let members = |bits: u32| -> Vec<Victim<'a>> {
        candidates.iter().enumerate().filter(|(at, _)| bits & (1 << at) != 0).map(|(_, victim)| *victim).collect()
    };
    let all = (1_u32 << candidates.len()) - 1;
    // Those without which no set is enough rule out most sets at once.
    let mut lacking: Vec<u32> = (0..candidates.len()).map(|at| all & !(1 << at)).collect();
    lacking.retain(|bits| !enough(&members(*bits)));
    let mut cheaper: Vec<(Cost, u32)> =
        (0..=all).map(|bits| (Cost::of(&members(bits)), bits)).filter(|(cost, _)| *cost < best.0).collect();
    cheaper.sort();
    for (cost, bits) in cheaper {
        if lacking.iter().any(|lacking| bits & !lacking == 0) {
            continue;
        }
        let set = members(bits);
        if enough(&set) {
            return (cost, set);
        }
        lacking.push(bits);
    }
    best
}
