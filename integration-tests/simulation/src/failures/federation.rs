//! The broker's state and planner, clusters in which things fail, and agents that do what they are asked.

use std::collections::{BTreeMap, BTreeSet};

use comity_core::command::{LeaseOutcome, ProposedPlacement};
use comity_core::demand::RequestSpec;
use comity_core::lease::{EndReason, LeaseState};
use comity_core::limits::{MAX_PLACEMENTS_PER_PLAN, MAX_RECLAIMS_PER_COMMAND};
use comity_core::reclaim::ReclaimReason;
use comity_core::scheduler::{reclaims_at, spared};
use comity_core::{LeaseId, Millis, PriorityName, Refusal, RequestId, Timestamp};

use super::MINUTE;
use super::report::FailuresReport;
use super::truth::Truth;
use crate::broker::{Broker, Reclaimed};
use crate::random::Random;
use crate::reclaim::{DONORS, Terms, cluster, clusters, policy, request};

/// Requests that wait before no more are submitted.
const BACKLOG: usize = 6;
/// One lease of so many is not prepared before the next event.
const SLOW: u64 = 3;

/// A federation in log time.
pub(super) struct Federation {
    pub(super) broker: Broker,
    pub(super) truth: Truth,
    /// Leases with notice: not to be stopped before this.
    promised: BTreeMap<LeaseId, u64>,
    /// Leases that agents take their time to prepare.
    slow: Vec<LeaseId>,
    /// Requests that were hit and have not been served since.
    pub(super) hit: BTreeSet<RequestId>,
    pub(super) report: FailuresReport,
}

impl Federation {
    pub(super) fn new(seed: u64) -> Result<Self, Refusal> {
        let terms = policy(&[Terms::default(); DONORS.len()]);
        let mut federation = Self {
            broker: Broker::joined(terms, &clusters()?, Timestamp(1_000_000_000))?,
            truth: Truth::default(),
            promised: BTreeMap::new(),
            slow: Vec::new(),
            hit: BTreeSet::new(),
            report: FailuresReport { seed, ..FailuresReport::default() },
        };
        federation.advertise()?;
        Ok(federation)
    }

    /// Log time in milliseconds.
    pub(super) fn now(&self) -> u64 {
        self.broker.now().0
    }

    /// Queues a request, if not too many wait.
    pub(super) fn submit(&mut self, random: &mut Random) -> Result<(), Refusal> {
        if self.broker.state.queued_len() < BACKLOG {
            // None that preempts: its room is kept for it, which is another simulation. Short ones, so that there
            // mostly is a place for what is hit.
            let drawn = request(random)?;
            let (priority, duration) = (PriorityName::parse("normal", "priority")?, Millis(drawn.duration.0 / 4));
            let spec = RequestSpec { priority: Some(priority), duration, ..drawn };
            self.broker.ask(spec)?;
        }
        Ok(())
    }

    /// Calls back, spares, places and moves until nothing more happens, as the leader's loops do; then looks at what is
    /// left.
    pub(super) fn settle(&mut self) -> Result<(), Refusal> {
        for rounds in 1_u64.. {
            self.report.most_rounds = self.report.most_rounds.max(rounds);
            let revision = self.broker.state.revision;
            self.reclaim()?;
            let plan = self.broker.plan(MAX_PLACEMENTS_PER_PLAN);
            let reserved = plan.reserved.map_or_else(Vec::new, |reserved| reserved.donors);
            if !plan.placements.is_empty() {
                self.place(plan.placements)?;
            }
            self.clear()?;
            if self.broker.state.revision == revision {
                self.look(&reserved)?;
                break;
            }
        }
        Ok(())
    }

    fn reclaim(&mut self) -> Result<(), Refusal> {
        let spare = spared(&self.broker.state);
        let stay = self.broker.reclaim(spare, Vec::new())?.spared;
        self.report.spared += stay.len() as u64;
        stay.iter().for_each(|lease| _ = self.promised.remove(lease));
        for (name, _, minutes) in DONORS {
            let mut reclaims = reclaims_at(&self.broker.state, &cluster(name)?, self.broker.now());
            reclaims.truncate(MAX_RECLAIMS_PER_COMMAND);
            let Reclaimed { leases, refused, .. } = self.broker.reclaim(Vec::new(), reclaims.clone())?;
            self.report.refused += refused as u64;
            for reclaim in reclaims.iter().filter(|reclaim| leases.contains(&reclaim.lease)) {
                self.note_call(reclaim.lease, &reclaim.reason, minutes * MINUTE);
            }
        }
        Ok(())
    }

