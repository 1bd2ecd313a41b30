//! The broker's state and planner, clusters in which things fail, and agents that do what they are asked.

use std::collections::{BTreeMap, BTreeSet};

use comity_core::command::{
    AdvertiseOffer, ApplyPolicy, Expire, InviteCluster, JoinCluster, LeaseOutcome, MarkClusters, PlaceRequests,
    ReclaimLeases, ReportLease, SubmitRequest,
};
use comity_core::data::DataSite;
use comity_core::demand::{Delivery, RequestSpec};
use comity_core::inventory::{FaultClass, Node, Offer};
use comity_core::lease::{EndReason, LeaseState};
use comity_core::limits::{MAX_PLACEMENTS_PER_COMMAND, MAX_RECLAIMS_PER_COMMAND};
use comity_core::log::LOG_FORMAT;
use comity_core::matcher::{Planner, reclaims_at, spared};
use comity_core::reclaim::ReclaimReason;
use comity_core::{
    Actor, ClusterId, Command, LeaseId, LogEnvelope, Millis, NodeId, PriorityName, Refusal, ReplyBody, RequestId,
    State, Timestamp,
};
use comity_policy::{BundleSource, SourceFile};

use super::MINUTE;
use super::report::FailuresReport;
use super::truth::{Broken, DONOR_LOST_AFTER, Place, Truth};
use crate::random::Random;
use crate::reclaim::{DONORS, ORIGINS, Terms, node, policy, request};

/// Requests that wait before no more are submitted.
const BACKLOG: usize = 6;
/// One lease of so many is not prepared before the next event.
const SLOW: u64 = 3;
/// Donors that may be silent at a time: of more the brokers would think that it is they who hear badly.
const MOST_SILENT: usize = 2;

/// A federation in log time.
pub(super) struct Federation {
    state: State,
    planner: Planner,
    now: u64,
    truth: Truth,
    generations: BTreeMap<ClusterId, u64>,
    /// Leases with notice: not to be stopped before this.
    promised: BTreeMap<LeaseId, u64>,
    /// Leases that agents take their time to prepare.
    slow: Vec<LeaseId>,
    /// Requests that were hit and have not been served since.
    hit: BTreeSet<RequestId>,
    pub(super) report: FailuresReport,
}

fn cluster(name: &str) -> Result<ClusterId, Refusal> {
    ClusterId::parse(name, "cluster")
}

impl Federation {
    pub(super) fn new(seed: u64) -> Result<Self, Refusal> {
        let mut federation = Self {
            state: State::default(),
            planner: Planner::default(),
            now: 1_000_000_000,
            truth: Truth::default(),
            generations: BTreeMap::new(),
            promised: BTreeMap::new(),
            slow: Vec::new(),
            hit: BTreeSet::new(),
            report: FailuresReport { seed, ..FailuresReport::default() },
        };
        let text = policy(&[Terms::default(); DONORS.len()]);
        let files = vec![SourceFile { path: "failures.yaml".to_owned(), text }];
        federation.apply(Command::ApplyPolicy(ApplyPolicy { source: BundleSource { files, commit: None } }))?;
        let mut heard = Vec::new();
        for name in DONORS.iter().map(|(name, ..)| *name).chain(ORIGINS) {
            let (cluster, secret_sha256) = (cluster(name)?, format!("{name:0>64}"));
            federation.apply(Command::InviteCluster(InviteCluster {
                cluster: cluster.clone(),
                secret_sha256: secret_sha256.clone(),
                ttl: Millis::from_hours(1),
                replace: false,
            }))?;
            federation.apply(Command::JoinCluster(JoinCluster {
                cluster: cluster.clone(),
                secret_sha256,
                identity_key: format!("ed25519:{name}"),
                certificate_not_after: Timestamp(u64::MAX),
            }))?;
            heard.push(cluster);
        }
        federation.apply(Command::MarkClusters(MarkClusters { heard, silent: Vec::new() }))?;
        federation.advertise()?;
        Ok(federation)
    }

