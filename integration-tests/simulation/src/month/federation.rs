//! The broker's state and planner, with agents that do at once what they are asked.

use std::collections::{BTreeMap, BTreeSet};

use comity_core::command::{
    AdvertiseOffer, ApplyPolicy, Expire, InviteCluster, JoinCluster, LeaseOutcome, MarkClusters, PlaceRequests,
    ReportLease, SubmitRequest,
};
use comity_core::data::DataSite;
use comity_core::demand::{Delivery, DeviceChoice, GpuDemand, RequestSpec, Share, Topology};
use comity_core::inventory::{Device, DeviceWiring, Node, NodeWiring, Offer, Sharing};
use comity_core::lease::LeaseState;
use comity_core::limits::MAX_PLACEMENTS_PER_COMMAND;
use comity_core::log::LOG_FORMAT;
use comity_core::matcher::Planner;
use comity_core::refusal::Code;
use comity_core::{
    Actor, ClassName, ClusterId, Command, LeaseId, LogEnvelope, Millis, NodeId, Refusal, ReplyBody, State, TenantId,
    Timestamp,
};
use comity_policy::{BundleSource, SourceFile};

use super::DAY;
use super::demand::{Asked, is_working};
use super::report::Books;
use super::terms::{CENTRE, MEMBERS, TENANTS, policy};

const GPUS_PER_NODE: usize = 8;
/// GPUs that local work takes if it finds them free, in tenths of all, by day and by night.
const LOCAL_BY_DAY: usize = 6;
const LOCAL_BY_NIGHT: usize = 1;

/// A federation in log time.
pub(super) struct Federation {
    pub(super) state: State,
    planner: Planner,
    now: u64,
    clusters: Vec<ClusterId>,
    tenants: Vec<TenantId>,
    class: ClassName,
}

impl Federation {
    /// All members have joined and offer all they have.
    pub(super) fn new() -> Result<Self, Refusal> {
        let clusters: Result<_, _> = MEMBERS.iter().map(|member| ClusterId::parse(member.name, "cluster")).collect();
        let tenants: Result<_, _> = TENANTS.iter().map(|(name, ..)| TenantId::parse(name, "tenant")).collect();
        let mut federation = Self {
            state: State::default(),
            planner: Planner::default(),
            // A midnight, so that hours are those of the clock.
            now: 20_000 * DAY,
            clusters: clusters?,
            tenants: tenants?,
            class: ClassName::parse("gpu", "class")?,
        };
        let files = vec![SourceFile { path: "month.yaml".to_owned(), text: policy() }];
        federation.apply(Command::ApplyPolicy(ApplyPolicy { source: BundleSource { files, commit: None } }))?;
        for cluster in federation.clusters.clone() {
            let secret_sha256 = format!("{cluster:0>64}");
            let ttl = Millis::from_hours(1);
            let invite =
                InviteCluster { cluster: cluster.clone(), secret_sha256: secret_sha256.clone(), ttl, replace: false };
            federation.apply(Command::InviteCluster(invite))?;
            federation.apply(Command::JoinCluster(JoinCluster {
                cluster: cluster.clone(),
                secret_sha256,
                identity_key: format!("ed25519:{cluster}"),
                certificate_not_after: Timestamp(u64::MAX),
            }))?;
        }
        let heard = federation.clusters.clone();
        federation.apply(Command::MarkClusters(MarkClusters { heard, silent: Vec::new() }))?;
        for (cluster, member) in federation.clusters.clone().into_iter().zip(&MEMBERS) {
            let nodes: Result<BTreeMap<NodeId, Node>, Refusal> =
                (0..member.nodes).map(|number| Ok((NodeId::parse(&format!("n{number}"), "node")?, node()))).collect();
            let offer = Offer {
                generation: 1,
                nodes: nodes?,
                deliveries: BTreeSet::from([Delivery::Namespace]),
                data: DataSite::default(),
            };
            federation.apply(Command::AdvertiseOffer(AdvertiseOffer { cluster, offer }))?;
        }
        Ok(federation)
    }

    pub(super) fn now(&self) -> u64 {
        self.now
    }

    /// Requests of a tenant that wait.
    pub(super) fn waiting(&self, tenant: usize) -> usize {
        self.state.queued_of(&self.tenants[tenant])
    }

    /// GPUs that a tenant holds, in thousandths.
    pub(super) fn held_milli(&self, tenant: usize) -> u64 {
        self.state.usage().in_use(TENANTS[tenant].0, "", "", "").tenant_milli
    }

    /// GPUs that a member lends, in thousandths.
    pub(super) fn lent_milli(&self, member: usize) -> u64 {
        self.state.occupancy().lent_milli(&self.clusters[member])
    }

