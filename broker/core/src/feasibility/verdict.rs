//! Asks one donor about one request: a placement, or the first reason against it.

use std::collections::{BTreeMap, BTreeSet};

use comity_policy::{Selector, compile_selector};
use comity_types::{ClassName, ClusterId};
use serde::{Deserialize, Serialize};

use crate::feasibility::fit::cutting::MigValues;
use crate::feasibility::fit::{Fit, Wanted, fit};
use crate::feasibility::obstacle::{Cure, Obstacle, check_reserve, delivery_offered, obstacle, permitted};
use crate::feasibility::obstacles::never_fits::never_fits;
use crate::feasibility::obstacles::no_start::no_start;
use crate::feasibility::obstacles::not_wired::wiring_obstacle;
use crate::feasibility::obstacles::unhealthy::unhealthy;
use crate::feasibility::reclaim_checks::pool::{check_pools, without_double_counted};
use crate::feasibility::snapshot::{PolicyQuery, Snapshot};
use crate::model::cluster::Cluster;
use crate::model::demand::{DeviceChoice, Members, RequestSpec};
use crate::model::placement::Placement;

/// A donor's answer to a request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DonorVerdict {
    /// The donor.
    pub donor: ClusterId,
    /// The first reason against the donor; `None` if the request fits.
    pub obstacle: Option<Obstacle>,
}