    /// Queues a request, if not too many wait.
    pub(super) fn submit(&mut self, random: &mut Random) -> Result<(), Refusal> {
        if self.state.queued_len() < BACKLOG {
            // None that preempts: its room is kept for it, which is another simulation. Short ones, so that there mostly is a
            // place for what is hit.
            let drawn = request(random)?;
            let (priority, duration) = (PriorityName::parse("normal", "priority")?, Millis(drawn.duration.0 / 4));
            let spec = RequestSpec { priority: Some(priority), duration, ..drawn };
            let submitted_by = format!("spiffe://reclaims.example/user/{}", spec.tenant);
            self.apply(Command::SubmitRequest(SubmitRequest { spec, submitted_by }))?;
        }
        Ok(())
    }

    /// Something fails, or what had failed gets well: the more has failed, the more often.
    pub(super) fn fail_or_heal(&mut self, random: &mut Random) -> Result<(), Refusal> {
        self.report.events += 1;
        let broken = self.truth.broken();
        if random.below(8) < broken.len().min(6) {
            let broken = broken[random.below(broken.len())].clone();
            // Donors are silent for longer than a node restarts, some of them until they are given up.
            if !matches!(broken, Broken::Silent(_)) || random.below(6) == 0 {
                self.heal(broken)?;
            }
        } else {
            self.fail(random)?;
        }
        self.advertise()
    }

    fn heal(&mut self, broken: Broken) -> Result<(), Refusal> {
        match broken {
            Broken::Device(place, index) => _ = self.truth.faults.remove(&(place, index)),
            Broken::NotReady(place) => _ = self.truth.not_ready.remove(&place),
            Broken::Gone(place) => _ = self.truth.gone.remove(&place),
            Broken::Silent(donor) => {
                self.truth.silent.remove(&donor);
                self.apply(Command::MarkClusters(MarkClusters { heard: vec![donor], silent: Vec::new() }))?;
            }
        }
        Ok(())
    }

    fn fail(&mut self, random: &mut Random) -> Result<(), Refusal> {
        let (name, nodes, _) = DONORS[random.below(DONORS.len())];
        let donor = cluster(name)?;
        let place: Place = (donor.clone(), NodeId::parse(&format!("n{}", random.below(nodes)), "node")?);
        let what = random.below(16);
        // One device of all falls ill far more often than the others.
        if what >= 8 {
            let (donor, _, _) = DONORS[0];
            return self.fall_ill((cluster(donor)?, NodeId::parse("n0", "node")?), 0, random);
        }
        if self.truth.silent.contains_key(&donor) || self.truth.gone.contains_key(&place) {
            // Of what happens there nobody hears.
            return Ok(());
        }
        match what {
            0 if self.truth.silent.len() < MOST_SILENT => {
                self.truth.silent.insert(donor.clone(), self.now);
                self.apply(Command::MarkClusters(MarkClusters { heard: Vec::new(), silent: vec![donor] }))?;
            }
            1 => _ = self.truth.gone.insert(place, self.now),
            2 | 3 => {
                if self.truth.not_ready.insert(place.clone()) {
                    self.truth.node_falls(&place, self.now);
                }
            }
            _ => return self.fall_ill(place, random.below(4), random),
        }
        Ok(())
    }

    fn fall_ill(&mut self, place: Place, index: usize, random: &mut Random) -> Result<(), Refusal> {
        if self.truth.silent.contains_key(&place.0) || self.truth.gone.contains_key(&place) {
            return Ok(());
        }
        let classes = [FaultClass::Degraded, FaultClass::Degraded, FaultClass::Lost, FaultClass::Application];
        let class = classes[random.below(4)];
        let is_new = self.truth.faults.insert((place.clone(), index), class).is_none_or(|was| !was.withdraws());
        // While its node does not answer, nobody counts it.
        if is_new && class.withdraws() && !self.truth.not_ready.contains(&place) {
            self.truth.falls(&place, index, self.now);
        }
        Ok(())
    }

