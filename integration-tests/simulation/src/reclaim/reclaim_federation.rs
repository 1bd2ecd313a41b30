//! Drives the broker while local work and lending terms change, and records its reclaims.

use std::collections::{BTreeMap, BTreeSet};

use comity_core::command::LeaseOutcome;
use comity_core::feasibility::spared;
use comity_core::inventory::{Device, NodeMap};
use comity_core::limits::{MAX_ATTEMPTS, MAX_PLACEMENTS_PER_PLAN};
use comity_core::proposal::{ProposedPlacement, ProposedReclaim};
use comity_core::reclaim::ReclaimReason;
use comity_core::scheduler::reclaims_at;
use comity_core::{Millis, Refusal, Timestamp};
use comity_types::{ClusterId, EndReason, LeaseId, LeaseState, NodeId, RequestId};

use super::checker::Donor;
use super::reclaim_report::ReclaimReport;
use super::request::request;
use super::terms::{DONORS, Terms, cluster, clusters, node, policy};
use crate::broker::{Broker, Reclaimed};
use crate::random::Random;
use crate::time::MINUTE;

/// Queue length at which no more requests are submitted.
const RECLAIM_QUEUE_LIMIT: usize = 12;

/// A federation in simulated time, and independent records of it.
pub(super) struct ReclaimFederation {
    broker: Broker,
    terms: [Terms; DONORS.len()],
    /// GPUs in local use by node.
    local: BTreeMap<(ClusterId, NodeId), usize>,
    /// Leases being reclaimed, and the earliest time in milliseconds at which they may stop.
    notice_until: BTreeMap<LeaseId, u64>,
    /// Leases whose origin reported saved work.
    saved: BTreeSet<LeaseId>,
    pub(super) report: ReclaimReport,
}

impl ReclaimFederation {
    pub(super) fn new(seed: u64) -> Result<Self, Refusal> {
        let terms = [Terms::default(); DONORS.len()];
        let mut broker = Broker::joined(policy(&terms), &clusters()?, Timestamp(1_000_000_000))?;
        for (name, nodes, _) in DONORS {
            let nodes: Result<NodeMap, Refusal> =
                (0..nodes).map(|number| Ok((NodeId::parse(&format!("n{number}"), "node")?, node()))).collect();
            broker.advertise(&cluster(name)?, nodes?)?;
        }
        Ok(Self {
            broker,
            terms,
            local: BTreeMap::new(),
            notice_until: BTreeMap::new(),
            saved: BTreeSet::new(),
            report: ReclaimReport { seed, ..ReclaimReport::default() },
        })
    }

    /// Submits a request unless the queue is long.
    pub(super) fn submit(&mut self, random: &mut Random) -> Result<(), Refusal> {
        if self.broker.state.queued_len() < RECLAIM_QUEUE_LIMIT {
            self.broker.submit_spec(request(random)?)?;
        }
        Ok(())
    }

    /// Changes the local work of one donor.
    pub(super) fn change_local_work(&mut self, random: &mut Random) -> Result<(), Refusal> {
        let cluster = cluster(DONORS[random.below(DONORS.len())].0)?;
        for (node, has) in self.broker.offered(&cluster).into_iter().flatten() {
            let takes = random.below(has.devices.len() + 1) * random.below(2);
            self.local.insert((cluster.clone(), node.clone()), takes);
        }
        Ok(())
    }

    /// Advertises every donor's local use, which takes free devices first.
    fn advertise(&mut self) -> Result<(), Refusal> {
        for (name, ..) in DONORS {
            let cluster = cluster(name)?;
            let Some(held) = self.broker.offered(&cluster) else { continue };
            let mut nodes = held.clone();
            for (id, node) in &mut nodes {
                let lent = self.broker.state.occupancy().node(&cluster, id);
                let is_lent = |index: u32| lent.is_some_and(|lent| lent.devices.contains_key(&index));
                let mut devices: Vec<(u32, &mut Device)> = (0..).zip(&mut node.devices).collect();
                devices.sort_by_key(|(index, _)| (is_lent(*index), std::cmp::Reverse(*index)));
                let takes = self.local.get(&(cluster.clone(), id.clone())).copied().unwrap_or(0);
                for (at, (_, device)) in devices.into_iter().enumerate() {
                    device.local_use_milli = if at < takes { 1_000 } else { 0 };
                }
            }
            if nodes != *held {
                self.broker.advertise(&cluster, nodes)?;
            }
        }
        Ok(())
    }

