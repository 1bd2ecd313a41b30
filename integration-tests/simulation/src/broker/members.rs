//! Members that share the nodes of a trace, lend to each other and request its tasks.

use std::collections::BTreeSet;

use comity_core::command::{LeaseOutcome, ReleaseLease, ReviseOffer};
use comity_core::demand::{DeviceChoice, GpuDemand, Isolation, RequestSpec, Share, Topology};
use comity_core::inventory::{Node, NodeMap, Sharing};
use comity_core::packing::{Shape, Task};
use comity_core::scheduler::Planner;
use comity_core::work::{WorkMix, WorkType};
use comity_core::{Command, Millis, Refusal, State, Timestamp};
use comity_types::{ClusterId, LeaseId, NodeId, RequestId, TenantId};

use super::spec::request_spec;
use super::{Broker, hardware, mutual_policy};
use crate::trace::Trace;

/// Index of the borrower in [`Broker::with_one_donor`].
pub(crate) const ORIGIN: usize = 0;
/// Index of the donor in [`Broker::with_one_donor`].
pub(crate) const DONOR: usize = 1;
/// The constant time of a replay.
const REPLAYED_AT: Timestamp = Timestamp(1_000_000);

/// A cluster with an institution and a tenant of the same name, and its nodes.
#[derive(Clone, Debug)]
pub struct Member<'t> {
    /// Name of cluster, institution and tenant.
    pub name: String,
    /// Nodes, in order of their numbers.
    pub nodes: Vec<&'t Shape>,
}

impl Broker {
    /// A broker for members with idle nodes that all lend to each other. Its planner expects requests like `history`.
    ///
    /// # Errors
    /// When the core refuses a member's offer.
    pub fn new(members: &[Member<'_>], history: &[Task]) -> Result<Self, Refusal> {
        let names: Vec<&str> = members.iter().map(|member| member.name.as_str()).collect();
        let clusters: Result<Vec<ClusterId>, _> = names.iter().map(|name| ClusterId::parse(name, "cluster")).collect();
        let tenants: Result<Vec<TenantId>, _> = names.iter().map(|name| TenantId::parse(name, "tenant")).collect();
        let clusters = clusters?;
        let mut broker = Self::joined(mutual_policy::policy(&names), &clusters, REPLAYED_AT)?;
        for (cluster, member) in clusters.iter().zip(members).filter(|(_, member)| !member.nodes.is_empty()) {
            let nodes = (0..).zip(&member.nodes).map(|(number, shape)| Ok((node_id(number)?, node(shape))));
            let nodes: Result<NodeMap, Refusal> = nodes.collect();
            broker.advertise(cluster, nodes?)?;
        }
        let mut work = WorkMix::default();
        for task in history {
            work.add(broker.work(task), 1);
        }
        broker.planner = Planner::expecting(work);
        broker.members = clusters.into_iter().zip(tenants?).collect();
        Ok(broker)
    }

    /// A broker for one borrower without nodes and one donor with the idle nodes of `trace`.
    ///
    /// # Errors
    /// When the core refuses the nodes as an offer.
    pub(crate) fn with_one_donor(trace: &Trace, history: &[Task]) -> Result<Self, Refusal> {
        let origin = Member { name: "origin".to_owned(), nodes: Vec::new() };
        let donor = Member { name: "donor".to_owned(), nodes: trace.nodes.values().collect() };
        Self::new(&[origin, donor], history)
    }

    /// Restores an earlier state and clears the planner's caches.
    pub fn restart(&mut self, earlier: &State) {
        self.state.clone_from(earlier);
        self.planner.forget();
    }

    /// Number of members.
    #[must_use]
    #[expect(clippy::len_without_is_empty, reason = "there is no federation without members")]
    pub fn len(&self) -> usize {
        self.members.len()
    }

    /// The cluster of a member.
    #[must_use]
    pub fn cluster(&self, member: usize) -> &ClusterId {
        &self.members[member].0
    }

    /// Ends all leases and all local work, and keeps the planner's caches.
    ///
    /// # Errors
    /// When the core refuses the command.
    pub fn drain(&mut self) -> Result<(), Refusal> {
        for lease in self.state.live_leases().map(|(id, _)| id).collect::<Vec<LeaseId>>() {
            self.apply(Command::ReleaseLease(ReleaseLease { lease }))?;
            self.report(lease, &LeaseOutcome::Clean)?;
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

    /// Submits `task` for a member's tenant, for one hour.
    ///
    /// # Errors
    /// When the core refuses the command.
    pub fn submit(&mut self, member: usize, task: &Task) -> Result<RequestId, Refusal> {
        self.submit_for(member, task, Millis::from_hours(1), |spec| spec)
    }

    /// Submits `task` for `duration`, after `change` to its spec.
    ///
    /// # Errors
    /// When the core refuses the command.
    pub(crate) fn submit_for(
        &mut self,
        member: usize,
        task: &Task,
        duration: Millis,
        change: impl FnOnce(RequestSpec) -> RequestSpec,
    ) -> Result<RequestId, Refusal> {
        let WorkType { gpus, topology } = self.work(task);
        let (origin, tenant) = self.members[member].clone();
        self.submit_spec(change(RequestSpec { topology, ..request_spec(tenant, origin, gpus, duration) }))
    }

    /// The member's node on which a task without GPUs leaves least idle.
    #[must_use]
    pub fn advise(&mut self, member: usize, task: &Task) -> Option<NodeId> {
        self.planner.advise(&self.state, &self.members[member].0, task.cpu_milli, task.memory_mib)
    }

    /// Changes a node of a member as local work does, and revises the member's offer.
    ///
    /// # Errors
    /// When the core refuses the command.
    pub fn run_locally(&mut self, member: usize, id: &NodeId, change: impl FnOnce(&mut Node)) -> Result<(), Refusal> {
        let cluster = self.members[member].0.clone();
        let offer = self.state.clusters.get(&cluster).and_then(|cluster| cluster.offer.as_ref());
        let missing = || Refusal::not_found("node", id, "node");
        let (revises, mut node) =
            offer.and_then(|offer| Some((offer.generation, offer.nodes.get(id)?.clone()))).ok_or_else(missing)?;
        change(&mut node);
        let (nodes, gone) = (NodeMap::from_iter([(id.clone(), node)]), BTreeSet::new());
        let revise = ReviseOffer { cluster, revises, generation: revises + 1, nodes, gone };
        self.apply(Command::ReviseOffer(revise)).map(drop)
    }

    /// The GPU demand and topology of a task.
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
            isolation: Isolation::None,
            gpu_type: None,
        };
        WorkType { gpus, topology: Topology { same_node: count > 1, ..Topology::default() } }
    }
}

/// Id of a node in the agents' format, 16 hex digits. Ids sort like numbers.
///
/// # Errors
/// Never for numbers below 2^32.
pub fn node_id(number: usize) -> Result<NodeId, Refusal> {
    Ok(NodeId::parse(&format!("{number:08x}00000000"), "node")?)
}

fn product(kind: u32) -> String {
    format!("KIND-{kind}")
}

fn node(shape: &Shape) -> Node {
    let device = hardware::device(&product(shape.kind), 16_384, Sharing::Fractional { step_milli: 1 });
    hardware::node(shape.cpu_milli, shape.memory_mib, vec![device; usize::from(shape.devices)])
}