    /// Each donor that is not silent says what it has.
    fn advertise(&mut self) -> Result<(), Refusal> {
        for (name, count, _) in DONORS {
            let donor = cluster(name)?;
            if self.truth.silent.contains_key(&donor) {
                continue;
            }
            let mut nodes: BTreeMap<NodeId, Node> = BTreeMap::new();
            for number in 0..count {
                let id = NodeId::parse(&format!("n{number}"), "node")?;
                let place = (donor.clone(), id.clone());
                if self.truth.gone.contains_key(&place) {
                    continue;
                }
                let mut has = node();
                has.ready = !self.truth.not_ready.contains(&place);
                for (index, device) in has.devices.iter_mut().enumerate() {
                    device.fault = self.truth.fault(&place, index);
                    device.healthy = !self.truth.is_ill(&place, index);
                }
                nodes.insert(id, has);
            }
            let held = self.state.clusters.get(&donor).and_then(|cluster| cluster.offer.as_ref());
            if held.is_some_and(|held| held.nodes == nodes) {
                continue;
            }
            let generation = self.generations.entry(donor.clone()).or_default();
            *generation += 1;
            let deliveries = BTreeSet::from([Delivery::Namespace]);
            let offer = Offer { generation: *generation, nodes, deliveries, data: DataSite::default() };
            self.apply(Command::AdvertiseOffer(AdvertiseOffer { cluster: donor, offer }))?;
        }
        Ok(())
    }

    /// Calls back, spares, places and moves until nothing more happens, as the leader's loops do; then looks at what is left.
    pub(super) fn settle(&mut self) -> Result<(), Refusal> {
        for rounds in 1_u64.. {
            self.report.most_rounds = self.report.most_rounds.max(rounds);
            let revision = self.state.revision;
            self.call_back()?;
            let plan = self.planner.plan(&self.state, MAX_PLACEMENTS_PER_COMMAND);
            let reserved = plan.reserved.map_or_else(Vec::new, |reserved| reserved.donors);
            if !plan.placements.is_empty() {
                self.place(plan.placements)?;
            }
            self.clear()?;
            if self.state.revision == revision {
                self.look(&reserved)?;
                break;
            }
        }
        Ok(())
    }

    fn call_back(&mut self) -> Result<(), Refusal> {
        let spare = spared(&self.state);
        if !spare.is_empty() {
            let reply = self.apply(Command::ReclaimLeases(ReclaimLeases { spare, reclaims: Vec::new() }))?;
            if let ReplyBody::Reclaimed { spared, .. } = reply {
                self.report.spared += spared.len() as u64;
                spared.iter().for_each(|lease| _ = self.promised.remove(lease));
            }
        }
        for (name, _, minutes) in DONORS {
            let mut reclaims = reclaims_at(&self.state, &cluster(name)?, Timestamp(self.now));
            reclaims.truncate(MAX_RECLAIMS_PER_COMMAND);
            if reclaims.is_empty() {
                continue;
            }
            let command = ReclaimLeases { spare: Vec::new(), reclaims: reclaims.clone() };
            let ReplyBody::Reclaimed { leases, refused, .. } = self.apply(Command::ReclaimLeases(command))? else {
                continue;
            };
            self.report.refused += refused.len() as u64;
            for reclaim in reclaims.iter().filter(|reclaim| leases.contains(&reclaim.lease)) {
                self.note_call(reclaim.lease, &reclaim.reason, minutes * MINUTE);
            }
        }
        Ok(())
    }

    fn note_call(&mut self, id: LeaseId, reason: &ReclaimReason, notice: u64) {
        let Some(lease) = self.state.leases.get(&id) else { return };
        self.report.for_nothing += u64::from(!self.truth.fails(lease, reason, self.now));
        self.hit.insert(lease.request);
        let ended = lease.state == LeaseState::Ending;
        let report = &mut self.report;
        match reason {
            _ if ended && lease.reclaim.is_none() => report.never_in_force += 1,
            ReclaimReason::DonorSilent => report.given_up += 1,
            _ if ended => report.lost += 1,
            _ => report.called_back += 1,
        }
        if ended {
            self.promised.remove(&id);
            self.note_end(id);
        } else {
            self.promised.insert(id, self.now + notice);
        }
    }

