//! Where a donor lacks room only because some of its nodes or devices are not well: which, and what would change that.

use std::collections::BTreeMap;

use crate::feasibility::fit::cutting::MigValues;
use crate::feasibility::fit::{Fit, Wanted, fit};
use crate::feasibility::obstacle::{Obstacle, check_reserve, obstacle};
use crate::feasibility::snapshot::Snapshot;
use crate::model::health::NodeHealth;
use crate::model::id::{ClusterId, NodeId};
use crate::model::inventory::Node;
use crate::model::time::Timestamp;
use crate::state::usable::{Usable, broken_cliques};

/// Parts that are named; of more only the number is said.
const NAMED: usize = 3;

/// The obstacle, if the request would fit at `donor` were all of it well. `now` shares of `least` fit as it is.
pub(crate) fn unhealthy(
    snapshot: &Snapshot<'_>,
    donor: &ClusterId,
    wanted: &Wanted<'_>,
    (now, least): (u64, u64),
) -> Option<Obstacle> {
    let cluster = snapshot.state.clusters.get(donor)?;
    let mut healed: BTreeMap<NodeId, Node> = BTreeMap::new();
    let mut parts: Vec<(String, Option<Timestamp>)> = Vec::new();
    for (id, node) in &cluster.offer.as_ref()?.nodes {
        let found = ill(id, node, cluster.health.node(id));
        if !found.is_empty() {
            healed.insert(id.clone(), as_if_well(node));
            parts.extend(found);
        }
    }
    if parts.is_empty() {
        return None;
    }
    let instead: Usable = BTreeMap::from([(donor.clone(), healed)]);
    let well = snapshot.clone().where_usable(&instead);
    let Fit::Fits { placement, .. } = fit(&well, donor, wanted, &mut MigValues::default()) else { return None };
    // What would be free then may still be what the donor keeps for itself.
    check_reserve(&well, donor, &placement).ok()?;
    let rest = parts.len().saturating_sub(NAMED);
    let mut named: Vec<String> = parts.iter().take(NAMED).map(|(words, _)| words.clone()).collect();
    if rest > 0 {
        named.push(format!("and {rest} more"));
    }
    let reason = format!(
        "{donor} has room for {now} of {least} shares of class {} now, and would have with what is not well: {}",
        wanted.class,
        named.join(", ")
    );
    // Quarantines end by themselves.
    Some(match parts.iter().map(|(_, until)| *until).collect::<Option<Vec<_>>>() {
        Some(until) => {
            let last = until.into_iter().max().unwrap_or_default();
            let quarantined = obstacle("quarantined", reason, format!("wait until {}", last.to_minute()));
            Obstacle { until: Some(last), ..quarantined }
        }
        None => obstacle("unhealthy", reason, "wait until its owner has reset, repaired or replaced it"),
    })
}

/// What of a node is not well, in words, and until when at most where it is only kept out.
fn ill(id: &NodeId, node: &Node, health: Option<&NodeHealth>) -> Vec<(String, Option<Timestamp>)> {
    if !node.ready {
        return vec![(format!("node {id}, which does not answer"), None)];
    }
    if let Some(until) = health.and_then(NodeHealth::until) {
        return vec![(format!("node {id}, quarantined until {}", until.to_minute()), Some(until))];
    }
    let mut found = Vec::new();
    for (index, device) in (0_u32..).zip(&node.devices) {
        let until = health.and_then(|health| health.device_until(index));
        if !device.healthy {
            let why = device.fault.as_ref().map_or_else(|| "it is not healthy".to_owned(), ToString::to_string);
            found.push((format!("device {index} of node {id}: {why}"), None));
        } else if let Some(until) = until {
            let words = format!("device {index} of node {id}, quarantined until {}", until.to_minute());
            found.push((words, Some(until)));
        }
    }
    for clique in broken_cliques(node) {
        found.push((format!("NVLink of clique {clique} of node {id}"), None));
    }
    found
}

fn as_if_well(node: &Node) -> Node {
    let mut well = node.clone();
    well.schedulable |= !node.ready;
    well.ready = true;
    for device in &mut well.devices {
        device.healthy = true;
        device.fault = None;
    }
    well
}
