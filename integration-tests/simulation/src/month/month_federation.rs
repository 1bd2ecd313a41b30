//! Drives the broker through the month; agents carry out orders at once.

use comity_core::command::LeaseOutcome;
use comity_core::demand::{RequestSpec, Topology};
use comity_core::inventory::NodeMap;
use comity_core::limits::MAX_PLACEMENTS_PER_PLAN;
use comity_core::refusal::Code;
use comity_core::{Millis, Refusal, Timestamp};
use comity_types::{ClusterId, NodeId, TenantId};

use super::accounting::{Accounting, Usage};
use super::demand::{DrawnRequest, is_working};
use super::institutions::{CENTRE, GPUS_PER_NODE, MEMBERS, TENANTS, policy};
use crate::broker::Broker;
use crate::broker::hardware::h100s;
use crate::broker::spec::{request_spec, whole_gpus};
use crate::time::DAY;

/// Tenths of the GPUs that local work uses if they are free, by day and by night.
const LOCAL_BY_DAY: usize = 6;
const LOCAL_BY_NIGHT: usize = 1;

/// A federation in simulated time.
pub(super) struct MonthFederation {
    broker: Broker,
    clusters: Vec<ClusterId>,
    tenants: Vec<TenantId>,
    /// Nodes that each member lends.
    nodes: [usize; MEMBERS.len()],
}

impl MonthFederation {
    /// A federation whose members have joined and offer `nodes` nodes each.
    pub(super) fn new(nodes: [usize; MEMBERS.len()]) -> Result<Self, Refusal> {
        let clusters: Result<_, _> = MEMBERS.iter().map(|member| ClusterId::parse(member.name, "cluster")).collect();
        let tenants: Result<_, _> = TENANTS.iter().map(|(name, ..)| TenantId::parse(name, "tenant")).collect();
        let clusters: Vec<ClusterId> = clusters?;
        // Midnight, so that elapsed hours are hours of the day.
        let mut broker = Broker::joined(policy(), &clusters, Timestamp(20_000 * DAY))?;
        for (cluster, nodes) in clusters.iter().zip(nodes) {
            let nodes: Result<NodeMap, Refusal> = (0..nodes)
                .map(|number| Ok((NodeId::parse(&format!("n{number}"), "node")?, h100s(GPUS_PER_NODE))))
                .collect();
            broker.advertise(cluster, nodes?)?;
        }
        Ok(Self { broker, clusters, tenants: tenants?, nodes })
    }

    pub(super) fn now(&self) -> u64 {
        self.broker.now().0
    }

    /// Number of a tenant's queued requests.
    pub(super) fn queued(&self, tenant: usize) -> usize {
        self.broker.state.queued_of(&self.tenants[tenant])
    }

    /// GPUs that tenants hold and members lend now.
    pub(super) fn usage(&self) -> Usage {
        let state = &self.broker.state;
        Usage {
            held_milli: std::array::from_fn(|tenant| {
                state.usage().in_use(TENANTS[tenant].0, "", "", "").tenant_milli()
            }),
            lent_milli: std::array::from_fn(|member| state.occupancy().lent_milli(&self.clusters[member])),
        }
    }

    /// Submits a request; false if its tenant's queue is full.
    pub(super) fn submit(&mut self, tenant: usize, request: &DrawnRequest) -> Result<bool, Refusal> {
        let (name, of) = (self.tenants[tenant].clone(), self.clusters[TENANTS[tenant].1].clone());
        let gpus = whole_gpus(request.gpus, 4_000, 16_384)?;
        let topology = Topology { same_node: true, ..Topology::default() };
        let spec = RequestSpec { topology, ..request_spec(name, of, gpus, Millis(request.duration_ms)) };
        match self.broker.submit_spec(spec) {
            Err(refusal) if refusal.code == Code::LimitReached => Ok(false),
            submitted => submitted.map(|_| true),
        }
    }

    /// Starts local work on free GPUs by each member's local time, and leaves lent ones alone.
    pub(super) fn update_local_work(&mut self, began: u64) -> Result<(), Refusal> {
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

    /// Advances to `until`, and places queued requests whenever a due event frees capacity.
    pub(super) fn run_until(&mut self, until: u64, accounting: &mut Accounting) -> Result<(), Refusal> {
        while let Some(due) = self.broker.next_due_until(Timestamp(until)) {
            self.advance_to(due.0, accounting);
            self.broker.expire()?;
            for lease in self.broker.ending() {
                self.broker.report(lease, &LeaseOutcome::Clean)?;
            }
            self.place(accounting)?;
        }
        self.advance_to(until, accounting);
        Ok(())
    }

    fn advance_to(&mut self, now: u64, accounting: &mut Accounting) {
        accounting.add_usage(&self.broker.state, &self.usage(), now.saturating_sub(self.now()));
        self.broker.advance_to(Timestamp(now));
    }

    /// Places queued requests until none fits, as the leader's loop does.
    pub(super) fn place(&mut self, accounting: &mut Accounting) -> Result<(), Refusal> {
        loop {
            let placements = self.broker.plan(MAX_PLACEMENTS_PER_PLAN).placements;
            if placements.is_empty() {
                return Ok(());
            }
            for lease in self.broker.place(placements)? {
                accounting.placed(&self.broker.state, lease);
                self.broker.report_ready(lease)?;
            }
        }
    }
}