    fn note_end(&mut self, id: LeaseId) {
        let Some(lease) = self.state.leases.get(&id) else { return };
        let request = self.state.requests.get(&lease.request);
        let went_on = request.is_some_and(|request| request.lease != Some(id));
        *(if went_on { &mut self.report.went_on } else { &mut self.report.waited_again }) += 1;
    }

    fn place(&mut self, placements: Vec<comity_core::command::ProposedPlacement>) -> Result<(), Refusal> {
        let reply = self.apply(Command::PlaceRequests(PlaceRequests { placements }))?;
        let ReplyBody::Placed { leases, refused } = reply else { return Ok(()) };
        if let Some((_, refusal)) = refused.into_iter().next() {
            return Err(refusal);
        }
        for id in leases {
            self.report.placed += 1;
            let Some(lease) = self.state.leases.get(&id) else { continue };
            let donor = &lease.placement.donor;
            let devices = lease.placement.nodes.iter().flat_map(|(node, part)| {
                part.devices.keys().map(move |index| ((donor.clone(), node.clone()), *index as usize))
            });
            let unwell = devices.filter(|(place, index)| !self.truth.is_well(place, *index, self.now)).count();
            self.report.placed_on_unwell += unwell as u64;
            self.hit.remove(&lease.request);
            if id.0 % SLOW == 0 {
                self.slow.push(id);
            } else {
                self.prepare(id)?;
            }
        }
        Ok(())
    }

    fn prepare(&mut self, lease: LeaseId) -> Result<(), Refusal> {
        self.tell(lease, &LeaseOutcome::Ready { namespace: "n".to_owned(), secret_name: "s".to_owned() })
    }

    fn prepare_slow(&mut self) -> Result<(), Refusal> {
        for id in std::mem::take(&mut self.slow) {
            if self.state.leases.get(&id).is_some_and(|lease| lease.state.is_held()) {
                self.prepare(id)?;
            }
        }
        Ok(())
    }

    /// Agents that are heard take down what ends.
    fn clear(&mut self) -> Result<(), Refusal> {
        let ending = self.state.live_leases().filter(|(_, lease)| lease.state == LeaseState::Ending);
        let heard = ending.filter(|(_, lease)| !self.truth.silent.contains_key(&lease.placement.donor));
        for id in heard.map(|(id, _)| id).collect::<Vec<_>>() {
            self.tell(id, &LeaseOutcome::Clean)?;
        }
        Ok(())
    }

    /// Nothing is left to be done that could be.
    fn look(&mut self, reserved: &[ClusterId]) -> Result<(), Refusal> {
        let missed = self.state.live_leases().filter(|(_, lease)| self.is_missed(lease)).count();
        self.report.missed += missed as u64;
        let chains = self.state.requests.values().flat_map(|request| request.chains(&self.state));
        self.report.longest_chain =
            self.report.longest_chain.max(chains.map(|chain| chain.len() as u64).max().unwrap_or(0));
        let mut quarantined = 0;
        for (name, count, _) in DONORS {
            let donor = cluster(name)?;
            let mut free: Vec<usize> = Vec::new();
            for number in 0..count {
                let place = (donor.clone(), NodeId::parse(&format!("n{number}"), "node")?);
                let lent = self.state.occupancy().node(&donor, &place.1);
                let is_free = |index: &usize| {
                    let at = u32::try_from(*index).unwrap_or(u32::MAX);
                    self.truth.is_well(&place, *index, self.now)
                        && !lent.is_some_and(|lent| lent.devices.contains_key(&at))
                };
                free.push((0..4).filter(is_free).count());
                quarantined +=
                    (0..4).filter(|index| self.truth.is_quarantined(&place, *index, self.now)).count() as u64;
            }
            if reserved.contains(&donor) {
                continue;
            }
            let fits = |spec: &RequestSpec| {
                let room = if spec.topology.same_node { free.iter().max().copied() } else { Some(free.iter().sum()) };
                room.unwrap_or(0) >= spec.gpus.count as usize
            };
            let lacks = |id: &&RequestId| {
                let Some(request) = self.state.requests.get(id) else { return false };
                let moves =
                    || request.chains(&self.state).flatten().any(|lease| request.may_replace(&self.state, lease));
                (request.waits() || moves()) && fits(&request.spec)
            };
            self.report.could_have_gone_on += self.hit.iter().filter(lacks).count() as u64;
        }
        self.report.most_quarantined = self.report.most_quarantined.max(quarantined);
        Ok(())
    }