    /// Changes the terms of one donor.
    pub(super) fn change_terms(&mut self, random: &mut Random) -> Result<(), Refusal> {
        let at = random.below(DONORS.len());
        self.terms[at] = match random.below(5) {
            0 => Terms { withdrawn: true, ..Terms::default() },
            1 | 2 => Terms { most: Some(1 + random.bits() % 6), ..Terms::default() },
            _ => Terms::default(),
        };
        self.broker.apply_policy(policy(&self.terms))
    }

    /// Reclaims, spares, places and moves until the state is stable, as the leader's loops do.
    pub(super) fn settle(&mut self) -> Result<(), Refusal> {
        loop {
            let revision = self.broker.state.revision;
            self.advertise()?;
            let spare = spared(&self.broker.state);
            self.reclaim(spare, Vec::new())?;
            for (name, ..) in DONORS {
                let proposed = reclaims_at(&self.broker.state, &cluster(name)?, self.broker.now());
                self.reclaim(Vec::new(), proposed)?;
            }
            let plan = self.broker.plan(MAX_PLACEMENTS_PER_PLAN);
            let reserved = plan.reserved.map_or_else(Vec::new, |reserved| reserved.donors);
            let placed = if plan.placements.is_empty() { Vec::new() } else { self.place(plan.placements)? };
            // The leader proposes a whole plan before any agent reports a lease ready.
            self.reclaim(Vec::new(), plan.reclaims)?;
            for lease in placed {
                self.broker.report_ready(lease)?;
            }
            if self.broker.state.revision == revision {
                self.count_missed_moves(&reserved)?;
                return Ok(());
            }
        }
    }

    fn place(&mut self, placements: Vec<ProposedPlacement>) -> Result<Vec<LeaseId>, Refusal> {
        let rooms: BTreeSet<RequestId> =
            self.broker.state.queued().filter(|(_, request)| request.room_at.is_some()).map(|(id, _)| id).collect();
        let leases = self.broker.place(placements)?;
        for id in &leases {
            let request = self.broker.state.leases.get(id).map(|lease| lease.request);
            self.report.rooms_taken += u64::from(request.is_some_and(|request| rooms.contains(&request)));
        }
        Ok(leases)
    }

    fn reclaim(&mut self, spare: Vec<LeaseId>, reclaims: Vec<ProposedReclaim>) -> Result<(), Refusal> {
        if spare.is_empty() && reclaims.is_empty() {
            return Ok(());
        }
        for ((name, ..), terms) in DONORS.iter().zip(self.terms) {
            for too_much in Donor::of(&self.broker.state, &cluster(name)?, terms).takes_too_much_by_set(&reclaims) {
                self.report.sets_checked += 1;
                self.report.more_than_needed += u64::from(too_much);
            }
        }
        let asked_to_spare = !spare.is_empty();
        let Reclaimed { leases, spared, refused } = self.broker.reclaim(spare, reclaims.clone())?;
        // Sparing one lease may make another reclaim necessary again; each was right when it was proposed.
        self.report.refused += if asked_to_spare { 0 } else { refused as u64 };
        self.report.spared += spared.len() as u64;
        spared.iter().for_each(|lease| _ = self.notice_until.remove(lease));
        for reclaim in reclaims.iter().filter(|reclaim| leases.contains(&reclaim.lease)) {
            self.record_reclaim(reclaim);
        }
        Ok(())
    }

    /// Records the notice of a reclaimed lease, by the donor's terms and the request.
    fn record_reclaim(&mut self, reclaim: &ProposedReclaim) {
        let Some(lease) = self.broker.state.leases.get(&reclaim.lease) else { return };
        let donor = lease.placement.donor.as_str();
        let minutes = DONORS.iter().find(|(name, ..)| *name == donor).map_or(0, |(_, _, minutes)| *minutes);
        let asked = self.broker.state.requests.get(&lease.request).and_then(|request| request.spec.preemptible);
        let (report, mut notice) = (&mut self.report, minutes * MINUTE);
        report.reclaimed += 1;
        report.gpus_reclaimed += lease.placement.milli() / 1_000;
        match reclaim.reason {
            ReclaimReason::LocalNeed => report.for_local_need += 1,
            ReclaimReason::PolicyChanged { .. } => report.for_policy += 1,
            // This simulation has no failures.
            ReclaimReason::DeviceFailed { .. }
            | ReclaimReason::NodeFailed { .. }
            | ReclaimReason::DonorSilent
            | ReclaimReason::Revoked { .. }
            | ReclaimReason::UserRevoked { .. } => {}
            ReclaimReason::Preempted { .. } | ReclaimReason::Migration { .. } | ReclaimReason::BorrowedQuota { .. } => {
                report.for_requests += 1;
                notice = notice.max(asked.map_or(0, |asked| asked.grace.0));
            }
        }
        self.notice_until.insert(reclaim.lease, self.broker.now().0 + notice);
    }

