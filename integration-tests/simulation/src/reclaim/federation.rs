//! The broker's state and planner, with local work and terms that change, and agents that do what they are asked.

use std::collections::{BTreeMap, BTreeSet};

use comity_core::command::{LeaseOutcome, ProposedPlacement, ProposedReclaim};
use comity_core::inventory::{Device, NodeMap};
use comity_core::lease::{EndReason, LeaseState};
use comity_core::limits::{MAX_ATTEMPTS, MAX_PLACEMENTS_PER_PLAN};
use comity_core::reclaim::ReclaimReason;
use comity_core::scheduler::{reclaims_at, spared};
use comity_core::{ClusterId, LeaseId, Millis, NodeId, Refusal, RequestId, Timestamp};

use super::MINUTE;
use super::judge::Donor;
use super::report::ReclaimReport;
use super::request::request;
use super::terms::{DONORS, Terms, cluster, clusters, node, policy};
use crate::broker::{Broker, Reclaimed};
use crate::random::Random;

/// Requests that wait before no more are submitted.
const BACKLOG: usize = 12;

/// A federation in log time, and what is known of it beside the broker.
pub(super) struct Federation {
    broker: Broker,
    terms: [Terms; DONORS.len()],
    /// GPUs that local work takes of each node.
    local: BTreeMap<(ClusterId, NodeId), usize>,
    /// Leases that are being reclaimed: not to be stopped before this.
    promised: BTreeMap<LeaseId, u64>,
    /// Leases whose origin said that their work is saved.
    saved: BTreeSet<LeaseId>,
    pub(super) report: ReclaimReport,
}

impl Federation {
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
            promised: BTreeMap::new(),
            saved: BTreeSet::new(),
            report: ReclaimReport { seed, ..ReclaimReport::default() },
        })
    }

    /// Queues a request, if not too many wait.
    pub(super) fn submit(&mut self, random: &mut Random) -> Result<(), Refusal> {
        if self.broker.state.queued_len() < BACKLOG {
            self.broker.ask(request(random)?)?;
        }
        Ok(())
    }

    /// Local work of one donor takes more or less.
    pub(super) fn work_locally(&mut self, random: &mut Random) -> Result<(), Refusal> {
        let cluster = cluster(DONORS[random.below(DONORS.len())].0)?;
        for (node, has) in self.broker.offered(&cluster).into_iter().flatten() {
            let takes = random.below(has.devices.len() + 1) * random.below(2);
            self.local.insert((cluster.clone(), node.clone()), takes);
        }
        Ok(())
    }

    /// Each donor says what local work takes: of devices that are not lent first.
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

    /// The terms of one donor change.
    pub(super) fn change_terms(&mut self, random: &mut Random) -> Result<(), Refusal> {
        let at = random.below(DONORS.len());
        self.terms[at] = match random.below(5) {
            0 => Terms { withdrawn: true, ..Terms::default() },
            1 | 2 => Terms { most: Some(1 + random.bits() % 6), ..Terms::default() },
            _ => Terms::default(),
        };
        self.broker.apply_policy(policy(&self.terms))
    }

    /// Calls back, spares, places and moves until nothing more happens, as the leader's loops do.
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
            // A plan is proposed as a whole before any agent has prepared what it placed.
            self.reclaim(Vec::new(), plan.reclaims)?;
            for lease in placed {
                self.broker.report_ready(lease)?;
            }
            if self.broker.state.revision == revision {
                self.look_who_could_move(&reserved)?;
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
            for too_much in Donor::of(&self.broker.state, &cluster(name)?, terms).judge(&reclaims) {
                self.report.sets_checked += 1;
                self.report.more_than_needed += u64::from(too_much);
            }
        }
        let asked_to_spare = !spare.is_empty();
        let Reclaimed { leases, spared, refused } = self.broker.reclaim(spare, reclaims.clone())?;
        // Sparing one lease may make the next one needed again; what is being reclaimed is right as it was proposed.
        self.report.refused += if asked_to_spare { 0 } else { refused as u64 };
        self.report.spared += spared.len() as u64;
        spared.iter().for_each(|lease| _ = self.promised.remove(lease));
        for reclaim in reclaims.iter().filter(|reclaim| leases.contains(&reclaim.lease)) {
            self.note_call(reclaim);
        }
        Ok(())
    }

    /// What the lease was promised, by the donor's terms and the request.
    fn note_call(&mut self, reclaim: &ProposedReclaim) {
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
            // Nothing fails here.
            ReclaimReason::DeviceFailed { .. } | ReclaimReason::NodeFailed { .. } | ReclaimReason::DonorSilent => {}
            ReclaimReason::Preempted { .. } | ReclaimReason::Repair { .. } => {
                report.for_requests += 1;
                notice = notice.max(asked.map_or(0, |asked| asked.grace.0));
            }
        }
        self.promised.insert(reclaim.lease, self.broker.now().0 + notice);
    }

    /// No lease stays without a new place where a donor, at which nobody else's room is being made, has one.
    fn look_who_could_move(&mut self, reserved: &[ClusterId]) -> Result<(), Refusal> {
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

    /// Some of the work that is being reclaimed and can say so is saved.
    pub(super) fn save_some(&mut self, random: &mut Random) -> Result<(), Refusal> {
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
        self.note_ends();
        self.settle()
    }

    /// Lets time pass, and what falls due in it happen. Some donors take their time to clear.
    pub(super) fn pass(&mut self, span: Millis, random: &mut Random) -> Result<(), Refusal> {
        let until = Timestamp(self.broker.now().0 + span.0);
        while let Some(due) = self.broker.due(until) {
            self.broker.pass(due);
            self.broker.expire()?;
            self.note_ends();
            self.clear_some(random)?;
            self.settle()?;
        }
        self.broker.pass(until);
        self.clear_some(random)?;
        self.settle()
    }

    fn clear_some(&mut self, random: &mut Random) -> Result<(), Refusal> {
        for id in self.broker.ending() {
            if random.below(4) > 0 {
                self.broker.report(id, &LeaseOutcome::Clean)?;
            }
        }
        Ok(())
    }

    /// Looks at those that were reclaimed and are in force no more.
    fn note_ends(&mut self) {
        let over =
            |id: &LeaseId| self.broker.state.leases.get(id).is_none_or(|lease| lease.state != LeaseState::Reclaiming);
        let over: Vec<LeaseId> = self.promised.keys().copied().filter(over).collect();
        for id in over {
            let Some(promised) = self.promised.remove(&id) else { continue };
            let Some(lease) = self.broker.state.leases.get(&id) else { continue };
            if !matches!(lease.end_reason, Some(EndReason::Reclaimed | EndReason::Preempted)) {
                // Its term ran out before.
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
