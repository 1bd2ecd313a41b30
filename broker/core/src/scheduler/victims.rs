//! Chooses the leases to reclaim so that no more is taken back than needed.

use comity_types::LeaseId;

use crate::feasibility::reclaim_checks::preemption::priority;
use crate::model::lease::Lease;
use crate::state::State;

/// Up to this many candidates, all combinations are tried; beyond, a greedy choice is used.
pub(crate) const MAX_EXACT: usize = 10;

/// Priority, and whether the request is not marked preemptible. The lowest are reclaimed first.
type VictimRank = (u32, bool);

/// A lease that may be reclaimed.
#[derive(Clone, Copy)]
pub(crate) struct Victim<'a> {
    pub(crate) id: LeaseId,
    pub(crate) lease: &'a Lease,
    rank: VictimRank,
    milli: u64,
    /// Work lost: thousandths of GPUs × milliseconds since the start or the last checkpoint.
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
    pub(crate) fn cmp_preference(&self, other: &Self) -> std::cmp::Ordering {
        let key = |victim: &Self| (victim.rank, victim.lost, victim.milli, victim.id);
        key(self).cmp(&key(other))
    }
}

/// The cost of reclaiming a set, compared field by field: thousandths of GPUs by rank, highest rank first; number of
/// leases; work lost; ids.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct VictimCost {
    by_rank: Vec<(VictimRank, u64)>,
    leases: usize,
    lost: u128,
    ids: Vec<LeaseId>,
}

impl VictimCost {
    /// Compares without regard to work lost.
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

/// Leases to reclaim together, and what that costs.
#[derive(Clone)]
pub(crate) struct VictimSet<'a> {
    pub(crate) cost: VictimCost,
    pub(crate) victims: Vec<Victim<'a>>,
}

impl<'a> VictimSet<'a> {
    fn of(victims: Vec<Victim<'a>>) -> Self {
        Self { cost: VictimCost::of(&victims), victims }
    }
}

/// The cheapest set that is `enough`; `None` if not even all candidates are. Exact for up to [`MAX_EXACT`] candidates.
/// Otherwise the shortest prefix in order of preference that is enough, without superfluous members.
///
/// `enough` must be monotonic: a superset of a sufficient set is sufficient.
pub(crate) fn choose_victims<'a>(
    mut candidates: Vec<Victim<'a>>,
    enough: &mut dyn FnMut(&[Victim<'a>]) -> bool,
) -> Option<VictimSet<'a>> {
    candidates.sort_by(Victim::cmp_preference);
    let found = VictimSet::of(sufficient_prefix(&candidates, enough)?);
    if candidates.len() > MAX_EXACT {
        return Some(found);
    }
    cheapest_subset(&candidates, Some(found), &|_| true, enough)
}

/// The cheapest set that is `enough` and that one `may_take`, of at most [`MAX_EXACT`] candidates; `None` if there is none.
///
/// `enough` must be monotonic, and one may take any subset of a set that one may take.
pub(crate) fn choose_permitted<'a>(
    mut candidates: Vec<Victim<'a>>,
    may_take: &dyn Fn(&[Victim<'a>]) -> bool,
    enough: &mut dyn FnMut(&[Victim<'a>]) -> bool,
) -> Option<VictimSet<'a>> {
    candidates.sort_by(Victim::cmp_preference);
    if !enough(&candidates) {
        return None;
    }
    cheapest_subset(&candidates, None, may_take, enough)
}

/// The shortest sufficient prefix without superfluous members; the most expensive are dropped first.
fn sufficient_prefix<'a>(
    candidates: &[Victim<'a>],
    enough: &mut dyn FnMut(&[Victim<'a>]) -> bool,
) -> Option<Vec<Victim<'a>>> {
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

/// Tries all sets cheaper than `best`, cheapest first. A subset of an insufficient set is insufficient too.
fn cheapest_subset<'a>(
    candidates: &[Victim<'a>],
    best: Option<VictimSet<'a>>,
    may_take: &dyn Fn(&[Victim<'a>]) -> bool,
    enough: &mut dyn FnMut(&[Victim<'a>]) -> bool,
) -> Option<VictimSet<'a>> {
    let members = |bits: u32| -> Vec<Victim<'a>> {
        candidates.iter().enumerate().filter(|(at, _)| bits & (1 << at) != 0).map(|(_, victim)| *victim).collect()
    };
    let all = (1_u32 << candidates.len()) - 1;
    // Dropping one indispensable candidate makes any set insufficient: this rules out most sets at once.
    let mut insufficient: Vec<u32> = (0..candidates.len()).map(|at| all & !(1 << at)).collect();
    insufficient.retain(|bits| !enough(&members(*bits)));
    let costs = (0..=all).map(|bits| (VictimCost::of(&members(bits)), bits));
    let mut cheaper: Vec<(VictimCost, u32)> =
        costs.filter(|(cost, _)| best.as_ref().is_none_or(|best| *cost < best.cost)).collect();
    cheaper.sort();
    for (cost, bits) in cheaper {
        if insufficient.iter().any(|known| bits & !known == 0) {
            continue;
        }
        let victims = members(bits);
        if !may_take(&victims) {
            continue;
        }
        if enough(&victims) {
            return Some(VictimSet { cost, victims });
        }
        insufficient.push(bits);
    }
    best
}