    /// Counts reclaimed leases without a new place that fit on a donor outside `reserved`.
    fn count_missed_moves(&mut self, reserved: &[ClusterId]) -> Result<(), Refusal> {
        for ((name, ..), terms) in DONORS.iter().zip(self.terms) {
            let id = cluster(name)?;
            let donor = Donor::of(&self.broker.state, &id, terms);
            let kept = self.broker.state.queued().any(|(_, request)| request.room_at.as_ref() == Some(&id));
            if reserved.contains(&id) || kept || !donor.is_quiet() {
                continue;
            }
            let left = self.broker.state.reclaiming().filter(|(lease, reclaimed)| {
                let request = self.broker.state.requests.get(&reclaimed.request);
                reclaimed.moved_to.is_none()
                    && request.is_some_and(|request| {
                        request.attempts < MAX_ATTEMPTS && donor.fits(&request.spec, &BTreeSet::new(), Some(*lease))
                    })
            });
            self.report.could_have_moved += left.count() as u64;
        }
        Ok(())
    }

    /// Reports saved work for some reclaimed leases that support checkpoints.
    pub(super) fn report_some_saved(&mut self, random: &mut Random) -> Result<(), Refusal> {
        let says = |id: RequestId| {
            let spec = self.broker.state.requests.get(&id).map(|request| &request.spec);
            spec.and_then(|spec| spec.preemptible).is_some_and(|preemptible| preemptible.checkpoint)
        };
        let ready = self.broker.state.reclaiming().filter(|(_, lease)| says(lease.request)).map(|(id, _)| id);
        for id in ready.collect::<Vec<_>>() {
            if random.below(3) == 0 {
                self.saved.insert(id);
                self.broker.report_saved(id)?;
            }
        }
        self.record_ends();
        self.settle()
    }

    /// Advances time by `span` and applies the events that become due; some donors tear down late.
    pub(super) fn advance(&mut self, span: Millis, random: &mut Random) -> Result<(), Refusal> {
        let until = Timestamp(self.broker.now().0 + span.0);
        while let Some(due) = self.broker.next_due_until(until) {
            self.broker.advance_to(due);
            self.broker.expire()?;
            self.record_ends();
            self.report_some_teardowns(random)?;
            self.settle()?;
        }
        self.broker.advance_to(until);
        self.report_some_teardowns(random)?;
        self.settle()
    }

    fn report_some_teardowns(&mut self, random: &mut Random) -> Result<(), Refusal> {
        for id in self.broker.ending() {
            if random.below(4) > 0 {
                self.broker.report(id, &LeaseOutcome::Clean)?;
            }
        }
        Ok(())
    }

    /// Records reclaimed leases that have ended since the last call.
    fn record_ends(&mut self) {
        let over =
            |id: &LeaseId| self.broker.state.leases.get(id).is_none_or(|lease| lease.state != LeaseState::Reclaiming);
        let over: Vec<LeaseId> = self.notice_until.keys().copied().filter(over).collect();
        for id in over {
            let Some(promised) = self.notice_until.remove(&id) else { continue };
            let Some(lease) = self.broker.state.leases.get(&id) else { continue };
            if !matches!(lease.end_reason, Some(EndReason::Reclaimed | EndReason::Preempted)) {
                // Its duration ended first.
                continue;
            }
            if self.saved.contains(&id) {
                self.report.saved += 1;
            } else {
                self.report.at_deadline += 1;
                self.report.stopped_before_grace += u64::from(self.broker.now().0 < promised);
            }
            let request = self.broker.state.requests.get(&lease.request);
            let moved = request.is_some_and(|request| request.lease != Some(id));
            *(if moved { &mut self.report.moved } else { &mut self.report.waited_again }) += 1;
        }
    }

    pub(super) fn finish(self) -> ReclaimReport {
        self.report
    }
}
