//! An independent checker of reclaims: computes a donor's shortage and free GPUs, and finds the cheapest set of leases
//! by brute force.

use std::collections::{BTreeMap, BTreeSet};

use comity_core::State;
use comity_core::demand::RequestSpec;
use comity_core::lease::Lease;
use comity_core::proposal::ProposedReclaim;
use comity_core::reclaim::ReclaimReason;
use comity_types::{ClusterId, LeaseId, LeaseState, NodeId, RequestId};

use super::terms::{DONOR_NODE_GPUS, PRIORITIES, Terms};

/// The current state of one donor.
pub(super) struct Donor<'s> {
    state: &'s State,
    terms: Terms,
    /// GPUs not used by local work, by node.
    left: BTreeMap<&'s NodeId, u64>,
    leases: Vec<(LeaseId, &'s Lease)>,
}

impl<'s> Donor<'s> {
    pub(super) fn of(state: &'s State, id: &ClusterId, terms: Terms) -> Self {
        let offer = state.clusters.get(id).and_then(|cluster| cluster.offer.as_ref());
        let local = |node: &comity_core::inventory::Node| {
            node.devices.iter().filter(|device| device.local_use_milli > 0).map(|_| 1_u64).sum::<u64>()
        };
        let nodes = offer.into_iter().flat_map(|offer| &offer.nodes);
        let leases = state.live_leases().filter(|(_, lease)| lease.placement.donor == *id && lease.occupies());
        Self {
            state,
            terms,
            left: nodes.map(|(node, has)| (node, DONOR_NODE_GPUS - local(has))).collect(),
            leases: leases.collect(),
        }
    }

    /// GPUs lent by node, without the leases in `gone`.
    fn lent(&self, gone: &BTreeSet<LeaseId>) -> BTreeMap<&NodeId, u64> {
        let mut lent = BTreeMap::new();
        for (_, lease) in self.leases.iter().filter(|(id, _)| !gone.contains(id)) {
            for (node, part) in &lease.placement.nodes {
                *lent.entry(node).or_default() += part.devices.len() as u64;
            }
        }
        lent
    }

    /// GPUs that leases hold but local work needs, without the leases in `gone`.
    fn short(&self, gone: &BTreeSet<LeaseId>) -> u64 {
        let lent = self.lent(gone);
        lent.into_iter().map(|(node, lent)| lent.saturating_sub(self.left.get(node).copied().unwrap_or(0))).sum()
    }

    fn over(&self, gone: &BTreeSet<LeaseId>) -> u64 {
        let lent: u64 = self.lent(gone).values().sum();
        self.terms.most.map_or(0, |most| lent.saturating_sub(most))
    }

    /// Whether a request fits under the donor's terms, on one node if its topology demands that.
    pub(super) fn fits(&self, spec: &RequestSpec, gone: &BTreeSet<LeaseId>, uncounted: Option<LeaseId>) -> bool {
        let lent = self.lent(gone);
        let free = self.left.iter().map(|(node, left)| left.saturating_sub(lent.get(node).copied().unwrap_or(0)));
        let wanted = u64::from(spec.gpus.count);
        let room = if spec.topology.same_node { free.max().unwrap_or(0) } else { free.sum() };
        let counts: u64 = {
            let uncounted: BTreeSet<LeaseId> = gone.iter().copied().chain(uncounted).collect();
            self.lent(&uncounted).values().sum()
        };
        let donor_allowed = spec.deny_donors.is_empty() && spec.allow_donors.is_empty();
        donor_allowed
            && !self.terms.withdrawn
            && self.terms.most.is_none_or(|most| counts + wanted <= most)
            && room >= wanted
    }

    /// Whether no lease is being reclaimed for a request here.
    pub(super) fn is_quiet(&self) -> bool {
        self.leaving().all(|(_, lease)| !self.leaves_for_a_request(lease))
    }

    /// Leases that end or are being reclaimed.
    fn leaving(&self) -> impl Iterator<Item = (LeaseId, &'s Lease)> {
        let leaves = |lease: &Lease| matches!(lease.state, LeaseState::Ending | LeaseState::Reclaiming);
        self.leases.iter().copied().filter(move |(_, lease)| leaves(lease))
    }

    /// Whether a lease leaves for a request that still waits for its place.
    fn leaves_for_a_request(&self, lease: &Lease) -> bool {
        match lease.reclaim.as_ref().map(|reclaim| &reclaim.reason) {
            Some(ReclaimReason::Preempted { by } | ReclaimReason::Migration { by }) => {
                self.state.requests.get(by).is_some_and(|request| request.waits() && request.room_at.is_some())
            }
            _ => false,
        }
    }

