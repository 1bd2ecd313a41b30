//! Obstacles: reasons why a donor cannot serve a request, and the checks that raise them.

use comity_policy::{Denial, show_gpus};
use comity_types::{ClusterId, Delivery};
use serde::{Deserialize, Serialize};

use crate::feasibility::snapshot::Snapshot;
use crate::model::placement::Placement;
use crate::model::time::Timestamp;
use crate::state::offered::lendable;

/// A reason why a donor cannot serve a request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Obstacle {
    /// Stable code: one of policy's, or `donor-excluded`, `donor-silent`, `no-offer`, `delivery-not-offered`,
    /// `no-such-devices`, `local-reserve`, `no-capacity`, `no-nvlink`, `no-numa-alignment`, `no-rdma`,
    /// `wiring-together`, `unhealthy`, `quarantined`.
    pub code: String,
    /// The reason in words.
    pub reason: String,
    /// Remedy, in words.
    pub unblock: String,
    /// Policy documents behind it.
    pub by: Vec<String>,
    /// When it passes by itself, if known.
    pub until: Option<Timestamp>,
}

pub(crate) fn obstacle(code: &str, reason: String, unblock: impl Into<String>) -> Obstacle {
    Obstacle { code: code.to_owned(), reason, unblock: unblock.into(), by: Vec::new(), until: None }
}

/// Checks that the donor's agent can serve this delivery now.
pub(crate) fn delivery_offered(
    snapshot: &Snapshot<'_>,
    wanted: Delivery,
    donor: &ClusterId,
) -> Result<(), Box<Obstacle>> {
    let cluster = snapshot.state.clusters.get(donor);
    let deliveries = cluster.and_then(|cluster| cluster.offer.as_ref()).map(|offer| &offer.deliveries);
    if deliveries.is_some_and(|deliveries| deliveries.contains(&wanted)) {
        return Ok(());
    }
    let needs = match wanted {
        Delivery::Namespace => "",
        Delivery::VirtualNode => " (that takes Liqo and fabric mode tun there, both in good health)",
    };
    let others: Vec<String> = deliveries.into_iter().flatten().map(ToString::to_string).collect();
    let instead =
        if others.is_empty() { String::new() } else { format!(", or ask for delivery {}", others.join(" or ")) };
    Err(Box::new(obstacle(
        "delivery-not-offered",
        format!("the agent of {donor} does not offer delivery {wanted} now"),
        format!("wait until it does{needs}{instead}"),
    )))
}

pub(crate) fn permitted(answer: Result<Option<&str>, Box<Denial>>) -> Result<Option<&str>, Box<Obstacle>> {
    answer.map_err(|denial| {
        Box::new(Obstacle {
            code: denial.code.as_str().to_owned(),
            by: denial.by.iter().map(ToString::to_string).collect(),
            reason: denial.message,
            unblock: denial.unblock,
            until: None,
        })
    })
}

/// Thousandths of a donor's healthy devices that local work does not hold, for the nodes of `snapshot`.
pub(crate) fn lendable_milli(snapshot: &Snapshot<'_>, donor: &ClusterId) -> u64 {
    if snapshot.uses_actual_nodes() {
        return snapshot.state.derived.capacities.get(donor).map_or(0, |holds| holds.gpu_milli);
    }
    snapshot.nodes(donor).map(|(_, node, _)| lendable(node).gpu_milli).sum()
}

/// Checks that the donor's local reserve stays free alongside this placement.
pub(crate) fn check_reserve(
    snapshot: &Snapshot<'_>,
    donor: &ClusterId,
    placement: &Placement,
) -> Result<(), Box<Obstacle>> {
    let reserve = snapshot.bundle.clusters.get(donor.as_str()).map_or(0, |terms| terms.spec.local_reserve_gpus_milli);
    if reserve == 0 {
        return Ok(());
    }
    let free = lendable_milli(snapshot, donor).saturating_sub(snapshot.lent_milli(donor));
    if free >= placement.milli().saturating_add(reserve) {
        return Ok(());
    }
    Err(Box::new(obstacle(
        "local-reserve",
        format!("{donor} keeps {} GPUs free for local work; {} are free", show_gpus(reserve), show_gpus(free)),
        "wait until more is free there, or ask for less",
    )))
}
