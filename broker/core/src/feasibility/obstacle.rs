//! Obstacles: reasons why a donor cannot serve a request, and the checks that raise them.

use comity_policy::{Denial, show_gpus};
use comity_types::{ClusterId, Delivery};
use serde::{Deserialize, Serialize};

use crate::feasibility::snapshot::Snapshot;
use crate::model::limits::WHOLE_MILLI;
use crate::model::placement::Placement;
use crate::model::time::Timestamp;
use crate::state::offered::lendable;

/// Nodes or parts that a reason lists by name.
const MAX_NAMED: usize = 3;

/// The first parts by name, and the number of the others.
pub(crate) fn named(parts: impl Iterator<Item = String>) -> String {
    let mut named: Vec<String> = parts.collect();
    let rest = named.len().saturating_sub(MAX_NAMED);
    named.truncate(MAX_NAMED);
    if rest > 0 {
        named.push(format!("and {rest} more"));
    }
    named.join(", ")
}

const LOCAL_RESERVE: &str = "local-reserve";

/// A reason why a donor cannot serve a request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Obstacle {
    /// Stable code: one of policy's, or `donor-excluded`, `revoked`, `donor-silent`, `no-offer`,
    /// `delivery-not-offered`, `no-such-devices`, `local-reserve`, `reserved-for-others`, `no-capacity`, `no-nvlink`,
    /// `no-numa-alignment`, `no-rdma`, `not-enforced`, `not-isolated`, `wiring-together`, `unhealthy`, `quarantined`,
    /// `not-lent`.
    pub code: String,
    /// The reason in words.
    pub reason: String,
    /// Remedy, in words.
    pub unblock: String,
    /// Policy documents behind it.
    pub by: Vec<String>,
    /// When it passes by itself, if known.
    pub until: Option<Timestamp>,
    /// The kind of event that removes it.
    pub cure: Cure,
}

/// The kind of event that removes an obstacle.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Cure {
    /// Leases and local work end, nodes recover, agents return.
    Waiting,
    /// Somebody changes the request, the offer or policy.
    Change,
}

pub(crate) fn obstacle(cure: Cure, code: &str, reason: String, unblock: impl Into<String>) -> Obstacle {
    Obstacle { code: code.to_owned(), reason, unblock: unblock.into(), by: Vec::new(), until: None, cure }
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
        Cure::Waiting,
        "delivery-not-offered",
        format!("the agent of {donor} does not offer delivery {wanted} now"),
        format!("wait until it does{needs}{instead}"),
    )))
}

pub(crate) fn permitted(answer: Result<Option<&str>, Box<Denial>>) -> Result<Option<&str>, Box<Obstacle>> {
    answer.map_err(|denial| Box::new(Obstacle::of_denial(*denial)))
}

impl Obstacle {
    pub(crate) fn of_denial(denial: Denial) -> Self {
        Self {
            code: denial.code.as_str().to_owned(),
            by: denial.by.iter().map(ToString::to_string).collect(),
            reason: denial.message,
            unblock: denial.unblock,
            until: None,
            cure: if denial.code.may_pass() { Cure::Waiting } else { Cure::Change },
        }
    }
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
    let Some(terms) = snapshot.bundle.clusters.get(donor.as_str()) else { return Ok(()) };
    let reserve = terms.spec.local_reserve_gpus_milli;
    if reserve == 0 {
        return Ok(());
    }
    let free = lendable_milli(snapshot, donor).saturating_sub(snapshot.lent_milli(donor));
    if free >= placement.milli().saturating_add(reserve) {
        return Ok(());
    }
    let by = terms.cite("localReserveGpus");
    let all = u64::from(WHOLE_MILLI) * u64::try_from(snapshot.state.devices_offered(donor)).unwrap_or(u64::MAX);
    let most = all.saturating_sub(reserve);
    let found = if most < placement.milli() {
        let fewer = if most == 0 { String::new() } else { format!("ask for at most {} GPUs, or ", show_gpus(most)) };
        obstacle(
            Cure::Change,
            LOCAL_RESERVE,
            format!(
                "`localReserveGpus` of {by} keeps {} GPUs free for local work, and {donor} offers {} in all",
                show_gpus(reserve),
                show_gpus(all)
            ),
            format!("{fewer}lower `localReserveGpus` there"),
        )
    } else {
        obstacle(
            Cure::Waiting,
            LOCAL_RESERVE,
            format!("{donor} keeps {} GPUs free for local work; {} are free", show_gpus(reserve), show_gpus(free)),
            "wait until more is free there, or ask for less",
        )
    };
    Err(Box::new(Obstacle { by: vec![by.to_string()], ..found }))
}
