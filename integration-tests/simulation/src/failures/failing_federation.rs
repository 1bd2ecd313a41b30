//! Drives the broker over clusters with failing hardware, and records its reactions.

use std::collections::{BTreeMap, BTreeSet};

use comity_core::command::LeaseOutcome;
use comity_core::demand::RequestSpec;
use comity_core::feasibility::spared;
use comity_core::limits::{MAX_PLACEMENTS_PER_PLAN, MAX_RECLAIMS_PER_COMMAND};
use comity_core::proposal::ProposedPlacement;
use comity_core::reclaim::ReclaimReason;
use comity_core::scheduler::reclaims_at;
use comity_core::{Millis, Refusal, Timestamp};
use comity_types::{EndReason, LeaseId, LeaseState, PriorityName, RequestId};

use super::failures_report::FailuresReport;
use super::ground_truth::GroundTruth;
use crate::broker::{Broker, Reclaimed};
use crate::random::Random;
use crate::reclaim::{DONORS, Terms, cluster, clusters, policy, request};
use crate::time::MINUTE;

/// Queue length at which no more requests are submitted.
const FAILING_QUEUE_LIMIT: usize = 6;
/// One lease in three becomes ready only after the next event.
const SLOW: u64 = 3;

/// A federation in simulated time.
pub(super) struct FailingFederation {
    pub(super) broker: Broker,
    pub(super) truth: GroundTruth,
    /// Leases with notice, and the earliest time in milliseconds at which they may stop.
    notice_until: BTreeMap<LeaseId, u64>,
    /// Leases that are not ready yet.
    slow: Vec<LeaseId>,
    /// Requests that lost their place to a failure and have no new one yet.
    pub(super) affected: BTreeSet<RequestId>,
    pub(super) report: FailuresReport,
}

impl FailingFederation {
    pub(super) fn new(seed: u64) -> Result<Self, Refusal> {
        let terms = policy(&[Terms::default(); DONORS.len()]);
        let mut federation = Self {
            broker: Broker::joined(terms, &clusters()?, Timestamp(1_000_000_000))?,
            truth: GroundTruth::default(),
            notice_until: BTreeMap::new(),
            slow: Vec::new(),
            affected: BTreeSet::new(),
            report: FailuresReport { seed, ..FailuresReport::default() },
        };
        federation.advertise()?;
        Ok(federation)
    }

    /// Simulated time in milliseconds.
    pub(super) fn now(&self) -> u64 {
        self.broker.now().0
    }

    /// Submits a request unless the queue is long.
    pub(super) fn submit(&mut self, random: &mut Random) -> Result<(), Refusal> {
        if self.broker.state.queued_len() < FAILING_QUEUE_LIMIT {
            // No preempting requests: they reserve capacity, which the simulation of reclaims covers. Short ones, so
            // that failed leases mostly find another place.
            let drawn = request(random)?;
            let (priority, duration) = (PriorityName::parse("normal", "priority")?, Millis(drawn.duration.0 / 4));
            let spec = RequestSpec { priority: Some(priority), duration, ..drawn };
            self.broker.submit_spec(spec)?;
        }
        Ok(())
    }

    /// Reclaims, spares, places and moves until the state is stable, as the leader's loops do; then checks the
    /// invariants.
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
            self.report_teardowns()?;
            if self.broker.state.revision == revision {
                self.check_invariants(&reserved)?;
                break;
            }
        }
        Ok(())
    }

    fn reclaim(&mut self) -> Result<(), Refusal> {
        let spare = spared(&self.broker.state);
        let stay = self.broker.reclaim(spare, Vec::new())?.spared;
        self.report.spared += stay.len() as u64;
        stay.iter().for_each(|lease| _ = self.notice_until.remove(lease));
        for (name, _, minutes) in DONORS {
            let mut reclaims = reclaims_at(&self.broker.state, &cluster(name)?, self.broker.now());
            reclaims.truncate(MAX_RECLAIMS_PER_COMMAND);
            let Reclaimed { leases, refused, .. } = self.broker.reclaim(Vec::new(), reclaims.clone())?;
            self.report.refused += refused as u64;
            for reclaim in reclaims.iter().filter(|reclaim| leases.contains(&reclaim.lease)) {
                self.record_reclaim(reclaim.lease, &reclaim.reason, minutes * MINUTE);
            }
        }
        Ok(())
    }

    fn record_reclaim(&mut self, id: LeaseId, reason: &ReclaimReason, notice: u64) {
        let Some(lease) = self.broker.state.leases.get(&id) else { return };
        self.report.for_nothing += u64::from(!self.truth.fails(lease, reason, self.now()));
        self.affected.insert(lease.request);
        let ended = lease.state == LeaseState::Ending;
        let report = &mut self.report;
        match reason {
            _ if ended && lease.reclaim.is_none() => report.never_in_force += 1,
            ReclaimReason::DonorSilent => report.given_up += 1,
            _ if ended => report.lost += 1,
            _ => report.reclaimed += 1,
        }
        if ended {
            self.notice_until.remove(&id);
            self.record_end(id);
        } else {
            self.notice_until.insert(id, self.now() + notice);
        }
    }

    fn record_end(&mut self, id: LeaseId) {
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
            let unusable = devices.filter(|(place, index)| !self.truth.is_usable(place, *index, self.now())).count();
            self.report.placed_on_unhealthy += unusable as u64;
            self.affected.remove(&lease.request);
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

    /// Reports the teardown of ending leases, for donors that are not silent.
    fn report_teardowns(&mut self) -> Result<(), Refusal> {
        for id in self.broker.ending() {
            let donor = self.broker.state.leases.get(&id).map(|lease| &lease.placement.donor);
            if donor.is_some_and(|donor| !self.truth.silent.contains_key(donor)) {
                self.broker.report(id, &LeaseOutcome::Clean)?;
            }
        }
        Ok(())
    }

    /// Advances time by `span` and applies the events that become due.
    pub(super) fn advance(&mut self, span: Millis) -> Result<(), Refusal> {
        let until = Timestamp(self.now() + span.0);
        self.prepare_slow()?;
        while let Some(due) = self.broker.next_due_until(until) {
            self.broker.advance_to(due);
            self.broker.expire()?;
            self.record_ends();
            self.settle()?;
            self.prepare_slow()?;
        }
        self.broker.advance_to(until);
        // The state's time is that of its last entry: this one advances it.
        self.broker.expire()?;
        self.settle()
    }

    /// Records leases with notice that have ended since the last call.
    fn record_ends(&mut self) {
        let over =
            |id: &LeaseId| self.broker.state.leases.get(id).is_none_or(|lease| lease.state != LeaseState::Reclaiming);
        let over: Vec<LeaseId> = self.notice_until.keys().copied().filter(over).collect();
        for id in over {
            let Some(notice_until) = self.notice_until.remove(&id) else { continue };
            let reason = self.broker.state.leases.get(&id).and_then(|lease| lease.end_reason);
            if matches!(reason, Some(EndReason::Reclaimed | EndReason::DonorLost)) {
                self.report.stopped_before_grace += u64::from(self.now() < notice_until);
                self.record_end(id);
            }
        }
    }
}