    /// Queues a request; false if its tenant has too many waiting.
    pub(super) fn submit(&mut self, tenant: usize, asked: &Asked) -> Result<bool, Refusal> {
        let spec = RequestSpec {
            tenant: self.tenants[tenant].clone(),
            origin: self.clusters[TENANTS[tenant].1].clone(),
            gpus: GpuDemand {
                devices: DeviceChoice::Class(self.class.clone()),
                share: Share::Whole,
                count: asked.gpus,
                cpu_milli_per_gpu: 4_000,
                memory_mib_per_gpu: 16_384,
            },
            topology: Topology { same_node: true, ..Topology::default() },
            members: None,
            spread_donors: false,
            data: Vec::new(),
            duration: Millis(asked.duration_ms),
            allow_donors: Vec::new(),
            deny_donors: Vec::new(),
            delivery: Delivery::Namespace,
            target_namespace: "comity-leases".to_owned(),
            purpose: String::new(),
            priority: None,
            not_before: None,
            start_by: None,
            preemptible: None,
        };
        let submitted_by = format!("spiffe://month.example/user/{}", TENANTS[tenant].0);
        match self.apply(Command::SubmitRequest(SubmitRequest { spec, submitted_by })) {
            Err(refusal) if refusal.code == Code::LimitReached => Ok(false),
            submitted => submitted.map(|_| true),
        }
    }

    /// Local work takes free GPUs by each member's clock; lent ones it leaves.
    pub(super) fn work_locally(&mut self, began: u64) -> Result<(), Refusal> {
        for (member, cluster) in self.clusters.clone().into_iter().enumerate() {
            let Some(mut offer) = self.state.clusters.get(&cluster).and_then(|cluster| cluster.offer.clone()) else {
                continue;
            };
            let tenths = if is_working(member, self.now - began) { LOCAL_BY_DAY } else { LOCAL_BY_NIGHT };
            if MEMBERS[member].name == CENTRE {
                continue;
            }
            let mut wanted = MEMBERS[member].nodes * GPUS_PER_NODE * tenths / 10;
            for (id, node) in &mut offer.nodes {
                let lent = self.state.occupancy().node(&cluster, id);
                for (index, device) in (0..).zip(&mut node.devices) {
                    let free = lent.is_none_or(|lent| !lent.devices.contains_key(&index));
                    device.local_use_milli = if free && wanted > 0 { 1_000 } else { 0 };
                    wanted -= usize::from(device.local_use_milli > 0);
                }
            }
            offer.generation += 1;
            self.apply(Command::AdvertiseOffer(AdvertiseOffer { cluster, offer }))?;
        }
        Ok(())
    }

    /// Lets what is due happen until `until`, and serves who waits whenever something has become free.
    pub(super) fn run_until(&mut self, until: u64, books: &mut Books) -> Result<(), Refusal> {
        while let Some(due) = self.state.next_due().filter(|due| due.0 <= until) {
            self.pass(due.0, books);
            self.apply(Command::Expire(Expire {}))?;
            let ending =
                |(id, lease): (LeaseId, &comity_core::lease::Lease)| (lease.state == LeaseState::Ending).then_some(id);
            let ending: Vec<LeaseId> = self.state.live_leases().filter_map(ending).collect();
            for lease in ending {
                self.report(lease, &LeaseOutcome::Clean)?;
            }
            self.place(books)?;
        }
        self.pass(until, books);
        Ok(())
    }

    fn pass(&mut self, now: u64, books: &mut Books) {
        books.pass(self, now.saturating_sub(self.now));
        self.now = self.now.max(now);
    }

    /// Places who can be, as the leader's loop does.
    pub(super) fn place(&mut self, books: &mut Books) -> Result<(), Refusal> {
        loop {
            let placements = self.planner.plan(&self.state, MAX_PLACEMENTS_PER_COMMAND).placements;
            if placements.is_empty() {
                return Ok(());
            }
            let reply = self.apply(Command::PlaceRequests(PlaceRequests { placements }))?;
            let ReplyBody::Placed { leases, refused } = reply else { return Ok(()) };
            if let Some((_, refusal)) = refused.into_iter().next() {
                return Err(refusal);
            }
            for lease in leases {
                books.placed(&self.state, lease);
                self.report(lease, &LeaseOutcome::Ready { namespace: "n".to_owned(), secret_name: "s".to_owned() })?;
            }
        }
    }

    /// Both sides of a lease report the same.
    fn report(&mut self, lease: LeaseId, outcome: &LeaseOutcome) -> Result<(), Refusal> {
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

fn node() -> Node {
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
        devices: vec![device; GPUS_PER_NODE].into(),
        schedulable: true,
        ready: true,
        wiring: NodeWiring::default(),
    }
}
