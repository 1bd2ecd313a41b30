//! Explains a lack of room that only unhealthy nodes or devices cause, and gives a remedy.

use std::collections::BTreeMap;

use comity_types::{ClusterId, NodeId};

use crate::feasibility::fit::cutting::MigValues;
use crate::feasibility::fit::{Fit, Wanted, fit};
use crate::feasibility::obstacle::{Cure, Obstacle, check_reserve, named, obstacle};
use crate::feasibility::snapshot::Snapshot;
use crate::model::health::NodeHealth;
use crate::model::inventory::Node;
use crate::model::time::Timestamp;
use crate::state::usable::{Usable, broken_cliques};

/// The obstacle, if the request would fit at `donor` were all of it healthy. `now` of `least` shares fit as it is.
pub(crate) fn unhealthy(
    snapshot: &Snapshot<'_>,
    donor: &ClusterId,
    wanted: &Wanted<'_>,
    now: u64,
    least: u64,
) -> Option<Obstacle> {
    let cluster = snapshot.state.clusters.get(donor)?;
    let mut healed: BTreeMap<NodeId, Node> = BTreeMap::new();
    let mut parts: Vec<(String, Option<Timestamp>)> = Vec::new();
    for (id, node) in &cluster.offer.as_ref()?.nodes {
        let found = ailments(id, node, cluster.health.node(id));
        if !found.is_empty() {
            healed.insert(id.clone(), healed_node(node));
            parts.extend(found);
        }
    }
    if parts.is_empty() {
        return None;
    }
    let instead: Usable = BTreeMap::from([(donor.clone(), healed)]);
    let well = snapshot.clone().with_usable(&instead);
    let Fit::Fits { placement, .. } = fit(&well, donor, wanted, &mut MigValues::default()) else { return None };
    // Healed capacity may still belong to the donor's reserve.
    check_reserve(&well, donor, &placement).ok()?;
    let reason = format!(
        "{donor} has room for {now} of {least} shares of class {} now, and for all of them if this were healthy: {}",
        wanted.class,
        named(parts.iter().map(|(words, _)| words.clone()))
    );
    // A quarantine ends by itself.
    Some(match parts.iter().map(|(_, until)| *until).collect::<Option<Vec<_>>>() {
        Some(until) => {
            let last = until.into_iter().max().unwrap_or_default();
            let quarantined =
                obstacle(Cure::Waiting, "quarantined", reason, format!("wait until {}", last.to_minute()));
            Obstacle { until: Some(last), ..quarantined }
        }
        None => obstacle(Cure::Waiting, "unhealthy", reason, "wait until its owner has reset, repaired or replaced it"),
    })
}

/// Describes the unhealthy parts of a node, with the end of each quarantine.
fn ailments(id: &NodeId, node: &Node, health: Option<&NodeHealth>) -> Vec<(String, Option<Timestamp>)> {
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

fn healed_node(node: &Node) -> Node {
    let mut well = node.clone();
    well.schedulable |= !node.ready;
    well.ready = true;
    for device in &mut well.devices {
        device.healthy = true;
        device.fault = None;
    }
    well
}
