//! The broker's state machine and planner over the nodes of a trace: members borrow and lend by the commands that the
//! broker's log holds.

mod terms;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use comity_core::cluster::Cluster;
use comity_core::command::{
    AdvertiseOffer, CancelRequest, LeaseOutcome, PlaceRequests, ProposedPlacement, ReleaseLease, ReportLease,
    ReviseOffer, SubmitRequest,
};
use comity_core::data::DataSite;
use comity_core::demand::{Delivery, DeviceChoice, GpuDemand, RequestSpec, Share, Topology};
use comity_core::inventory::{Device, DeviceWiring, Node, NodeWiring, Offer, Sharing};
use comity_core::lease::Lease;
use comity_core::log::LOG_FORMAT;
use comity_core::matcher::{Plan, Planner};
use comity_core::packing::{Shape, Task};
use comity_core::policy_record::PolicyRecord;
use comity_core::refusal::Code;
use comity_core::work::{WorkMix, WorkType};
use comity_core::{
    Actor, ClassName, ClusterId, Command, InstitutionId, LeaseId, LogEnvelope, Millis, NodeId, Refusal, ReplyBody,
    RequestId, State, TenantId, Timestamp,
};
use comity_policy::{Bundle, BundleSource, SourceFile};

/// A cluster, the institution and the tenant of the same name, and what it offers.
#[derive(Clone, Debug)]
pub struct Member<'t> {
    /// Name of all three.
    pub name: String,
    /// Nodes, in the order in which they are numbered.
    pub nodes: Vec<&'t Shape>,
}

/// The broker's core, without a log and without agents.
#[derive(Debug)]
pub struct Broker {
    /// As it is.
    pub state: State,
    idle: State,
    planner: Planner,
    class: ClassName,
    members: Vec<(ClusterId, TenantId)>,
}

