//! What needs attention, each with the next command.

use comity_types::LeaseState;
use serde::Serialize;

use super::group_health::GroupHealth;
use super::observed::Observed;
use crate::units::age;
use crate::views::{Cluster, Lease, Request};

const MINUTE_MS: u64 = 60_000;
/// A lease that ends within this time should be renewed now.
pub(super) const SOON_MS: u64 = 30 * MINUTE_MS;
/// A certificate that ends within this time should be replaced now.
const CERTIFICATE_MS: u64 = 7 * 24 * 60 * MINUTE_MS;
/// Entries of one kind.
const MAX_OF_A_KIND: usize = 5;

/// One matter that needs attention.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Advice {
    /// The matter.
    pub(super) text: String,
    /// The next command.
    pub(super) command: String,
}

impl Advice {
    fn new(text: impl Into<String>, command: impl Into<String>) -> Self {
        Self { text: text.into(), command: command.into() }
    }
}

/// All that needs attention, the most important first.
pub(super) fn advice(observed: &Observed, group: &GroupHealth, now_ms: u64) -> Vec<Advice> {
    let caller = &observed.caller;
    let mut all = Vec::new();
    if group.visible && group.leader.is_none() {
        all.push(Advice::new("no broker leads", "comity raft status"));
    }
    if !group.silent.is_empty() {
        all.push(Advice::new(format!("no answer from {}", group.silent.join(", ")), "comity raft status"));
    }
    if !caller.policy_in_force {
        all.push(Advice::new("no policy is in force", "comity policy apply DIRECTORY"));
    } else if caller.has_no_role() {
        all.push(Advice::new("policy gives you no role; ask a maintainer for one", "comity whoami"));
    }
    if caller.certificate_not_after_ms < now_ms + CERTIFICATE_MS {
        let ends = age(caller.certificate_not_after_ms, now_ms);
        all.push(Advice::new(format!("your certificate ends {ends}; ask a maintainer for a new one"), "comity whoami"));
    }
    all.extend(observed.leases.iter().filter_map(|lease| of_lease(lease, now_ms)).take(MAX_OF_A_KIND));
    all.extend(observed.waiting.iter().filter_map(|request| of_request(request, observed)).take(MAX_OF_A_KIND));
    all.extend(observed.clusters.iter().filter_map(|cluster| of_cluster(cluster, now_ms)).take(MAX_OF_A_KIND));
    let unhealthy = observed.offers.iter().filter_map(|offer| {
        let devices: u32 = offer.classes.iter().map(|class| class.unhealthy).sum();
        let text = format!("{} has {devices} unhealthy devices", offer.cluster);
        (devices > 0).then(|| Advice::new(text, format!("comity offers {}", offer.cluster)))
    });
    all.extend(unhealthy.take(MAX_OF_A_KIND));
    all
}

fn of_lease(lease: &Lease, now_ms: u64) -> Option<Advice> {
    let id = &lease.id;
    let show = format!("comity lease show {id}");
    if lease.state.is(LeaseState::Reclaiming) {
        let deadline = lease.reclaim.as_ref().and_then(|reclaim| reclaim.deadline_ms).unwrap_or(0);
        return Some(Advice::new(format!("{id} is being reclaimed and ends {}", age(deadline, now_ms)), show));
    }
    if lease.state.is(LeaseState::Suspect) {
        return Some(Advice::new(format!("{id} is suspect: one of its agents is silent"), show));
    }
    let expiry = lease.expiry_ms().filter(|at| *at < now_ms + SOON_MS)?;
    Some(Advice::new(format!("{id} expires {}", age(expiry, now_ms)), format!("comity lease renew {id}")))
}

fn of_request(request: &Request, observed: &Observed) -> Option<Advice> {
    let id = request.id.as_ref()?;
    let explain = format!("comity request explain {id}");
    let position = observed.positions.get(id)?;
    if position.too_late {
        return Some(Advice::new(format!("{id} cannot start before its start window closes"), explain));
    }
    Some(Advice::new(format!("{id} waits"), explain))
}

fn of_cluster(cluster: &Cluster, now_ms: u64) -> Option<Advice> {
    let since = age(cluster.since_ms.unwrap_or(0), now_ms);
    let text = format!("cluster {} is silent ({since})", cluster.id);
    (cluster.is_member() && !cluster.connected)
        .then(|| Advice::new(text, format!("comity cluster show {}", cluster.id)))
}
