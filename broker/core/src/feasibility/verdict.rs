//! One donor's answer to one request: a placement, or the first reason against it.

use std::collections::{BTreeMap, BTreeSet};

use comity_policy::{Selector, compile_selector};
use serde::{Deserialize, Serialize};

use crate::feasibility::fit::cutting::MigValues;
use crate::feasibility::fit::{Fit, Wanted, fit};
use crate::feasibility::obstacle::{Obstacle, check_reserve, delivery_offered, obstacle, permitted};
use crate::feasibility::obstacles::never_fits::never;
use crate::feasibility::obstacles::no_start::no_start;
use crate::feasibility::obstacles::not_wired::in_the_way;
use crate::feasibility::obstacles::unhealthy::unhealthy;
use crate::feasibility::reclaim_checks::pool::{check_pools, really_free};
use crate::feasibility::snapshot::{PolicyQuery, Snapshot};
use crate::model::demand::{DeviceChoice, Members, RequestSpec};
use crate::model::id::{ClassName, ClusterId};
use crate::model::placement::Placement;

/// One donor's answer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DonorVerdict {
    /// Donor.
    pub donor: ClusterId,
    /// The first reason against it; `None`: it fits.
    pub obstacle: Option<Obstacle>,
}

/// A placement that policy and capacity allow.
pub(crate) struct FeasiblePlacement {
    pub(crate) placement: Placement,
    pub(crate) class: ClassName,
    pub(crate) agreement: Option<String>,
    /// Thousandths of devices that it leaves idle.
    pub(crate) waste_milli: i64,
}

/// Finds room at one donor for devices of one class.
pub(crate) type Fitter<'f> = &'f mut dyn FnMut(&Snapshot<'_>, &ClusterId, &Wanted<'_>) -> Fit;

/// Asks one donor. Filters come in the order in which their reasons help most: what the request says, whether the donor
/// is there, what policy says, what is free.
pub(crate) fn ask_donor(
    snapshot: &Snapshot<'_>,
    spec: &RequestSpec,
    donor: &ClusterId,
    fitter: Fitter<'_>,
) -> Result<FeasiblePlacement, Box<Obstacle>> {
    if !spec.allow_donors.is_empty() && !spec.allow_donors.contains(donor) || spec.deny_donors.contains(donor) {
        return Err(Box::new(obstacle(
            "donor-excluded",
            format!("the request excludes {donor}"),
            "submit it without that restriction",
        )));
    }
    let cluster = snapshot.state.clusters.get(donor).filter(|cluster| cluster.connected).ok_or_else(|| {
        Box::new(obstacle("donor-silent", format!("the agent of {donor} is not connected"), "wait until it is back"))
    })?;
    if cluster.offer.is_none() {
        return Err(Box::new(obstacle(
            "no-offer",
            format!("{donor} offers nothing"),
            "wait until its agent advertises",
        )));
    }
    match &spec.gpus.devices {
        DeviceChoice::Class(class) => ask_class(snapshot, spec, donor, class, None, fitter),
        DeviceChoice::Selector(source) => {
            let selector = compile_selector(source).map_err(|problem| {
                Box::new(obstacle(
                    "invalid-selector",
                    problem.message,
                    "submit the request with a selector that compiles",
                ))
            })?;
            ask_selector(snapshot, spec, donor, &selector, fitter)
        }
    }
}

/// A selector may hit devices of several classes: the classes are tried in name order, and a lease is of one of them.
fn ask_selector(
    snapshot: &Snapshot<'_>,
    spec: &RequestSpec,
    donor: &ClusterId,
    selector: &Selector,
    fitter: Fitter<'_>,
) -> Result<FeasiblePlacement, Box<Obstacle>> {
    let facts = snapshot.state.derived.device_counts.get(donor).into_iter().flat_map(BTreeMap::keys);
    let classes: BTreeSet<&ClassName> =
        facts.filter(|(_, facts)| selector.matches(facts)).map(|(class, _)| class).collect();
    let mut first = None;
    for class in classes {
        match ask_class(snapshot, spec, donor, class, Some(selector), fitter) {
            Ok(candidate) => return Ok(candidate),
            Err(obstacle) => first = first.or(Some(obstacle)),
        }
    }
    Err(first.unwrap_or_else(|| {
        Box::new(obstacle(
            "no-such-devices",
            format!("no device of {donor} that belongs to a class is selected"),
            "widen the selector",
        ))
    }))
}

