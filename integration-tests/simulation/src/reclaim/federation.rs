//! The broker's state and planner, with local work and terms that change, and agents that do what they are asked.

use std::collections::{BTreeMap, BTreeSet};

use comity_core::command::{
    AdvertiseOffer, ApplyPolicy, Expire, InviteCluster, JoinCluster, LeaseOutcome, MarkClusters, PlaceRequests,
    ProposedReclaim, ReclaimLeases, ReportLease, SubmitRequest,
};
use comity_core::data::DataSite;
use comity_core::demand::{Delivery, DeviceChoice, GpuDemand, RequestSpec, Share, Topology};
use comity_core::inventory::{Device, DeviceWiring, Node, NodeWiring, Offer, Sharing};
use comity_core::lease::{EndReason, LeaseState};
use comity_core::limits::{MAX_ATTEMPTS, MAX_PLACEMENTS_PER_COMMAND};
use comity_core::log::LOG_FORMAT;
use comity_core::matcher::{Planner, reclaims_at, spared};
use comity_core::reclaim::{Preemptible, ReclaimReason};
use comity_core::{
    Actor, ClassName, ClusterId, Command, LeaseId, LogEnvelope, Millis, NodeId, PriorityName, Refusal, ReplyBody,
    RequestId, State, TenantId, Timestamp,
};
use comity_policy::{BundleSource, SourceFile};

use super::MINUTE;
use super::judge::Donor;
use super::report::ReclaimReport;
use super::terms::{DONORS, GPUS_PER_NODE, ORIGINS, PRIORITIES, Terms, policy};
use crate::random::Random;

/// Requests that wait before no more are submitted.
const BACKLOG: usize = 12;

