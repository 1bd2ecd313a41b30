//! Explains a lack of room that only nodes cause which their owner does not lend now.

use std::collections::BTreeSet;

use comity_types::{ClusterId, NodeId};

use crate::feasibility::fit::cutting::MigValues;
use crate::feasibility::fit::{Fit, Wanted, fit};
use crate::feasibility::obstacle::{Cure, Obstacle, check_reserve, named, obstacle};
use crate::feasibility::snapshot::Snapshot;
use crate::model::health::NodeHealth;
use crate::state::usable::Usable;

/// The obstacle, if the request would fit at `donor` were none of its healthy nodes cordoned. `now` of `least` shares
/// fit as it is.
pub(crate) fn not_lent(
    snapshot: &Snapshot<'_>,
    donor: &ClusterId,
    wanted: &Wanted<'_>,
    now: u64,
    least: u64,
) -> Option<Obstacle> {
    let cluster = snapshot.state.clusters.get(donor)?;
    let quarantined = |id: &NodeId| cluster.health.node(id).and_then(NodeHealth::until).is_some();
    let offered = &cluster.offer.as_ref()?.nodes;
    let cordoned: BTreeSet<&NodeId> = offered
        .iter()
        .filter(|(id, node)| node.ready && !node.schedulable && !quarantined(id))
        .map(|(id, _)| id)
        .collect();
    if cordoned.is_empty() {
        return None;
    }
    let mut nodes = snapshot.state.derived.usable.get(donor).cloned().unwrap_or_default();
    for id in &cordoned {
        let mut node = snapshot.state.usable_node(donor, id)?.clone();
        node.schedulable = true;
        nodes.insert((*id).clone(), node);
    }
    let instead: Usable = [(donor.clone(), nodes)].into();
    let lending = snapshot.clone().with_usable(&instead);
    let Fit::Fits { placement, .. } = fit(&lending, donor, wanted, &mut MigValues::default()) else { return None };
    check_reserve(&lending, donor, &placement).ok()?;
    let used = placement.nodes.keys().filter(|id| cordoned.contains(id));
    let reason = format!(
        "{donor} has room for {now} of {least} shares of class {} now, and for all of them if this were lent: {}",
        wanted.class,
        named(used.map(|id| format!("node {id}, which is cordoned")))
    );
    Some(obstacle(Cure::Waiting, "not-lent", reason, "wait until its owner lends it again"))
}