fn ask_class(
    snapshot: &Snapshot<'_>,
    spec: &RequestSpec,
    donor: &ClusterId,
    class: &ClassName,
    selector: Option<&Selector>,
    fitter: Fitter<'_>,
) -> Result<FeasiblePlacement, Box<Obstacle>> {
    let ask = |milli| PolicyQuery {
        tenant: spec.tenant.as_str(),
        origin: &spec.origin,
        class,
        milli,
        delivery: spec.delivery,
        duration: spec.duration,
    };
    // Policy first, with the nominal amount: its reasons hold whatever is free.
    let at_least = permitted(snapshot.may_borrow(donor, ask(spec.least_milli())))?;
    delivery_offered(snapshot, spec.delivery, donor)?;
    let wanted =
        Wanted { class, gpus: &spec.gpus, topology: spec.topology, members: spec.members, selector, most_milli: None };
    let (mut placement, mut waste_milli, free) = match seek(snapshot, donor, &wanted, fitter) {
        (Fit::Fits { placement, waste_milli }, free) => (placement, waste_milli, free),
        (Fit::Lacks { now, ever }, _) => {
            if snapshot.explains
                && let Some(ill) = unhealthy(snapshot, donor, &wanted, (now, spec.least_shares()))
            {
                return Err(Box::new(ill));
            }
            if snapshot.explains
                && let Some(never) = never(snapshot, donor, &wanted, spec.least_shares())
            {
                return Err(Box::new(never));
            }
            if snapshot.explains
                && let Some(wish) = in_the_way(snapshot, donor, &wanted, spec.least_shares())
            {
                return Err(Box::new(wish));
            }
            let mut lacks = lacks(spec, donor, class, now, ever);
            // Costly to find out, so only where somebody reads it.
            if snapshot.explains
                && now == 0
                && ever >= spec.least_shares()
                && let Some((reason, unblock)) = no_start(snapshot, donor, &wanted)
            {
                (lacks.reason, lacks.unblock) = (reason, unblock);
            }
            return Err(Box::new(lacks));
        }
    };
    // What devices really give may be more than nominal: a slice is rounded up.
    let granted = |placement: &Placement, free: bool| {
        let agreement = if placement.milli() == spec.least_milli() {
            at_least
        } else {
            permitted(snapshot.may_borrow(donor, ask(placement.milli())))?
        };
        check_reserve(snapshot, donor, placement)?;
        if free { Ok(agreement) } else { check_pools(snapshot, placement).map(|()| agreement) }
    };
    let mut agreement = granted(&placement, free);
    // More members than it needs may be more than policy allows: the most that it allows is found by halving.
    if let (Err(_), Some(members)) = (&agreement, spec.members)
        && placement.units() > spec.least_shares()
    {
        let mut beyond = u32::try_from(placement.units() / u64::from(spec.gpus.count.max(1))).unwrap_or(u32::MAX);
        let (mut least, mut desired) = (None, members.min);
        while desired < beyond {
            let fewer = Wanted { members: Some(Members { desired, ..members }), ..wanted };
            let (Fit::Fits { placement: some, waste_milli: waste }, free) = seek(snapshot, donor, &fewer, fitter)
            else {
                break;
            };
            match granted(&some, free) {
                Ok(under) => {
                    (agreement, placement, waste_milli) = (Ok(under), some, waste);
                    least = Some(desired);
                }
                // Not even those that it needs.
                Err(denied) if least.is_none() => {
                    agreement = Err(denied);
                    break;
                }
                Err(_) => beyond = desired,
            }
            let known = least.unwrap_or(members.min);
            desired = known.midpoint(beyond).max(known + 1);
        }
    }
    let agreement = agreement?.map(str::to_owned);
    Ok(FeasiblePlacement { placement, class: class.clone(), agreement, waste_milli })
}

/// What the fitter finds; if local work holds what is counted as free there, what is found without such devices. And
/// whether it is known that [pools](check_pools) have what was found.
fn seek(snapshot: &Snapshot<'_>, donor: &ClusterId, wanted: &Wanted<'_>, fitter: Fitter<'_>) -> (Fit, bool) {
    let found = fitter(snapshot, donor, wanted);
    let Fit::Fits { placement, .. } = &found else { return (found, false) };
    if check_pools(snapshot, placement).is_ok() {
        return (found, true);
    }
    let free = really_free(snapshot, donor);
    match fit(&snapshot.clone().where_usable(&free), donor, wanted, &mut MigValues::default()) {
        other @ Fit::Fits { .. } => (other, false),
        Fit::Lacks { .. } => (found, false),
    }
}

fn lacks(spec: &RequestSpec, donor: &ClusterId, class: &ClassName, now: u64, ever: u64) -> Obstacle {
    let count = spec.least_shares();
    let place = if spec.topology.same_node { "on one node" } else { "in all" };
    if ever == 0 {
        return obstacle(
            "no-such-devices",
            format!("{donor} has no device of class {class} that can serve such a share"),
            "ask for another class or share",
        );
    }
    if ever < count {
        return obstacle(
            "no-such-devices",
            format!("{donor} has room for {ever} such shares {place} even when idle; {count} are asked for"),
            "ask for fewer, or for another topology",
        );
    }
    if let Some(members) = spec.members.filter(|_| !spec.topology.whole_node) {
        let each = spec.gpus.count;
        let together = if spec.topology.same_node { ", all on one node" } else { "" };
        return obstacle(
            "no-capacity",
            format!(
                "{donor} has room for {} of {} members now, with {each} shares of class {class} each{together}",
                now / u64::from(each.max(1)),
                members.min
            ),
            format!("wait until {each} shares are free together on a node for each member that is missing"),
        );
    }
    if spec.topology.whole_node {
        return obstacle(
            "no-capacity",
            format!("{donor} has no whole nodes free that {count} shares of class {class} fill now"),
            "wait until such nodes are free, or ask for nodes that are not taken whole",
        );
    }
    let unblock = match count.saturating_sub(now) {
        0 => "wait until more is free together".to_owned(),
        missing => format!("wait until {missing} more are free"),
    };
    obstacle(
        "no-capacity",
        format!("{donor} has room for {now} of {count} shares of class {class} {place} now"),
        unblock,
    )
}