/// A federation in log time, and what is known of it beside the broker.
pub(super) struct Federation {
    state: State,
    planner: Planner,
    now: u64,
    terms: [Terms; DONORS.len()],
    /// GPUs that local work takes of each node.
    local: BTreeMap<(ClusterId, NodeId), usize>,
    /// Leases that are called back: not to be stopped before this.
    promised: BTreeMap<LeaseId, u64>,
    /// Leases whose origin said that their work is saved.
    saved: BTreeSet<LeaseId>,
    pub(super) report: ReclaimReport,
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
            terms: [Terms::default(); DONORS.len()],
            local: BTreeMap::new(),
            promised: BTreeMap::new(),
            saved: BTreeSet::new(),
            report: ReclaimReport { seed, ..ReclaimReport::default() },
        };
        federation.apply_policy()?;
        let mut heard = Vec::new();
        for name in DONORS.iter().map(|(name, ..)| *name).chain(ORIGINS) {
            let secret_sha256 = format!("{name:0>64}");
            let ttl = Millis::from_hours(1);
            let cluster = cluster(name)?;
            let invite =
                InviteCluster { cluster: cluster.clone(), secret_sha256: secret_sha256.clone(), ttl, replace: false };
            federation.apply(Command::InviteCluster(invite))?;
            federation.apply(Command::JoinCluster(JoinCluster {
                cluster: cluster.clone(),
                secret_sha256,
                identity_key: format!("ed25519:{name}"),
                certificate_not_after: Timestamp(u64::MAX),
            }))?;
            heard.push(cluster);
        }
        federation.apply(Command::MarkClusters(MarkClusters { heard, silent: Vec::new() }))?;
        for (name, nodes, _) in DONORS {
            let nodes: Result<BTreeMap<NodeId, Node>, Refusal> =
                (0..nodes).map(|number| Ok((NodeId::parse(&format!("n{number}"), "node")?, node()))).collect();
            let offer = Offer {
                generation: 1,
                nodes: nodes?,
                deliveries: BTreeSet::from([Delivery::Namespace]),
                data: DataSite::default(),
            };
            federation.apply(Command::AdvertiseOffer(AdvertiseOffer { cluster: cluster(name)?, offer }))?;
        }
        Ok(federation)
    }

    fn apply_policy(&mut self) -> Result<(), Refusal> {
        let files = vec![SourceFile { path: "reclaims.yaml".to_owned(), text: policy(&self.terms) }];
        self.apply(Command::ApplyPolicy(ApplyPolicy { source: BundleSource { files, commit: None } }))?;
        Ok(())
    }

    /// Queues a request, if not too many wait.
    pub(super) fn submit(&mut self, random: &mut Random) -> Result<(), Refusal> {
        if self.state.queued_len() >= BACKLOG {
            return Ok(());
        }
        let spec = request(random)?;
        let submitted_by = format!("spiffe://reclaims.example/user/{}", spec.tenant);
        self.apply(Command::SubmitRequest(SubmitRequest { spec, submitted_by }))?;
        Ok(())
    }

    /// Local work of one donor takes more or less.
    pub(super) fn work_locally(&mut self, random: &mut Random) -> Result<(), Refusal> {
        let cluster = cluster(DONORS[random.below(DONORS.len())].0)?;
        let offer = self.state.clusters.get(&cluster).and_then(|cluster| cluster.offer.as_ref());
        for (node, has) in offer.into_iter().flat_map(|offer| &offer.nodes) {
            let takes = random.below(has.devices.len() + 1) * random.below(2);
            self.local.insert((cluster.clone(), node.clone()), takes);
        }
        Ok(())
    }

    /// Each donor says what local work takes: of devices that are not lent first.
    fn advertise(&mut self) -> Result<(), Refusal> {
        for (name, ..) in DONORS {
            let cluster = cluster(name)?;
            let Some(held) = self.state.clusters.get(&cluster).and_then(|cluster| cluster.offer.clone()) else {
                continue;
            };
            let mut offer = held.clone();
            for (id, node) in &mut offer.nodes {
                let lent = self.state.occupancy().node(&cluster, id);
                let is_lent = |index: u32| lent.is_some_and(|lent| lent.devices.contains_key(&index));
                let mut devices: Vec<(u32, &mut Device)> = (0..).zip(&mut node.devices).collect();
                devices.sort_by_key(|(index, _)| (is_lent(*index), std::cmp::Reverse(*index)));
                let takes = self.local.get(&(cluster.clone(), id.clone())).copied().unwrap_or(0);
                for (at, (_, device)) in devices.into_iter().enumerate() {
                    device.local_use_milli = if at < takes { 1_000 } else { 0 };
                }
            }
            if offer != held {
                offer.generation += 1;
                self.apply(Command::AdvertiseOffer(AdvertiseOffer { cluster, offer }))?;
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
        self.apply_policy()
    }

    /// Calls back, spares, places and moves until nothing more happens, as the leader's loops do.
    pub(super) fn settle(&mut self) -> Result<(), Refusal> {
        loop {
            let revision = self.state.revision;
            self.advertise()?;
            let spare = spared(&self.state);
            self.call_back(spare, Vec::new())?;
            for (name, ..) in DONORS {
                let proposed = reclaims_at(&self.state, &cluster(name)?, Timestamp(self.now));
                self.call_back(Vec::new(), proposed)?;
            }
            let plan = self.planner.plan(&self.state, MAX_PLACEMENTS_PER_COMMAND);
            let reserved = plan.reserved.map_or_else(Vec::new, |reserved| reserved.donors);
            let placed = if plan.placements.is_empty() { Vec::new() } else { self.place(plan.placements)? };
            // A plan is proposed as a whole before any agent has prepared what it placed.
            self.call_back(Vec::new(), plan.reclaims)?;
            for lease in placed {
                self.tell(lease, &LeaseOutcome::Ready { namespace: "n".to_owned(), secret_name: "s".to_owned() })?;
            }
            if self.state.revision == revision {
                self.look_who_could_move(&reserved)?;
                return Ok(());
            }
        }
    }

    fn place(&mut self, placements: Vec<comity_core::command::ProposedPlacement>) -> Result<Vec<LeaseId>, Refusal> {
        let rooms: BTreeSet<RequestId> =
            self.state.queued().filter(|(_, request)| request.room_at.is_some()).map(|(id, _)| id).collect();
        let reply = self.apply(Command::PlaceRequests(PlaceRequests { placements }))?;
        let ReplyBody::Placed { leases, refused } = reply else { return Ok(Vec::new()) };
        if let Some((_, refusal)) = refused.into_iter().next() {
            return Err(refusal);
        }
        for id in &leases {
            let request = self.state.leases.get(id).map(|lease| lease.request);
            self.report.rooms_taken += u64::from(request.is_some_and(|request| rooms.contains(&request)));
        }
        Ok(leases)
    }

    fn call_back(&mut self, spare: Vec<LeaseId>, reclaims: Vec<ProposedReclaim>) -> Result<(), Refusal> {
        if spare.is_empty() && reclaims.is_empty() {
            return Ok(());
        }
        for ((name, ..), terms) in DONORS.iter().zip(self.terms) {
            for too_much in Donor::of(&self.state, &cluster(name)?, terms).judge(&reclaims) {
                self.report.sets_checked += 1;
                self.report.more_than_needed += u64::from(too_much);
            }
        }
        let asked_to_spare = !spare.is_empty();
        let reply = self.apply(Command::ReclaimLeases(ReclaimLeases { spare, reclaims: reclaims.clone() }))?;
        let ReplyBody::Reclaimed { leases, spared, refused } = reply else { return Ok(()) };
        // Sparing one lease may make the next one needed again; what is called back is right as it was proposed.
        self.report.refused += if asked_to_spare { 0 } else { refused.len() as u64 };
        self.report.spared += spared.len() as u64;
        spared.iter().for_each(|lease| _ = self.promised.remove(lease));
        for reclaim in reclaims.iter().filter(|reclaim| leases.contains(&reclaim.lease)) {
            self.note_call(reclaim);
        }
        Ok(())
    }

    /// What the lease was promised, by the donor's terms and the request.
    fn note_call(&mut self, reclaim: &ProposedReclaim) {
        let Some(lease) = self.state.leases.get(&reclaim.lease) else { return };
        let donor = lease.placement.donor.as_str();
        let minutes = DONORS.iter().find(|(name, ..)| *name == donor).map_or(0, |(_, _, minutes)| *minutes);
        let asked = self.state.requests.get(&lease.request).and_then(|request| request.spec.preemptible);
        let (report, mut notice) = (&mut self.report, minutes * MINUTE);
        report.gpus_called_back += lease.placement.milli() / 1_000;
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
        self.promised.insert(reclaim.lease, self.now + notice);
    }

    /// No lease stays without a new place where a donor, at which nobody else's room is being made, has one.
    fn look_who_could_move(&mut self, reserved: &[ClusterId]) -> Result<(), Refusal> {
        for ((name, ..), terms) in DONORS.iter().zip(self.terms) {
            let id = cluster(name)?;
            let donor = Donor::of(&self.state, &id, terms);
            let kept = self.state.queued().any(|(_, request)| request.room_at.as_ref() == Some(&id));
            if reserved.contains(&id) || kept || !donor.is_quiet() {
                continue;
            }
            let left = self.state.reclaiming().filter(|(lease, called_back)| {
                let request = self.state.requests.get(&called_back.request);
                called_back.moved_to.is_none()
                    && request.is_some_and(|request| {
                        request.attempts < MAX_ATTEMPTS && donor.fits(&request.spec, &BTreeSet::new(), Some(*lease))
                    })
            });
            self.report.could_have_moved += left.count() as u64;
        }
        Ok(())
    }

    /// Some of the work that is called back and can say so is saved.
    pub(super) fn save_some(&mut self, random: &mut Random) -> Result<(), Refusal> {
        let says = |id: RequestId| {
            let spec = self.state.requests.get(&id).map(|request| &request.spec);
            spec.and_then(|spec| spec.preemptible).is_some_and(|preemptible| preemptible.checkpoint)
        };
        let ready = self.state.reclaiming().filter(|(_, lease)| says(lease.request)).map(|(id, _)| id);
        for id in ready.collect::<Vec<_>>() {
            if random.below(3) == 0 {
                self.saved.insert(id);
                self.tell_from_origin(id, LeaseOutcome::Checkpointed)?;
            }
        }
        self.note_ends();
        self.settle()
    }

    /// Lets time pass, and what falls due in it happen. Some donors take their time to clear.
    pub(super) fn pass(&mut self, span: Millis, random: &mut Random) -> Result<(), Refusal> {
        let until = self.now + span.0;
        while let Some(due) = self.state.next_due().filter(|due| due.0 <= until) {
            self.now = self.now.max(due.0);
            self.apply(Command::Expire(Expire {}))?;
            self.note_ends();
            self.clear_some(random)?;
            self.settle()?;
        }
        self.now = until;
        self.clear_some(random)?;
        self.settle()
    }

    fn clear_some(&mut self, random: &mut Random) -> Result<(), Refusal> {
        let ending = self.state.live_leases().filter(|(_, lease)| lease.state == LeaseState::Ending).map(|(id, _)| id);
        for id in ending.collect::<Vec<_>>() {
            if random.below(4) > 0 {
                self.tell(id, &LeaseOutcome::Clean)?;
            }
        }
        Ok(())
    }

    /// Looks at those that were called back and are in force no more.
    fn note_ends(&mut self) {
        let over = |id: &LeaseId| self.state.leases.get(id).is_none_or(|lease| lease.state != LeaseState::Reclaiming);
        let over: Vec<LeaseId> = self.promised.keys().copied().filter(over).collect();
        for id in over {
            let Some(promised) = self.promised.remove(&id) else { continue };
            let Some(lease) = self.state.leases.get(&id) else { continue };
            if !matches!(lease.end_reason, Some(EndReason::Reclaimed | EndReason::Preempted)) {
                // Its term ran out before.
                continue;
            }
            if self.saved.contains(&id) {
                self.report.saved += 1;
            } else {
                self.report.at_deadline += 1;
                self.report.stopped_before_grace += u64::from(self.now < promised);
            }
            let request = self.state.requests.get(&lease.request);
            let moved = request.is_some_and(|request| request.lease != Some(id));
            *(if moved { &mut self.report.moved } else { &mut self.report.waited_again }) += 1;
        }
    }

    pub(super) fn finish(self) -> ReclaimReport {
        self.report
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

    fn tell_from_origin(&mut self, lease: LeaseId, outcome: LeaseOutcome) -> Result<(), Refusal> {
        let Some(held) = self.state.leases.get(&lease) else { return Ok(()) };
        let report = ReportLease { cluster: held.origin.clone(), lease, fencing_token: held.fencing_token, outcome };
        self.apply(Command::ReportLease(report))?;
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

/// Some request, of one to four GPUs for some hours.
pub(crate) fn request(random: &mut Random) -> Result<RequestSpec, Refusal> {
    let origin = ORIGINS[random.below(ORIGINS.len())];
    let grace = Millis(random.bits() % (20 * MINUTE));
    let preemptible = Preemptible { grace, checkpoint: random.below(2) == 0 };
    Ok(RequestSpec {
        tenant: TenantId::parse(origin, "tenant")?,
        origin: cluster(origin)?,
        gpus: GpuDemand {
            devices: DeviceChoice::Class(ClassName::parse("gpu", "class")?),
            share: Share::Whole,
            count: 1 + u32::try_from(random.below(4)).unwrap_or(0),
            cpu_milli_per_gpu: 1_000,
            memory_mib_per_gpu: 1_000,
        },
        topology: Topology { same_node: random.below(3) > 0, ..Topology::default() },
        members: None,
        spread_donors: false,
        data: Vec::new(),
        duration: Millis(30 * MINUTE + random.bits() % (8 * 60 * MINUTE)),
        allow_donors: Vec::new(),
        deny_donors: Vec::new(),
        delivery: Delivery::Namespace,
        target_namespace: "comity-leases".to_owned(),
        purpose: String::new(),
        priority: Some(PriorityName::parse(PRIORITIES[random.below(PRIORITIES.len())].0, "priority")?),
        not_before: None,
        start_by: None,
        preemptible: (random.below(4) > 0).then_some(preemptible),
    })
}

/// A node of four GPUs.
pub(crate) fn node() -> Node {
    let device = Device {
        product_name: "NVIDIA-H100-80GB-HBM3".to_owned(),
        architecture: "Hopper".to_owned(),
        memory_mib: 81_559,
        cuda_compute_capability: "9.0".to_owned(),
        driver_version: "550.107.02".to_owned(),
        sharing: Sharing::Exclusive,
        healthy: true,
        fault: None,
        local_use_milli: 0,
        resource_name: "nvidia.com/gpu".to_owned(),
        wiring: DeviceWiring::default(),
    };
    Node {
        cpu_milli: 128_000,
        memory_mib: 1_000_000,
        local_cpu_milli: 0,
        local_memory_mib: 0,
        devices: vec![device; usize::try_from(GPUS_PER_NODE).unwrap_or(0)].into(),
        schedulable: true,
        ready: true,
        wiring: NodeWiring::default(),
    }
}