    fn note_call(&mut self, id: LeaseId, reason: &ReclaimReason, notice: u64) {
        let Some(lease) = self.broker.state.leases.get(&id) else { return };
        self.report.for_nothing += u64::from(!self.truth.fails(lease, reason, self.now()));
        self.hit.insert(lease.request);
        let ended = lease.state == LeaseState::Ending;
        let report = &mut self.report;
        match reason {
            _ if ended && lease.reclaim.is_none() => report.never_in_force += 1,
            ReclaimReason::DonorSilent => report.given_up += 1,
            _ if ended => report.lost += 1,
            _ => report.reclaimed += 1,
        }
        if ended {
            self.promised.remove(&id);
            self.note_end(id);
        } else {
            self.promised.insert(id, self.now() + notice);
        }
    }

    fn note_end(&mut self, id: LeaseId) {
        let Some(lease) = self.broker.state.leases.get(&id) else { return };
        let request = self.broker.state.requests.get(&lease.request);
        let went_on = request.is_some_and(|request| request.lease != Some(id));
        *(if went_on { &mut self.report.went_on } else { &mut self.report.waited_again }) += 1;
    }

    fn place(&mut self, placements: Vec<ProposedPlacement>) -> Result<(), Refusal> {
        for id in self.broker.place(placements)? {
            self.report.placed += 1;
            let Some(lease) = self.broker.state.leases.get(&id) else { continue };
            let donor = &lease.placement.donor;
            let devices = lease.placement.nodes.iter().flat_map(|(node, part)| {
                part.devices.keys().map(move |index| ((donor.clone(), node.clone()), *index as usize))
            });
            let unwell = devices.filter(|(place, index)| !self.truth.is_well(place, *index, self.now())).count();
            self.report.placed_on_unwell += unwell as u64;
            self.hit.remove(&lease.request);
            if id.0 % SLOW == 0 {
                self.slow.push(id);
            } else {
                self.broker.report_ready(id)?;
            }
        }
        Ok(())
    }

    fn prepare_slow(&mut self) -> Result<(), Refusal> {
        for id in std::mem::take(&mut self.slow) {
            if self.broker.state.leases.get(&id).is_some_and(|lease| lease.state.is_held()) {
                self.broker.report_ready(id)?;
            }
        }
        Ok(())
    }

    /// Agents that are heard take down what ends.
    fn clear(&mut self) -> Result<(), Refusal> {
        for id in self.broker.ending() {
            let donor = self.broker.state.leases.get(&id).map(|lease| &lease.placement.donor);
            if donor.is_some_and(|donor| !self.truth.silent.contains_key(donor)) {
                self.broker.report(id, &LeaseOutcome::Clean)?;
            }
        }
        Ok(())
    }

    /// Lets time pass, and what falls due in it happen.
    pub(super) fn pass(&mut self, span: Millis) -> Result<(), Refusal> {
        let until = Timestamp(self.now() + span.0);
        self.prepare_slow()?;
        while let Some(due) = self.broker.due(until) {
            self.broker.pass(due);
            self.broker.expire()?;
            self.note_ends();
            self.settle()?;
            self.prepare_slow()?;
        }
        self.broker.pass(until);
        // Log time is that of entries: one that changes nothing brings it here.
        self.broker.expire()?;
        self.settle()
    }

    /// Looks at those that had notice and are in force no more.
    fn note_ends(&mut self) {
        let over =
            |id: &LeaseId| self.broker.state.leases.get(id).is_none_or(|lease| lease.state != LeaseState::Reclaiming);
        let over: Vec<LeaseId> = self.promised.keys().copied().filter(over).collect();
        for id in over {
            let Some(promised) = self.promised.remove(&id) else { continue };
            let reason = self.broker.state.leases.get(&id).and_then(|lease| lease.end_reason);
            if matches!(reason, Some(EndReason::Reclaimed | EndReason::DonorLost)) {
                self.report.stopped_before_grace += u64::from(self.now() < promised);
                self.note_end(id);
            }
        }
    }
}
