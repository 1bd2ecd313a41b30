//! Members that have the nodes of a trace, all lend to each other, and ask for its tasks.

use std::collections::BTreeSet;

use comity_core::command::{LeaseOutcome, ReleaseLease, ReviseOffer};
use comity_core::demand::{DeviceChoice, GpuDemand, RequestSpec, Share, Topology};
use comity_core::inventory::{Node, NodeMap, Sharing};
use comity_core::packing::{Shape, Task};
use comity_core::scheduler::Planner;
use comity_core::work::{WorkMix, WorkType};
use comity_core::{ClusterId, Command, LeaseId, Millis, NodeId, Refusal, RequestId, State, TenantId, Timestamp};

use super::spec::asking;
use super::{Broker, hardware, terms};

/// Log time of a replay, in which no time passes.
const REPLAYED_AT: Timestamp = Timestamp(1_000_000);

/// A cluster, the institution and the tenant of the same name, and what it offers.
#[derive(Clone, Debug)]
pub struct Member<'t> {
    /// Name of all three.
    pub name: String,
    /// Nodes, in the order in which they are numbered.
    pub nodes: Vec<&'t Shape>,
}

impl Broker {
    /// Members with idle nodes, who all lend to each other; requests like `history` are expected.
    ///
    /// # Errors
    /// What the core says if the nodes cannot be offers.
    pub fn new(members: &[Member<'_>], history: &[Task]) -> Result<Self, Refusal> {
        let names: Vec<&str> = members.iter().map(|member| member.name.as_str()).collect();
        let clusters: Result<Vec<ClusterId>, Refusal> =
            names.iter().map(|name| ClusterId::parse(name, "cluster")).collect();
        let tenants: Result<Vec<TenantId>, Refusal> =
            names.iter().map(|name| TenantId::parse(name, "tenant")).collect();
        let clusters = clusters?;
        let mut broker = Self::joined(terms::policy(&names), &clusters, REPLAYED_AT)?;
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

    /// Goes back to an earlier state, and forgets what the planner knows of nodes.
    pub fn restart(&mut self, earlier: &State) {
        self.state.clone_from(earlier);
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

    /// Ends all leases and all local work, as agents do that report clean and revise their offers; what the planner
    /// knows stays.
    ///
    /// # Errors
    /// What the core says to it.
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

    /// Queues `task` for a member's tenant, for an hour.
    ///
    /// # Errors
    /// What the core says to it.
    pub fn submit(&mut self, member: usize, task: &Task) -> Result<RequestId, Refusal> {
        self.submit_for(member, task, Millis::from_hours(1), |spec| spec)
    }

    /// Queues `task` for so long, with what `change` adds to it.
    ///
    /// # Errors
    /// What the core says to it.
    pub(crate) fn submit_for(
        &mut self,
        member: usize,
        task: &Task,
        duration: Millis,
        change: impl FnOnce(RequestSpec) -> RequestSpec,
    ) -> Result<RequestId, Refusal> {
        let WorkType { gpus, topology } = self.work(task);
        let (origin, tenant) = self.members[member].clone();
        self.ask(change(RequestSpec { topology, ..asking(tenant, origin, gpus, duration) }))
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
        let (nodes, gone) = (NodeMap::from_iter([(id.clone(), node)]), BTreeSet::new());
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
}

/// Name of a node by its number, in the order of numbers: 16 hex digits of which the first tell nodes apart, as agents
/// name them.
///
/// # Errors
/// None for numbers that a cluster can have.
pub fn node_id(number: usize) -> Result<NodeId, Refusal> {
    NodeId::parse(&format!("{number:08x}00000000"), "node")
}

fn product(kind: u32) -> String {
    format!("KIND-{kind}")
}

fn node(shape: &Shape) -> Node {
    let device = hardware::device(&product(shape.kind), 16_384, Sharing::Fractional { step_milli: 1 });
    hardware::node(shape.cpu_milli, shape.memory_mib, vec![device; usize::from(shape.devices)])
}