    /// Whether a lease goes on where something has failed.
    fn is_missed(&self, lease: &comity_core::lease::Lease) -> bool {
        let donor = &lease.placement.donor;
        if matches!(lease.state, LeaseState::Reclaiming | LeaseState::Ending) {
            return false;
        }
        if let Some(since) = self.truth.silent.get(donor) {
            return self.now - since >= DONOR_LOST_AFTER;
        }
        lease.placement.nodes.iter().any(|(node, part)| {
            let place = (donor.clone(), node.clone());
            if self.truth.gone.contains_key(&place) {
                // Its agent has to have said so for a minute, and of a part of its nodes only.
                return false;
            }
            let ill = part.devices.keys().any(|index| self.truth.is_ill(&place, *index as usize));
            ill || self.truth.not_ready.contains(&place)
        })
    }

    /// Lets time pass, and what falls due in it happen.
    pub(super) fn pass(&mut self, span: Millis) -> Result<(), Refusal> {
        let until = self.now + span.0;
        self.prepare_slow()?;
        while let Some(due) = self.state.next_due().filter(|due| due.0 <= until) {
            self.now = self.now.max(due.0);
            self.apply(Command::Expire(Expire {}))?;
            self.note_ends();
            self.settle()?;
            self.prepare_slow()?;
        }
        self.now = until;
        // Log time is that of entries: one that changes nothing brings it here.
        self.apply(Command::Expire(Expire {}))?;
        self.settle()
    }

    /// Looks at those that had notice and are in force no more.
    fn note_ends(&mut self) {
        let over = |id: &LeaseId| self.state.leases.get(id).is_none_or(|lease| lease.state != LeaseState::Reclaiming);
        let over: Vec<LeaseId> = self.promised.keys().copied().filter(over).collect();
        for id in over {
            let Some(promised) = self.promised.remove(&id) else { continue };
            let reason = self.state.leases.get(&id).and_then(|lease| lease.end_reason);
            if matches!(reason, Some(EndReason::Reclaimed | EndReason::DonorLost)) {
                self.report.stopped_before_grace += u64::from(self.now < promised);
                self.note_end(id);
            }
        }
    }

    /// Both sides of a lease report the same.
    fn tell(&mut self, lease: LeaseId, outcome: &LeaseOutcome) -> Result<(), Refusal> {
        let Some(held) = self.state.leases.get(&lease) else { return Ok(()) };
        let fencing_token = held.fencing_token;
        for cluster in [held.placement.donor.clone(), held.origin.clone()] {
            let report = ReportLease { cluster, lease, fencing_token, outcome: outcome.clone() };
            self.apply(Command::ReportLease(report))?;
        }
        Ok(())
    }

    fn apply(&mut self, command: Command) -> Result<ReplyBody, Refusal> {
        let entry = LogEnvelope {
            format: LOG_FORMAT,
            actor: Actor::Leader(1),
            time: Timestamp(self.now),
            traceparent: String::new(),
            idempotency: None,
            command,
        };
        self.state.apply(&entry).reply
    }
}