impl DonorVerdict {
    /// Whether waiting cannot cure the obstacle.
    pub(crate) fn lasts(&self) -> bool {
        self.obstacle.as_ref().is_some_and(|obstacle| obstacle.cure == Cure::Change)
    }
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

/// Asks one donor. Filters run in the order in which their reasons help most: the request's own restrictions, the
/// donor's presence, policy, free capacity.
pub(crate) fn ask_donor(
    snapshot: &Snapshot<'_>,
    spec: &RequestSpec,
    donor: &ClusterId,
    fitter: Fitter<'_>,
) -> Result<FeasiblePlacement, Box<Obstacle>> {
    if !spec.allows(donor) {
        return Err(Box::new(obstacle(
            Cure::Change,
            "donor-excluded",
            format!("the request excludes {donor}"),
            "submit it without that restriction",
        )));
    }
    let answers = |cluster: &&Cluster| cluster.connected || snapshot.when_idle;
    let cluster = snapshot.state.clusters.get(donor).filter(answers).ok_or_else(|| {
        let reason = format!("the agent of {donor} is not connected");
        Box::new(obstacle(Cure::Waiting, "donor-silent", reason, "wait until it is back"))
    })?;
    if cluster.offer.is_none() {
        return Err(Box::new(no_offer(donor)));
    }
    match &spec.gpus.devices {
        DeviceChoice::Class(class) => ask_class(snapshot, spec, donor, class, None, fitter),
        DeviceChoice::Selector(source) => {
            let selector = compile_selector(source).map_err(|problem| {
                Box::new(obstacle(
                    Cure::Change,
                    "invalid-selector",
                    problem.message,
                    "submit the request with a selector that compiles",
                ))
            })?;
            ask_selector(snapshot, spec, donor, &selector, fitter)
        }
    }
}

/// A selector may match devices of several classes. Classes are tried in name order, and a lease uses one class.
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
    let mut first: Option<Box<Obstacle>> = None;
    for class in classes {
        match ask_class(snapshot, spec, donor, class, Some(selector), fitter) {
            Ok(candidate) => return Ok(candidate),
            // One class whose obstacle passes is enough.
            Err(obstacle) => {
                let helps = first.as_ref().is_none_or(|first| obstacle.cure < first.cure);
                first = if helps { Some(obstacle) } else { first };
            }
        }
    }
    Err(first.unwrap_or_else(|| {
        Box::new(obstacle(
            Cure::Change,
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
    let ask = |milli| PolicyQuery::of(spec, class, milli);
    // Policy comes first, with the nominal amount: its reasons hold whatever is free.
    let at_least = permitted(snapshot.may_borrow(donor, ask(spec.least_milli())))?;
    // Deliveries come back as agents and Liqo do.
    if !snapshot.when_idle {
        delivery_offered(snapshot, spec.delivery, donor)?;
    }
    let wanted =
        Wanted { class, gpus: &spec.gpus, topology: spec.topology, members: spec.members, selector, most_milli: None };
    let (mut placement, mut waste_milli, pools) = match fit_checking_pools(snapshot, donor, &wanted, fitter) {
        (Fit::Fits { placement, waste_milli }, pools) => (placement, waste_milli, pools),
        (Fit::Lacks { now, ever }, _) => {
            if snapshot.explains
                && let Some(unhealthy) = unhealthy(snapshot, donor, &wanted, now, spec.least_shares())
            {
                return Err(Box::new(unhealthy));
            }
            if snapshot.explains
                && let Some(never) = never_fits(snapshot, donor, &wanted, spec.least_shares())
            {
                return Err(Box::new(never));
            }
            if snapshot.explains
                && let Some(wish) = wiring_obstacle(snapshot, donor, &wanted, spec.least_shares())
            {
                return Err(Box::new(wish));
            }
            let mut lacks = lack_obstacle(spec, donor, class, now, ever);
            // Costly, so computed only for readers.
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
    // Devices may give more than the nominal amount: slices are rounded up.
    let granted = |placement: &Placement, pools: Pools| {
        let agreement = if placement.milli() == spec.least_milli() {
            at_least
        } else {
            permitted(snapshot.may_borrow(donor, ask(placement.milli())))?
        };
        check_reserve(snapshot, donor, placement)?;
        match pools {
            Pools::Checked => Ok(agreement),
            Pools::Unchecked => check_pools(snapshot, placement).map(|()| agreement),
        }
    };
    let mut agreement = granted(&placement, pools);
    // Policy may forbid more members than the minimum: bisection finds the most that it allows.
    if let (Err(_), Some(members)) = (&agreement, spec.members)
        && placement.units() > spec.least_shares()
    {
        let mut beyond = u32::try_from(placement.units() / u64::from(spec.gpus.count.max(1))).unwrap_or(u32::MAX);
        let (mut least, mut desired) = (None, members.min);
        while desired < beyond {
            let fewer = Wanted { members: Some(Members { desired, ..members }), ..wanted };
            let (Fit::Fits { placement: smaller, waste_milli: waste }, pools) =
                fit_checking_pools(snapshot, donor, &fewer, fitter)
            else {
                break;
            };
            match granted(&smaller, pools) {
                Ok(under) => {
                    (agreement, placement, waste_milli) = (Ok(under), smaller, waste);
                    least = Some(desired);
                }
                // Policy forbids even the minimum.
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

/// Whether a placement is known to pass [`check_pools`].
#[derive(Clone, Copy)]
enum Pools {
    Checked,
    Unchecked,
}

/// Runs the fitter; if local work holds devices of its placement, fits again without such devices.
fn fit_checking_pools(
    snapshot: &Snapshot<'_>,
    donor: &ClusterId,
    wanted: &Wanted<'_>,
    fitter: Fitter<'_>,
) -> (Fit, Pools) {
    let found = fitter(snapshot, donor, wanted);
    let Fit::Fits { placement, .. } = &found else { return (found, Pools::Unchecked) };
    if check_pools(snapshot, placement).is_ok() {
        return (found, Pools::Checked);
    }
    let free = without_double_counted(snapshot, donor);
    match fit(&snapshot.clone().with_usable(&free), donor, wanted, &mut MigValues::default()) {
        other @ Fit::Fits { .. } => (other, Pools::Unchecked),
        Fit::Lacks { .. } => (found, Pools::Unchecked),
    }
}

pub(crate) fn no_offer(donor: &ClusterId) -> Obstacle {
    obstacle(Cure::Waiting, "no-offer", format!("{donor} offers nothing"), "wait until its agent advertises")
}

fn lack_obstacle(spec: &RequestSpec, donor: &ClusterId, class: &ClassName, now: u64, ever: u64) -> Obstacle {
    let count = spec.least_shares();
    let place = if spec.topology.same_node { "on one node" } else { "in all" };
    if ever == 0 {
        return obstacle(
            Cure::Change,
            "no-such-devices",
            format!("{donor} has no device of class {class} that can serve such a share"),
            "ask for another class or share",
        );
    }
    if ever < count {
        return obstacle(
            Cure::Change,
            "no-such-devices",
            format!("{donor} has room for {ever} such shares {place} even when idle; {count} are asked for"),
            "ask for fewer, or for another topology",
        );
    }
    if let Some(members) = spec.members.filter(|_| !spec.topology.whole_node) {
        let each = spec.gpus.count;
        let together = if spec.topology.same_node { ", all on one node" } else { "" };
        return obstacle(
            Cure::Waiting,
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
            Cure::Waiting,
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
        Cure::Waiting,
        "no-capacity",
        format!("{donor} has room for {now} of {count} shares of class {class} {place} now"),
        unblock,
    )
}
