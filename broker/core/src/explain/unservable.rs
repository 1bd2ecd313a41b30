//! Requests that no donor could ever serve as things are: not even if all leases ended and every node were healthy.
//!
//! Clusters that have joined decide, silent ones by their last offer. Where none of them has lending terms, or where
//! the request allows a donor that has yet to join, the request waits for a donor to join. A donor without an offer may
//! be starting: the request waits for it, unless it has been silent for ten minutes.

use std::collections::BTreeSet;

use comity_types::ClusterId;

use crate::explain::explanation::for_one_donor;
use crate::feasibility::donors::promise::donors;
use crate::feasibility::donors::spread::{gather, members_in};
use crate::feasibility::fit::cutting::MigValues;
use crate::feasibility::fit::fit;
use crate::feasibility::idle::{IdleNodes, ask_idle_donor};
use crate::feasibility::obstacle::{Cure, Obstacle};
use crate::feasibility::snapshot::Snapshot;
use crate::model::cluster::Cluster;
use crate::model::demand::RequestSpec;
use crate::model::refusal::{Code, Refusal};
use crate::model::time::{Millis, Timestamp};
use crate::state::State;

/// Reasons that a refusal quotes, and donors that it names; it counts the rest.
const MAX_REASONS: usize = 3;
/// A silent donor that never made an offer may be starting for this long.
const STARTS_WITHIN: Millis = Millis::from_mins(10);

/// The refusal of `spec`, which must be as a submission at `now` makes it; `None` if a donor could serve it some day.
#[must_use]
pub fn unservable(state: &State, spec: &RequestSpec, now: Timestamp) -> Option<Refusal> {
    let mut snapshot = Snapshot::new(state)?;
    snapshot.explains = true;
    let lends = |donor: &ClusterId| snapshot.bundle.clusters.contains_key(donor.as_str());
    let waits_for_a_member = spec.allow_donors.iter().any(|donor| !state.clusters.contains_key(donor));
    if waits_for_a_member || !donors(state, spec).any(lends) {
        return None;
    }
    let asked = for_one_donor(spec);
    let mut obstacles = Vec::new();
    let mut candidates = Vec::new();
    let mut unheard = Unheard::default();
    for donor in donors(state, spec) {
        match ask_idle_donor(&snapshot, &asked, donor) {
            Ok(()) if spec.spread_donors => candidates.push(donor),
            Err(obstacle) if obstacle.cure == Cure::Change => obstacles.push(*obstacle),
            Err(_) if never_reports(state, donor, now) => unheard.donors.push(donor),
            Ok(()) | Err(_) => return None,
        }
    }
    let refusal = if candidates.is_empty() {
        refusal(obstacles, &unheard)
    } else {
        too_few_members(&snapshot, spec, &candidates)?
    };
    Some(unheard.add_to(state, refusal))
}

/// Whether a donor without an offer has been silent for so long that its agent will hardly start by itself.
fn never_reports(state: &State, donor: &ClusterId, now: Timestamp) -> bool {
    let silent =
        |cluster: &Cluster| !cluster.connected && cluster.offer.is_none() && now.since(cluster.since) >= STARTS_WITHIN;
    state.clusters.get(donor).is_some_and(silent)
}

/// Silent donors that never made an offer.
#[derive(Default)]
struct Unheard<'s> {
    donors: Vec<&'s ClusterId>,
}

impl Unheard<'_> {
    /// Names these donors in a refusal: they might serve the request.
    fn add_to(&self, state: &State, refusal: Refusal) -> Refusal {
        let Some(first) = self.donors.first() else { return refusal };
        let silent = self.donors.iter().take(MAX_REASONS).map(|donor| {
            let since = state.clusters.get(*donor).map_or(Timestamp(0), |cluster| cluster.since);
            format!("{donor} has not reported since {}", since.to_minute())
        });
        let mut silent: Vec<String> = silent.collect();
        match self.donors.len().saturating_sub(MAX_REASONS) {
            0 => {}
            1 => silent.push("and 1 more donor".to_owned()),
            more => silent.push(format!("and {more} more donors")),
        }
        Refusal {
            reason: format!("{}; {}", refusal.reason, silent.join("; ")),
            remedy: format!("start the agent of {first}; or {}", refusal.remedy),
            ..refusal
        }
    }
}

/// The refusal of a gang for whose members `candidates` have too little room together.
fn too_few_members(snapshot: &Snapshot<'_>, spec: &RequestSpec, candidates: &[&ClusterId]) -> Option<Refusal> {
    let nodes = IdleNodes::of(snapshot.state, candidates.iter().copied());
    let idle = nodes.snapshot(snapshot);
    let mut mig_values = MigValues::default();
    let parts = gather(&idle, spec, None, &mut |idle, donor, wanted| fit(idle, donor, wanted, &mut mig_values));
    let held: u32 = parts.iter().map(|part| members_in(spec, part)).sum();
    let needed = spec.members.map_or(1, |members| members.min);
    (held < needed).then(|| {
        let reason = format!(
            "no donors together could ever serve this request: when idle, they have room for {held} of the {needed} \
             members that must start"
        );
        Refusal::new(Code::Unservable, reason, remedy(&format!("ask for at most {held} members")))
    })
}

/// Quotes each reason once, those about capacity first: policy has nothing against these donors.
fn refusal(mut obstacles: Vec<Obstacle>, unheard: &Unheard<'_>) -> Refusal {
    let Some(change) = obstacles.iter().min_by_key(|obstacle| distance(obstacle)).map(|it| it.unblock.clone()) else {
        let remedy = "set queue_anyway, and the request waits for it";
        return Refusal::new(Code::Unservable, "no donor has reported its devices yet", remedy);
    };
    let asked = if unheard.donors.is_empty() { "no donor" } else { "no donor that has reported" };
    obstacles.sort_by_key(distance);
    let mut seen = BTreeSet::new();
    obstacles.retain(|obstacle| seen.insert(obstacle.reason.clone()));
    let mut reasons: Vec<String> = obstacles.iter().take(MAX_REASONS).map(reason_of).collect();
    match obstacles.len().saturating_sub(MAX_REASONS) {
        0 => {}
        1 => reasons.push("and 1 more reason".to_owned()),
        more => reasons.push(format!("and {more} more reasons")),
    }
    let reason = format!("{asked} could ever serve this request: {}", reasons.join("; "));
    Refusal::new(Code::Unservable, reason, remedy(&change))
}

/// The reason, with the place in the policy documents if it has not named it.
fn reason_of(obstacle: &Obstacle) -> String {
    match obstacle.by.first().filter(|by| !obstacle.reason.contains(by.as_str())) {
        Some(by) => format!("{}, see {by}", obstacle.reason),
        None => obstacle.reason.clone(),
    }
}

fn remedy(change: &str) -> String {
    format!("{change}; or set queue_anyway, and the request waits for such a change")
}

/// How far a donor is from serving the request.
fn distance(obstacle: &Obstacle) -> u8 {
    match obstacle.code.as_str() {
        "donor-excluded" | "unknown-donor" => 2,
        "local-reserve" => 0,
        _ if obstacle.by.is_empty() => 0,
        _ => 1,
    }
}