    /// Leases that leave, but not for a request that still waits for their place.
    fn leaving_anyway(&self) -> BTreeSet<LeaseId> {
        self.leaving().filter(|(_, lease)| !self.leaves_for_a_request(lease)).map(|(id, _)| id).collect()
    }

    fn rank(&self, lease: &Lease) -> (u32, bool) {
        let request = self.state.requests.get(&lease.request);
        let class = request.and_then(|request| request.spec.priority.as_ref()).map(ToString::to_string);
        let value = PRIORITIES.iter().find(|(name, _)| Some(*name) == class.as_deref()).map_or(0, |(_, value)| *value);
        (value, request.is_none_or(|request| request.spec.preemptible.is_none()))
    }

    /// GPUs by rank, highest rank first. A lexicographically lower list is cheaper.
    fn cost(&self, set: &[LeaseId]) -> Vec<((u32, bool), u64)> {
        let mut by_rank: BTreeMap<(u32, bool), u64> = BTreeMap::new();
        for (_, lease) in self.leases.iter().filter(|(id, _)| set.contains(id)) {
            *by_rank.entry(self.rank(lease)).or_default() += lease.placement.milli() / 1_000;
        }
        by_rank.into_iter().rev().collect()
    }

    /// For each proposed set of this donor, whether a cheaper set would have sufficed.
    pub(super) fn takes_too_much_by_set(&self, proposed: &[ProposedReclaim]) -> Vec<bool> {
        let of = |wanted: &dyn Fn(&ReclaimReason) -> bool| -> Vec<LeaseId> {
            let here = proposed.iter().filter(|reclaim| self.leases.iter().any(|(id, _)| *id == reclaim.lease));
            here.filter(|reclaim| wanted(&reclaim.reason)).map(|reclaim| reclaim.lease).collect()
        };
        let in_force = |lease: &Lease| matches!(lease.state, LeaseState::Active | LeaseState::Suspect);
        let mut gone = self.leaving_anyway();
        gone.extend(of(
            &|reason| matches!(reason, ReclaimReason::PolicyChanged { code, .. } if code != "donor-exhausted"),
        ));
        let mut judged = Vec::new();
        let local = of(&|reason| *reason == ReclaimReason::LocalNeed);
        if !local.is_empty() {
            judged.push(self.takes_too_much(&local, &gone, &in_force, &|gone| self.short(gone)));
            gone.extend(&local);
        }
        let over =
            of(&|reason| matches!(reason, ReclaimReason::PolicyChanged { code, .. } if code == "donor-exhausted"));
        if !over.is_empty() {
            judged.push(self.takes_too_much(&over, &gone, &in_force, &|gone| self.over(gone)));
        }
        let asked = proposed.iter().filter_map(|reclaim| match &reclaim.reason {
            ReclaimReason::Preempted { by } => Some(*by),
            _ => None,
        });
        for by in asked.collect::<BTreeSet<RequestId>>() {
            let set = of(&|reason| *reason == ReclaimReason::Preempted { by });
            let Some(request) = self.state.requests.get(&by).filter(|_| !set.is_empty()) else { continue };
            let value = PRIORITIES[2].1;
            let may = |lease: &Lease| in_force(lease) && !self.rank(lease).1 && self.rank(lease).0 < value;
            let all: BTreeSet<LeaseId> = self.leaving().map(|(id, _)| id).collect();
            let lacks = |gone: &BTreeSet<LeaseId>| u64::from(!self.fits(&request.spec, gone, None));
            judged.push(self.takes_too_much(&set, &all, &may, &lacks));
        }
        judged
    }

    /// Whether the set does not suffice, or a cheaper set does.
    fn takes_too_much(
        &self,
        set: &[LeaseId],
        gone: &BTreeSet<LeaseId>,
        may: &dyn Fn(&Lease) -> bool,
        short: &dyn Fn(&BTreeSet<LeaseId>) -> u64,
    ) -> bool {
        let candidates: Vec<LeaseId> =
            self.leases.iter().filter(|(id, lease)| may(lease) && !gone.contains(id)).map(|(id, _)| *id).collect();
        let with = |set: &[LeaseId]| short(&gone.iter().copied().chain(set.iter().copied()).collect());
        let least = with(&candidates);
        let (reaches, own) = (with(set), self.cost(set));
        let cheaper = (0..1_u64 << candidates.len().min(20)).any(|bits| {
            let other: Vec<LeaseId> =
                candidates.iter().enumerate().filter(|(at, _)| bits & (1 << at) != 0).map(|(_, id)| *id).collect();
            let cost = self.cost(&other);
            (cost < own || (cost == own && other.len() < set.len())) && with(&other) == least
        });
        reaches != least || cheaper
    }
}