impl Broker {
    /// Members with idle nodes, who all lend to each other; requests like `history` are expected.
    ///
    /// # Errors
    /// What the core says if the nodes cannot be offers.
    pub fn new(members: &[Member<'_>], history: &[Task]) -> Result<Self, Refusal> {
        let class = ClassName::parse("gpu", "class")?;
        let names: Vec<&str> = members.iter().map(|member| member.name.as_str()).collect();
        let mut idle = State::default();
        idle.policy = Some(record(terms::policy(&names))?);
        let mut parsed = Vec::new();
        for member in members {
            let cluster = ClusterId::parse(&member.name, "cluster")?;
            idle.clusters.insert(cluster.clone(), joined(InstitutionId::parse(&member.name, "institution")?));
            parsed.push((cluster, TenantId::parse(&member.name, "tenant")?));
        }
        idle.rebuild_derived();
        let mut broker =
            Self { state: idle, idle: State::default(), planner: Planner::default(), class, members: parsed };
        for (index, member) in members.iter().enumerate().filter(|(_, member)| !member.nodes.is_empty()) {
            let nodes = (0..).zip(&member.nodes).map(|(number, shape)| Ok((node_id(number)?, node(shape))));
            let nodes: Result<BTreeMap<NodeId, Node>, Refusal> = nodes.collect();
            let offer = Offer {
                generation: 1,
                nodes: nodes?,
                deliveries: BTreeSet::from([Delivery::Namespace]),
                data: DataSite::default(),
            };
            let cluster = broker.members[index].0.clone();
            broker.apply(Command::AdvertiseOffer(AdvertiseOffer { cluster, offer }))?;
        }
        let mut work = WorkMix::default();
        for task in history {
            work.add(broker.work(task), 1);
        }
        broker.planner = Planner::expecting(work);
        broker.idle = broker.state.clone();
        Ok(broker)
    }

    /// Clears all nodes, and what the planner knows of them.
    pub fn restart(&mut self) {
        self.state.clone_from(&self.idle);
        self.planner.forget();
    }

    /// How many members there are.
    #[must_use]
    #[expect(clippy::len_without_is_empty, reason = "there is no federation without members")]
    pub fn len(&self) -> usize {
        self.members.len()
    }

    /// Cluster of a member.
    #[must_use]
    pub fn cluster(&self, member: usize) -> &ClusterId {
        &self.members[member].0
    }

    /// Ends all leases and all local work, as agents do that report clean and revise their offers; what the planner knows
    /// stays.
    ///
    /// # Errors
    /// What the core says to it.
    pub fn drain(&mut self) -> Result<(), Refusal> {
        let ends = |(id, lease): (LeaseId, &Lease)| {
            (id, lease.fencing_token, [lease.origin.clone(), lease.placement.donor.clone()])
        };
        for (lease, fencing_token, clusters) in self.state.live_leases().map(ends).collect::<Vec<_>>() {
            self.apply(Command::ReleaseLease(ReleaseLease { lease }))?;
            for cluster in clusters {
                let outcome = LeaseOutcome::Clean;
                self.apply(Command::ReportLease(ReportLease { cluster, lease, fencing_token, outcome }))?;
            }
        }
        for (index, (cluster, _)) in self.members.clone().iter().enumerate() {
            let offer = self.state.clusters.get(cluster).and_then(|cluster| cluster.offer.as_ref());
            let busy = offer.into_iter().flat_map(|offer| &offer.nodes).filter(|(_, node)| node.local_cpu_milli > 0);
            for id in busy.map(|(id, _)| id.clone()).collect::<Vec<NodeId>>() {
                self.run_locally(index, &id, |node| (node.local_cpu_milli, node.local_memory_mib) = (0, 0))?;
            }
        }
        Ok(())
    }

    /// Queues `task` for a member's tenant.
    ///
    /// # Errors
    /// What the core says to it.
    pub fn submit(&mut self, member: usize, task: &Task) -> Result<RequestId, Refusal> {
        let WorkType { gpus, topology } = self.work(task);
        let (origin, tenant) = self.members[member].clone();
        let spec = RequestSpec {
            tenant,
            origin,
            gpus,
            topology,
            members: None,
            spread_donors: false,
            data: Vec::new(),
            duration: Millis::from_hours(1),
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
        let submitted_by = "spiffe://replay.example/user/alice".to_owned();
        match self.apply(Command::SubmitRequest(SubmitRequest { spec, submitted_by }))? {
            ReplyBody::Request(request) => Ok(request),
            other => Err(unexpected(&other)),
        }
    }

    /// Plans for what waits.
    #[must_use]
    pub fn plan(&mut self, limit: usize) -> Plan {
        self.planner.plan(&self.state, limit)
    }

    /// Carries a plan out; how many leases came of it.
    ///
    /// # Errors
    /// The first placement that the core refuses: it was made for this very state.
    pub fn place(&mut self, placements: Vec<ProposedPlacement>) -> Result<Vec<LeaseId>, Refusal> {
        match self.apply(Command::PlaceRequests(PlaceRequests { placements }))? {
            ReplyBody::Placed { leases, refused } => match refused.into_iter().next() {
                Some((_, refusal)) => Err(refusal),
                None => Ok(leases),
            },
            other => Err(unexpected(&other)),
        }
    }

    /// Takes a request back.
    ///
    /// # Errors
    /// What the core says to it.
    pub fn cancel(&mut self, request: RequestId) -> Result<(), Refusal> {
        self.apply(Command::CancelRequest(CancelRequest { request })).map(drop)
    }

    /// The node of a member that work without GPUs leaves least idle on.
    #[must_use]
    pub fn advise(&mut self, member: usize, task: &Task) -> Option<NodeId> {
        self.planner.advise(&self.state, &self.members[member].0, task.cpu_milli, task.memory_mib)
    }

    /// Work that is local to a member changes one of its nodes, and it revises its offer.
    ///
    /// # Errors
    /// What the core says to it.
    pub fn run_locally(&mut self, member: usize, id: &NodeId, change: impl FnOnce(&mut Node)) -> Result<(), Refusal> {
        let cluster = self.members[member].0.clone();
        let offer = self.state.clusters.get(&cluster).and_then(|cluster| cluster.offer.as_ref());
        let missing = || Refusal::not_found("node", id, "node");
        let (revises, mut node) =
            offer.and_then(|offer| Some((offer.generation, offer.nodes.get(id)?.clone()))).ok_or_else(missing)?;
        change(&mut node);
        let (nodes, gone) = (BTreeMap::from([(id.clone(), node)]), BTreeSet::new());
        let revise = ReviseOffer { cluster, revises, generation: revises + 1, nodes, gone };
        self.apply(Command::ReviseOffer(revise)).map(drop)
    }

    /// What a task is as a request.
    fn work(&self, task: &Task) -> WorkType {
        if task.devices == 0 {
            return WorkType::without_gpus(task.cpu_milli, task.memory_mib);
        }
        let count = u32::from(task.devices);
        let devices = if task.kinds.is_empty() {
            DeviceChoice::Class(self.class.clone())
        } else {
            let names: Vec<String> = task.kinds.iter().map(|kind| format!("'{}'", product(*kind))).collect();
            DeviceChoice::Selector(format!("device.productName in [{}]", names.join(", ")))
        };
        let share = if task.milli == 1_000 { Share::Whole } else { Share::Milli(u32::from(task.milli)) };
        let gpus = GpuDemand {
            devices,
            share,
            count,
            cpu_milli_per_gpu: task.cpu_milli.div_ceil(u64::from(count)),
            memory_mib_per_gpu: task.memory_mib.div_ceil(u64::from(count)),
        };
        WorkType { gpus, topology: Topology { same_node: count > 1, ..Topology::default() } }
    }

    fn apply(&mut self, command: Command) -> Result<ReplyBody, Refusal> {
        let entry = LogEnvelope {
            format: LOG_FORMAT,
            actor: Actor::Leader(1),
            time: Timestamp(1_000_000),
            traceparent: String::new(),
            idempotency: None,
            command,
        };
        self.state.apply(&entry).reply
    }
}

fn unexpected(reply: &ReplyBody) -> Refusal {
    Refusal::new(Code::WrongState, format!("{reply:?} is no answer to this command"), "mend the replay")
}

fn record(policy: String) -> Result<PolicyRecord, Refusal> {
    let source = BundleSource { files: vec![SourceFile { path: "terms.yaml".to_owned(), text: policy }], commit: None };
    let bundle = Bundle::compile(&source).map_err(|problems| {
        Refusal::new(Code::InvalidField, format!("{problems:?}"), "mend the terms of the replay")
    })?;
    Ok(PolicyRecord {
        bundle: Arc::new(bundle),
        source,
        applied_at: Timestamp::default(),
        applied_by: "spiffe://replay.example/user/admin".to_owned(),
    })
}

fn joined(institution: InstitutionId) -> Cluster {
    Cluster {
        institution,
        identity_key: String::new(),
        joined_at: Timestamp::default(),
        certificate_not_after: Timestamp(u64::MAX),
        connected: true,
        since: Timestamp::default(),
        offer: None,
        health: comity_core::health::Health::default(),
        last_fencing_token: 0,
        revision: 0,
    }
}

/// Name of a node by its number; in the order of numbers.
///
/// # Errors
/// None for numbers that a cluster can have.
pub fn node_id(number: usize) -> Result<NodeId, Refusal> {
    NodeId::parse(&format!("node-{number:06}"), "node")
}

fn product(kind: u32) -> String {
    format!("KIND-{kind}")
}

fn node(shape: &Shape) -> Node {
    let device = Device {
        product_name: product(shape.kind),
        architecture: String::new(),
        memory_mib: 16_384,
        cuda_compute_capability: "8.0".to_owned(),
        driver_version: "550.107.02".to_owned(),
        sharing: Sharing::Fractional { step_milli: 1 },
        healthy: true,
        fault: None,
        local_use_milli: 0,
        resource_name: "nvidia.com/gpu".to_owned(),
        wiring: DeviceWiring::default(),
    };
    Node {
        cpu_milli: shape.cpu_milli,
        memory_mib: shape.memory_mib,
        local_cpu_milli: 0,
        local_memory_mib: 0,
        devices: vec![device; usize::from(shape.devices)].into(),
        schedulable: true,
        ready: true,
        wiring: NodeWiring::default(),
    }
}
