//! The broker's state and planner, with agents that do at once what they are asked.

use comity_core::command::LeaseOutcome;
use comity_core::demand::{RequestSpec, Topology};
use comity_core::inventory::NodeMap;
use comity_core::limits::MAX_PLACEMENTS_PER_PLAN;
use comity_core::refusal::Code;
use comity_core::{ClusterId, Millis, NodeId, Refusal, State, TenantId, Timestamp};

use super::DAY;
use super::demand::{Asked, is_working};
use super::report::Books;
use super::terms::{CENTRE, MEMBERS, TENANTS, policy};
use crate::broker::Broker;
use crate::broker::hardware::h100s;
use crate::broker::spec::{asking, whole_gpus};

const GPUS_PER_NODE: usize = 8;
/// GPUs that local work takes if it finds them free, in tenths of all, by day and by night.
const LOCAL_BY_DAY: usize = 6;
const LOCAL_BY_NIGHT: usize = 1;

/// A federation in log time.
pub(super) struct Federation {
    broker: Broker,
    clusters: Vec<ClusterId>,
    tenants: Vec<TenantId>,
    /// That each member lends of.
    nodes: [usize; MEMBERS.len()],
}

impl Federation {
    /// All members have joined and offer all they have, so many nodes each.
    pub(super) fn new(nodes: [usize; MEMBERS.len()]) -> Result<Self, Refusal> {
        let clusters: Result<_, _> = MEMBERS.iter().map(|member| ClusterId::parse(member.name, "cluster")).collect();
        let tenants: Result<_, _> = TENANTS.iter().map(|(name, ..)| TenantId::parse(name, "tenant")).collect();
        let clusters: Vec<ClusterId> = clusters?;
        // A midnight, so that hours are those of the clock.
        let mut broker = Broker::joined(policy(), &clusters, Timestamp(20_000 * DAY))?;
        for (cluster, nodes) in clusters.iter().zip(nodes) {
            let nodes: Result<NodeMap, Refusal> = (0..nodes)
                .map(|number| Ok((NodeId::parse(&format!("n{number}"), "node")?, h100s(GPUS_PER_NODE))))
                .collect();
            broker.advertise(cluster, nodes?)?;
        }
        Ok(Self { broker, clusters, tenants: tenants?, nodes })
    }

    pub(super) fn state(&self) -> &State {
        &self.broker.state
    }

    pub(super) fn now(&self) -> u64 {
        self.broker.now().0
    }

    /// Requests of a tenant that wait.
    pub(super) fn waiting(&self, tenant: usize) -> usize {
        self.broker.state.queued_of(&self.tenants[tenant])
    }

    /// GPUs that a tenant holds, in thousandths.
    pub(super) fn held_milli(&self, tenant: usize) -> u64 {
        self.broker.state.usage().in_use(TENANTS[tenant].0, "", "", "").tenant_milli
    }

    /// GPUs that a member lends, in thousandths.
    pub(super) fn lent_milli(&self, member: usize) -> u64 {
        self.broker.state.occupancy().lent_milli(&self.clusters[member])
    }

    /// Queues a request; false if its tenant has too many waiting.
    pub(super) fn submit(&mut self, tenant: usize, asked: &Asked) -> Result<bool, Refusal> {
        let (name, of) = (self.tenants[tenant].clone(), self.clusters[TENANTS[tenant].1].clone());
        let gpus = whole_gpus(asked.gpus, 4_000, 16_384)?;
        let topology = Topology { same_node: true, ..Topology::default() };
        let spec = RequestSpec { topology, ..asking(name, of, gpus, Millis(asked.duration_ms)) };
        match self.broker.ask(spec) {
            Err(refusal) if refusal.code == Code::LimitReached => Ok(false),
            submitted => submitted.map(|_| true),
        }
    }

    /// Local work takes free GPUs by each member's clock; lent ones it leaves.
    pub(super) fn work_locally(&mut self, began: u64) -> Result<(), Refusal> {
        for (member, cluster) in self.clusters.clone().into_iter().enumerate() {
            let Some(mut nodes) = self.broker.offered(&cluster).cloned() else { continue };
            let tenths = if is_working(member, self.now() - began) { LOCAL_BY_DAY } else { LOCAL_BY_NIGHT };
            if MEMBERS[member].name == CENTRE {
                continue;
            }
            let mut wanted = self.nodes[member] * GPUS_PER_NODE * tenths / 10;
            for (id, node) in &mut nodes {
                let lent = self.broker.state.occupancy().node(&cluster, id);
                for (index, device) in (0..).zip(&mut node.devices) {
                    let free = lent.is_none_or(|lent| !lent.devices.contains_key(&index));
                    device.local_use_milli = if free && wanted > 0 { 1_000 } else { 0 };
                    wanted -= usize::from(device.local_use_milli > 0);
                }
            }
            self.broker.advertise(&cluster, nodes)?;
        }
        Ok(())
    }

    /// Lets what is due happen until `until`, and serves who waits whenever something has become free.
    pub(super) fn run_until(&mut self, until: u64, books: &mut Books) -> Result<(), Refusal> {
        while let Some(due) = self.broker.due(Timestamp(until)) {
            self.pass(due.0, books);
            self.broker.expire()?;
            for lease in self.broker.ending() {
                self.broker.report(lease, &LeaseOutcome::Clean)?;
            }
            self.place(books)?;
        }
        self.pass(until, books);
        Ok(())
    }

    fn pass(&mut self, now: u64, books: &mut Books) {
        books.pass(self, now.saturating_sub(self.now()));
        self.broker.pass(Timestamp(now));
    }

    /// Places who can be, as the leader's loop does.
    pub(super) fn place(&mut self, books: &mut Books) -> Result<(), Refusal> {
        loop {
            let placements = self.broker.plan(MAX_PLACEMENTS_PER_PLAN).placements;
            if placements.is_empty() {
                return Ok(());
            }
            for lease in self.broker.place(placements)? {
                books.placed(&self.broker.state, lease);
                self.broker.report_ready(lease)?;
            }
        }
    }
}
