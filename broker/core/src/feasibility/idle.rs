//! Asks donors as if all leases and local work had ended, every node were healthy and every agent answered. Waiting
//! cannot cure an obstacle that is left then, unless it says so itself.

use std::collections::BTreeMap;

use comity_types::{ClusterId, NodeId};

use crate::feasibility::donors::promise::donors;
use crate::feasibility::fit::cutting::MigValues;
use crate::feasibility::fit::{Wanted, fit};
use crate::feasibility::obstacle::{Cure, Obstacle, permitted};
use crate::feasibility::snapshot::{PolicyQuery, Snapshot};
use crate::feasibility::verdict::{ask_donor, no_offer};
use crate::model::demand::RequestSpec;
use crate::model::inventory::{Device, Node};
use crate::state::State;
use crate::state::occupancy::Occupancy;
use crate::state::usable::Usable;

/// Nodes of a donor that are tried before all of them. Usually one of these suffices, and a donor may have thousands.
const SAMPLE_NODES: usize = 8;

/// Idle and healthy nodes.
pub(crate) struct IdleNodes {
    nodes: Usable,
    /// Whether `nodes` are all nodes of a donor. Otherwise they replace those that are not idle or not healthy.
    sampled: bool,
    no_leases: Occupancy,
}

impl IdleNodes {
    /// The nodes of these donors; those of other donors stay as they are.
    pub(crate) fn of<'d>(state: &State, donors: impl Iterator<Item = &'d ClusterId>) -> Self {
        let nodes = donors.map(|donor| (donor.clone(), idle_nodes(state, donor))).collect();
        Self { nodes, sampled: false, no_leases: Occupancy::default() }
    }

    /// At most [`SAMPLE_NODES`] nodes of a donor, at equal distances, since neighbours are often alike.
    fn sample(state: &State, donor: &ClusterId) -> Self {
        let offer = state.clusters.get(donor).and_then(|cluster| cluster.offer.as_ref());
        let step = offer.map_or(1, |offer| offer.nodes.len().div_ceil(SAMPLE_NODES).max(1));
        let nodes = offer.into_iter().flat_map(|offer| &offer.nodes).step_by(step);
        let nodes = nodes.map(|(id, node)| (id.clone(), idle_node(node))).collect();
        Self { nodes: Usable::from([(donor.clone(), nodes)]), sampled: true, no_leases: Occupancy::default() }
    }

    /// The same snapshot, with these nodes.
    pub(crate) fn snapshot<'s, 'a: 's>(&'s self, snapshot: &Snapshot<'a>) -> Snapshot<'s> {
        let idle = snapshot.clone().when_idle(&self.nodes, &self.no_leases);
        if self.sampled { idle.with_replacements_only() } else { idle }
    }
}

fn idle_nodes(state: &State, donor: &ClusterId) -> BTreeMap<NodeId, Node> {
    let offer = state.clusters.get(donor).and_then(|cluster| cluster.offer.as_ref());
    let changed = |id: &NodeId, node: &Node| {
        // A node with a reduced usable view must be replaced even if it is idle as offered.
        let reduced = state.derived.usable.get(donor).is_some_and(|nodes| nodes.contains_key(id));
        reduced || !is_idle(node)
    };
    let nodes = offer.into_iter().flat_map(|offer| &offer.nodes).filter(|(id, node)| changed(id, node));
    nodes.map(|(id, node)| (id.clone(), idle_node(node))).collect()
}

fn is_idle(node: &Node) -> bool {
    let device = |device: &Device| device.healthy && device.fault.is_none() && device.idle() == *device;
    node.schedulable
        && node.ready
        && node.local_cpu_milli == 0
        && node.local_memory_mib == 0
        && node.wiring.rdma_functions.values().all(|functions| functions.local == 0)
        && node.devices.iter().all(device)
}

fn idle_node(node: &Node) -> Node {
    let mut idle = Node { schedulable: true, ready: true, local_cpu_milli: 0, local_memory_mib: 0, ..node.clone() };
    idle.devices.iter_mut().for_each(|device| *device = device.idle());
    idle.wiring.rdma_functions.values_mut().for_each(|functions| functions.local = 0);
    idle
}

/// Asks one donor. The obstacle of a donor that has yet to make an offer is that it waits for its agent.
pub(crate) fn ask_idle_donor(
    snapshot: &Snapshot<'_>,
    spec: &RequestSpec,
    donor: &ClusterId,
) -> Result<(), Box<Obstacle>> {
    let state = snapshot.state;
    if spec.allows(donor) {
        // Policy denies most donors, and needs none of their nodes.
        allowed_when_idle(snapshot, spec, donor)?;
        let offer = state.clusters.get(donor).and_then(|cluster| cluster.offer.as_ref());
        if offer.is_none() {
            return Err(Box::new(no_offer(donor)));
        }
    }
    let ask = |snapshot: &Snapshot<'_>, nodes: &IdleNodes| {
        let mut mig_values = MigValues::default();
        let mut fitter =
            |idle: &Snapshot<'_>, donor: &ClusterId, wanted: &Wanted<'_>| fit(idle, donor, wanted, &mut mig_values);
        ask_donor(&nodes.snapshot(snapshot), spec, donor, &mut fitter).map(|_| ())
    };
    // A donor serves the request if some of its nodes do.
    let mut brief = snapshot.clone();
    brief.explains = false;
    ask(&brief, &IdleNodes::sample(state, donor))
        .or_else(|_| ask(snapshot, &IdleNodes::of(state, std::iter::once(donor))))
}

/// Whether policy allows a loan of any class that the request accepts; a selector may accept all of the tenant's.
fn allowed_when_idle(snapshot: &Snapshot<'_>, spec: &RequestSpec, donor: &ClusterId) -> Result<(), Box<Obstacle>> {
    let classes = snapshot.classes_of(spec);
    let nodes = IdleNodes::of(snapshot.state, std::iter::empty());
    let idle = nodes.snapshot(snapshot);
    let mut denials = Vec::new();
    for class in &classes {
        match permitted(idle.may_borrow(donor, PolicyQuery::of(spec, class, spec.least_milli()))) {
            Ok(_) => return Ok(()),
            Err(denial) => denials.push(denial),
        }
    }
    // A denial that passes is enough.
    denials.into_iter().min_by_key(|denial| denial.cure).map_or(Ok(()), Err)
}

/// Whether the request and policy leave a donor that has made an offer, besides `refused`.
pub(crate) fn serves_without(state: &State, spec: &RequestSpec, refused: &ClusterId) -> bool {
    let Some(snapshot) = Snapshot::new(state) else { return false };
    let offers = |donor: &ClusterId| state.clusters.get(donor).is_some_and(|cluster| cluster.offer.is_some());
    let may_lend = |donor: &ClusterId| {
        let denial = allowed_when_idle(&snapshot, spec, donor).err();
        denial.is_none_or(|obstacle| obstacle.cure == Cure::Waiting)
    };
    donors(state, spec).any(|donor| donor != refused && spec.allows(donor) && offers(donor) && may_lend(donor))
}

/// The obstacle at `donor` that waiting cannot cure, if there is one.
pub(crate) fn lasting_obstacle(snapshot: &Snapshot<'_>, spec: &RequestSpec, donor: &ClusterId) -> Option<Obstacle> {
    ask_idle_donor(snapshot, spec, donor).err().filter(|obstacle| obstacle.cure == Cure::Change).map(|it| *it)
}
