//! Asks one donor about one request: a placement, or the first reason against it.

use std::collections::{BTreeMap, BTreeSet};

use comity_policy::{Selector, compile_selector};
use comity_types::{ClassName, ClusterId};
use serde::{Deserialize, Serialize};

use crate::feasibility::fit::cutting::MigValues;
use crate::feasibility::fit::{Fit, Wanted, fit};
use crate::feasibility::gpu_types::gpu_types;
use crate::feasibility::obstacle::{Cure, Obstacle, check_reserve, delivery_offered, obstacle, permitted};
use crate::feasibility::obstacles::never_fits::never_fits;
use crate::feasibility::obstacles::no_start::no_start;
use crate::feasibility::obstacles::no_such_profile::no_such_profile;
use crate::feasibility::obstacles::not_isolated::not_isolated;
use crate::feasibility::obstacles::not_lent::not_lent;
use crate::feasibility::obstacles::not_wired::wiring_obstacle;
use crate::feasibility::obstacles::other_gpu_type::other_gpu_type;
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
    /// What rules of policy warn of at this donor.
    pub warnings: Vec<String>,
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
            format!(
                "submit it without that restriction; if section borrowing of the agent of {} made it, change it there",
                spec.origin
            ),
        )));
    }
    let state = snapshot.state;
    if let Err(refusal) = state.check_borrower(&spec.origin, &spec.tenant).and_then(|()| state.check_part(donor)) {
        // Not a change of the request, the offer or policy lifts it.
        return Err(Box::new(obstacle(Cure::Waiting, "revoked", refusal.reason, refusal.remedy)));
    }
    let answers = |cluster: &&Cluster| cluster.connected || snapshot.when_idle;
    let cluster = state.clusters.get(donor).filter(answers).ok_or_else(|| {
        let reason = format!("the agent of {donor} is not connected");
        Box::new(obstacle(Cure::Waiting, "donor-silent", reason, "wait until it is back"))
    })?;
    if cluster.offer.is_none() {
        return Err(Box::new(no_offer(donor)));
    }
    match &spec.gpus.devices {
        DeviceChoice::Class(class) => ClassQuery { snapshot, spec, donor, class, selector: None }.ask(fitter),
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
        match (ClassQuery { snapshot, spec, donor, class, selector: Some(selector) }).ask(fitter) {
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

/// A request to one donor for devices of one class.
#[derive(Clone, Copy)]
struct ClassQuery<'q, 'a> {
    snapshot: &'q Snapshot<'a>,
    spec: &'q RequestSpec,
    donor: &'q ClusterId,
    class: &'q ClassName,
    selector: Option<&'q Selector>,
}

impl ClassQuery<'_, '_> {
    fn ask(&self, fitter: Fitter<'_>) -> Result<FeasiblePlacement, Box<Obstacle>> {
        let Self { snapshot, spec, donor, class, .. } = self;
        let types = if spec.seeks_one_gpu_type() {
            gpu_types(snapshot, donor, class, &spec.gpus.share)
        } else {
            BTreeSet::new()
        };
        let mut first: Option<Box<Obstacle>> = None;
        for gpu_type in types {
            let spec = &spec.of_gpu_type(gpu_type);
            match (ClassQuery { spec, ..*self }).ask_any_type(fitter) {
                Ok(candidate) => return Ok(candidate),
                Err(obstacle) => first = first.filter(|first| first.cure <= obstacle.cure).or(Some(obstacle)),
            }
        }
        match first {
            Some(obstacle) => Err(obstacle),
            None => self.ask_any_type(fitter),
        }
    }

    fn ask_any_type(&self, fitter: Fitter<'_>) -> Result<FeasiblePlacement, Box<Obstacle>> {
        let Self { snapshot, spec, donor, class, selector } = *self;
        // Policy comes first, with the nominal amount: its reasons hold whatever is free.
        let nominal = permitted(snapshot.may_borrow(donor, PolicyQuery::of(spec, class, spec.least_milli())))?;
        // Deliveries come back as agents and Liqo do.
        if !snapshot.when_idle {
            delivery_offered(snapshot, spec.delivery, donor)?;
        }
        let wanted = Wanted {
            class,
            gpus: &spec.gpus,
            topology: spec.topology,
            members: spec.members,
            selector,
            most_milli: None,
            unenforced_nvlink: false,
        };
        let query = PermittedQuery { snapshot, spec, donor, wanted, nominal };
        let found = match fit_checking_pools(snapshot, donor, &wanted, fitter) {
            (Fit::Fits { placement, waste_milli }, pools) => FoundRoom { placement, waste_milli, pools },
            (Fit::Lacks { now, ever }, _) => return Err(Box::new(query.lack(now, ever))),
        };
        let units = found.placement.units();
        match (query.grant(found), spec.members) {
            (Err(denied), Some(members)) if units > spec.least_shares() => {
                query.grant_most_members(members, units, denied, fitter)
            }
            (granted, _) => granted,
        }
    }
}

/// The same, after policy allowed the nominal amount.
struct PermittedQuery<'q, 'a> {
    snapshot: &'q Snapshot<'a>,
    spec: &'q RequestSpec,
    donor: &'q ClusterId,
    wanted: Wanted<'q>,
    /// Agreement under which policy allows the nominal amount.
    nominal: Option<&'a str>,
}

/// Room that fits, before policy has seen the amount that the devices give.
struct FoundRoom {
    placement: Placement,
    waste_milli: i64,
    pools: Pools,
}

impl PermittedQuery<'_, '_> {
    /// Policy again, with the actual amount: devices may give more than the nominal one, because slices are rounded up.
    fn grant(&self, found: FoundRoom) -> Result<FeasiblePlacement, Box<Obstacle>> {
        let FoundRoom { placement, waste_milli, pools } = found;
        let Self { snapshot, spec, donor, wanted, nominal } = self;
        let agreement = if placement.milli() == spec.least_milli() {
            *nominal
        } else {
            permitted(snapshot.may_borrow(donor, PolicyQuery::of(spec, wanted.class, placement.milli())))?
        };
        check_reserve(snapshot, donor, &placement)?;
        snapshot.check_kept(spec, wanted.class, &placement)?;
        match pools {
            Pools::Checked => {}
            Pools::Unchecked => check_pools(snapshot, &placement)?,
        }
        let agreement = agreement.map(str::to_owned);
        Ok(FeasiblePlacement { placement, class: wanted.class.clone(), agreement, waste_milli })
    }

    /// Finds by bisection the most members that policy allows, after it `denied` the members of `units` shares.
    fn grant_most_members(
        &self,
        members: Members,
        units: u64,
        denied: Box<Obstacle>,
        fitter: Fitter<'_>,
    ) -> Result<FeasiblePlacement, Box<Obstacle>> {
        let mut beyond = u32::try_from(units / u64::from(self.spec.gpus.count.max(1))).unwrap_or(u32::MAX);
        let mut best = Err(denied);
        let (mut least, mut desired) = (members.min, members.min);
        while desired < beyond {
            let fewer = Wanted { members: Some(Members { desired, ..members }), ..self.wanted };
            let (Fit::Fits { placement, waste_milli }, pools) =
                fit_checking_pools(self.snapshot, self.donor, &fewer, fitter)
            else {
                break;
            };
            match self.grant(FoundRoom { placement, waste_milli, pools }) {
                Ok(granted) => (best, least) = (Ok(granted), desired),
                // Policy forbids even the minimum.
                Err(denied) if best.is_err() => return Err(denied),
                Err(_) => beyond = desired,
            }
            desired = least.midpoint(beyond).max(least + 1);
        }
        best
    }

    /// The reason why only `now` shares fit, or `ever` at an idle donor.
    fn lack(&self, now: u64, ever: u64) -> Obstacle {
        let Self { snapshot, spec, donor, wanted, .. } = self;
        let least = spec.least_shares();
        let mut lack = lack_obstacle(spec, donor, wanted.class, now, ever);
        // Better reasons are costly, so they are computed only for readers.
        if !snapshot.explains {
            return lack;
        }
        let better = unhealthy(snapshot, donor, wanted, now, least)
            .or_else(|| not_lent(snapshot, donor, wanted, now, least))
            .or_else(|| other_gpu_type(snapshot, donor, wanted, ever, least))
            .or_else(|| never_fits(snapshot, donor, wanted, least))
            .or_else(|| not_isolated(snapshot, donor, wanted, least))
            .or_else(|| wiring_obstacle(snapshot, donor, wanted, least))
            .or_else(|| no_such_profile(snapshot, donor, wanted));
        if let Some(better) = better {
            return better;
        }
        if now == 0
            && ever >= least
            && let Some((reason, unblock)) = no_start(snapshot, donor, wanted)
        {
            (lack.reason, lack.unblock) = (reason, unblock);
        }
        lack
    }
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
