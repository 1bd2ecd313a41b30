//! Checks requests at submission, and placements in `apply`.

use std::collections::BTreeSet;

use comity_policy::{Bundle, Denial, DenyCode, DocRef, compile_selector, show_duration, show_gpus};
use comity_types::{ClassName, ClusterId, NodeId, RequestId};

use crate::feasibility::check_wiring::{check_count, check_network, check_part};
use crate::feasibility::fit::device::{Load, room};
use crate::feasibility::fit::mig_device::cut;
use crate::feasibility::fit::{ResourceKind, Wanted, free_cpu_and_memory, serves};
use crate::feasibility::gpu_types::gpu_type_of;
use crate::feasibility::obstacle::{Obstacle, check_reserve, delivery_offered};
use crate::feasibility::reclaim_checks::pool::check_pools;
use crate::feasibility::snapshot::{PolicyQuery, Snapshot};
use crate::model::demand::{DeviceChoice, Members, RequestSpec, Share};
use crate::model::inventory::Device;
use crate::model::limits::MAX_PARTS;
use crate::model::placement::{DeviceShare, NodePlacement, Placement};
use crate::model::proposal::ProposedPlacement;
use crate::model::refusal::{Code, Refusal};
use crate::model::request::Request;
use crate::state::State;
use crate::state::gang::{self, Role};
use crate::state::gpu_time::kept_end;
use crate::state::occupancy::NodeOccupancy;

/// The terms under which a valid placement is granted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Grant {
    /// Class that the placement is accounted in.
    pub class: ClassName,
    /// Agreement, if the institutions differ.
    pub agreement: Option<String>,
    /// The documents of policy that permit it.
    pub because: Vec<DocRef>,
}

fn no_capacity(reason: String) -> Refusal {
    Refusal::new(Code::NoCapacity, reason, "plan again")
}

pub(crate) fn denied(obstacle: &Obstacle) -> Refusal {
    Refusal::new(Code::PolicyDenied, format!("{} ({})", obstacle.reason, obstacle.code), &obstacle.unblock)
}

/// Checks whether `placement` still holds for `request`, as [`apply`](State::apply) does for each placement of a plan.
///
/// # Errors
/// Returns what has changed since the plan, or the denial of policy.
pub fn check(state: &State, request: RequestId, placement: &Placement) -> Result<Grant, Refusal> {
    let proposed = ProposedPlacement::alone(request, placement.clone());
    let found = state.requests.get(&request).ok_or_else(|| Refusal::not_found("request", request, "request"))?;
    let grants = check_proposed(state, &proposed, gang::role(state, found, &proposed)?)?;
    grants.into_iter().next().ok_or_else(|| no_capacity("nothing is proposed".to_owned()))
}

/// Checks a proposal part by part without trusting the plan that made it: delivery; that each device exists, is
/// healthy, has the class and is free; CPU and memory; topology; policy.
pub(crate) fn check_proposed(state: &State, proposed: &ProposedPlacement, role: Role) -> Result<Vec<Grant>, Refusal> {
    let id = proposed.request;
    let request = state.requests.get(&id).ok_or_else(|| Refusal::not_found("request", id, "request"))?;
    let mut snapshot = Snapshot::new(state).ok_or_else(Refusal::no_policy)?;
    snapshot.kept_end = kept_end(state, request, role);
    // A replaced lease and its replacement count once against limits.
    if let Role::Replaces(old) = role {
        snapshot.exclude_chain(&request.chain_of(state, old));
    } else if role == Role::Starts
        && (!request.waits() || request.spec.start_by.is_some_and(|deadline| deadline <= state.log_time))
    {
        return Err(Refusal::new(Code::WrongState, "it may not start at this time", "plan again"));
    }
    if role == Role::Joins {
        snapshot.beside_milli = gang::held_milli(state, request);
    }
    if !proposed.more.is_empty() {
        return check_parts(&mut snapshot, request, proposed, role);
    }
    let mut refusal = None;
    let specs = match role {
        Role::Starts => vec![request.spec.clone()],
        Role::Replaces(old) => gang::replacement_specs(state, request, old),
        Role::Joins => gang::join_spec(state, request).into_iter().collect(),
    };
    for spec in specs {
        match check_placement(&snapshot, &spec, &proposed.placement) {
            Ok(grant) => return Ok(vec![grant]),
            Err(reason) => refusal = refusal.or(Some(reason)),
        }
    }
    Err(refusal.unwrap_or_else(|| no_capacity(format!("nothing may be placed for {id} now"))))
}

/// Checks the parts of a gang that starts on several donors: each must hold alongside the others, and together they
/// must suffice.
fn check_parts(
    snapshot: &mut Snapshot<'_>,
    request: &Request,
    proposed: &ProposedPlacement,
    role: Role,
) -> Result<Vec<Grant>, Refusal> {
    let spec = &request.spec;
    let donors: BTreeSet<&ClusterId> = proposed.parts().map(|part| &part.donor).collect();
    let parts = proposed.more.len() + 1;
    let Some(members) = spec.members.filter(|_| spec.spread_donors && role == Role::Starts) else {
        return Err(no_capacity(format!("{} may not lie on several donors", proposed.request)));
    };
    if donors.len() != parts || parts > MAX_PARTS {
        return Err(no_capacity(format!("{parts} parts are too many, or not one for each donor")));
    }
    let one = spec.for_members(Members { min: 1, ..members }, Vec::new());
    let (mut grants, mut units) = (Vec::new(), 0);
    for part in proposed.parts() {
        let grant = check_placement(snapshot, &one, part)?;
        snapshot.take(spec, &grant.class, grant.agreement.as_deref(), part);
        snapshot.beside_milli = snapshot.beside_milli.saturating_add(part.milli());
        units += part.units();
        grants.push(grant);
    }
    if !(spec.least_shares()..=spec.most_shares()).contains(&units) {
        let reason = format!("the parts hold {units} shares, not {} to {}", spec.least_shares(), spec.most_shares());
        return Err(no_capacity(reason));
    }
    Ok(grants)
}

fn check_placement(snapshot: &Snapshot<'_>, spec: &RequestSpec, placement: &Placement) -> Result<Grant, Refusal> {
    let (state, donor) = (snapshot.state, &placement.donor);
    let gpu_type = spec.seeks_one_gpu_type().then(|| gpu_type_of(state, placement)).flatten();
    let of_one_type = gpu_type.map(|gpu_type| spec.of_gpu_type(gpu_type));
    let spec = of_one_type.as_ref().unwrap_or(spec);
    if *donor == spec.origin {
        return Err(no_capacity(format!("{donor} cannot lend to itself")));
    }
    if !spec.allows(donor) {
        return Err(no_capacity(format!("{donor} is not one of the donors that may serve it")));
    }
    if !state.clusters.get(donor).is_some_and(|cluster| cluster.connected) {
        return Err(no_capacity(format!("{donor} is not connected")));
    }
    state.check_borrower(&spec.origin, &spec.tenant)?;
    state.check_part(donor)?;
    delivery_offered(snapshot, spec.delivery, donor).map_err(|obstacle| no_capacity(obstacle.reason))?;
    let class = class_of(snapshot, spec, placement)?;
    let selector = match &spec.gpus.devices {
        DeviceChoice::Class(_) => None,
        DeviceChoice::Selector(source) => Some(selector_of(source)?),
    };
    let wanted = Wanted {
        class: &class,
        gpus: &spec.gpus,
        topology: spec.topology,
        members: spec.members,
        selector: selector.as_ref(),
        most_milli: None,
        unenforced_nvlink: false,
    };
    let wanted = wanted.under_terms(snapshot, donor);
    check_count(&wanted, placement).map_err(no_capacity)?;
    check_network(snapshot, donor, &wanted, placement).map_err(no_capacity)?;
    if spec.topology.same_node && placement.nodes.len() != 1 {
        return Err(no_capacity("the placement is not on one node".to_owned()));
    }
    let kind = ResourceKind { resource: placement.resource_name.clone(), profile: placement.profile.clone() };
    let mut resources = 0;
    for (id, part) in &placement.nodes {
        resources += check_node(snapshot, donor, id, part, &wanted, &kind)?;
    }
    if resources != placement.resource_count {
        return Err(no_capacity(format!(
            "the placement counts {} resources, not {resources}",
            placement.resource_count
        )));
    }
    let ask = PolicyQuery::of(spec, &class, placement.milli());
    let allowance = snapshot.allowance(donor, ask).map_err(|denial| denied(&Obstacle::of_denial(*denial)))?;
    check_reserve(snapshot, donor, placement).map_err(|obstacle| denied(&obstacle))?;
    snapshot.check_kept(spec, &class, placement).map_err(|obstacle| denied(&obstacle))?;
    check_pools(snapshot, placement).map_err(|obstacle| no_capacity(obstacle.reason))?;
    Ok(Grant { class, agreement: allowance.agreement, because: allowance.because })
}

/// The class of a placement's devices.
fn class_of(snapshot: &Snapshot<'_>, spec: &RequestSpec, placement: &Placement) -> Result<ClassName, Refusal> {
    if let DeviceChoice::Class(class) = &spec.gpus.devices {
        return Ok(class.clone());
    }
    placement
        .nodes
        .iter()
        .find_map(|(id, part)| {
            let index = usize::try_from(*part.devices.keys().next()?).ok()?;
            snapshot.state.device_classes(&placement.donor, id).get(index)?.clone()
        })
        .ok_or_else(|| no_capacity("the placement has no device that belongs to a class".to_owned()))
}

/// Checks one node's part; returns the number of Kubernetes resources it counts as.
fn check_node(
    snapshot: &Snapshot<'_>,
    donor: &ClusterId,
    id: &NodeId,
    part: &NodePlacement,
    wanted: &Wanted<'_>,
    kind: &ResourceKind,
) -> Result<u64, Refusal> {
    let node = snapshot
        .node(donor, id)
        .filter(|node| node.schedulable)
        .ok_or_else(|| no_capacity(format!("node {id} of {donor} is not there any more")))?;
    let classes = snapshot.state.device_classes(donor, id);
    let lent = snapshot.occupancy(donor, id);
    let (mut resources, mut units) = (0, 0);
    for (&index, share) in &part.devices {
        let gone = || no_capacity(format!("device {index} of node {id} of {donor} is not free any more"));
        let at = usize::try_from(index).map_err(|_| gone())?;
        let device = node.devices.get(at).ok_or_else(gone)?;
        if !serves(device, classes.get(at).and_then(Option::as_ref), wanted, kind) {
            return Err(gone());
        }
        let room = room(device, index, lent, &wanted.gpus.share).ok_or_else(gone)?;
        if share.units == 0 || share.units > room.units || share.milli != share.units.saturating_mul(room.milli_each) {
            return Err(gone());
        }
        check_slots(device, index, lent, &wanted.gpus.share, share)
            .map_err(|reason| no_capacity(format!("device {index} of node {id} of {donor} {reason}")))?;
        units += u64::from(share.units);
        resources += u64::from(share.units) * u64::from(room.resources_each);
    }
    if wanted.topology.whole_node {
        let idle = lent.is_none_or(|node| node.devices.is_empty());
        let local = node.devices.iter().any(|device| device.local_use_milli > 0);
        let all = node.devices.len() == part.devices.len();
        if !idle || local || !all {
            return Err(no_capacity(format!("node {id} of {donor} is not taken whole")));
        }
    }
    let (cpu, memory) = free_cpu_and_memory(node, lent, Load::Current);
    let right = part.cpu_milli == wanted.gpus.cpu_milli_per_gpu.saturating_mul(units)
        && part.memory_mib == wanted.gpus.memory_mib_per_gpu.saturating_mul(units);
    if !right || part.cpu_milli > cpu || part.memory_mib > memory {
        return Err(no_capacity(format!("node {id} of {donor} lacks CPU or memory")));
    }
    check_part(node, lent, part, wanted, kind)
        .map_err(|reason| no_capacity(format!("node {id} of {donor} {reason}")))?;
    Ok(resources)
}

/// Checks that a share takes the slots of `units` instances, each at a permitted and free start.
fn check_slots(
    device: &Device,
    index: u32,
    lent: Option<&NodeOccupancy>,
    wanted: &Share,
    share: &DeviceShare,
) -> Result<(), &'static str> {
    let Some(cut) = cut(device, wanted) else {
        return if share.slots.is_empty() { Ok(()) } else { Err("has no known slots") };
    };
    let free = cut.starts(index, lent);
    let starts = share.slots.starts(cut.shape.size).ok_or("is not taken in the slots of instances")?;
    if starts.len() != usize::try_from(share.units).unwrap_or(usize::MAX) {
        return Err("is not taken in as many instances as it holds shares");
    }
    if starts.iter().all(|start| free.contains(start)) { Ok(()) } else { Err("is not taken at a free start") }
}

fn selector_of(source: &str) -> Result<comity_policy::Selector, Refusal> {
    compile_selector(source).map_err(|problem| {
        Refusal::invalid(
            "spec.gpus.selector",
            source,
            &format!("does not compile: {} at column {}", problem.message, problem.column),
            problem.remedy,
        )
    })
}

/// Checks whether policy could ever serve the request; obstacles that may pass are left to the scheduler.
pub fn check_request(state: &State, spec: &RequestSpec) -> Result<(), Refusal> {
    let bundle = &state.policy.as_ref().ok_or_else(Refusal::no_policy)?.bundle;
    check_terms(bundle, spec)?;
    check_queue(state, spec, bundle)
}

/// The first names of a list, for a remedy.
fn listed(names: &BTreeSet<String>) -> String {
    /// More would fill the terminal.
    const MOST: usize = 12;
    let mut shown: Vec<&str> = names.iter().take(MOST).map(String::as_str).collect();
    if names.len() > MOST {
        shown.push("…");
    }
    shown.join(", ")
}

/// Checks whether the datasets of a request may be read for its purpose, wherever.
fn check_data(bundle: &Bundle, spec: &RequestSpec) -> Result<(), Refusal> {
    bundle.check_purpose(&spec.purpose, &spec.data).map_err(|denial| {
        let Denial { code, message, unblock, by } = *denial;
        let by: Vec<String> = by.iter().map(DocRef::to_string).collect();
        let (field, value) = match code {
            DenyCode::DatasetUndeclared => {
                ("spec.data", spec.data.iter().map(|need| need.dataset.as_str()).collect::<Vec<_>>().join(", "))
            }
            _ => ("spec.purpose", spec.purpose.clone()),
        };
        Refusal::new(Code::PolicyDenied, format!("{message} ({code}; {})", by.join(", ")), unblock).at(field, value)
    })
}

/// Checks a request against the parts of `bundle` that do not depend on the donor.
pub(crate) fn check_terms(bundle: &Bundle, spec: &RequestSpec) -> Result<(), Refusal> {
    let tenant = bundle
        .tenants
        .get(spec.tenant.as_str())
        .ok_or_else(|| Refusal::not_found("spec.tenant", &spec.tenant, "tenant"))?;
    let denied = |field: &str, value: &str, reason: String, remedy: &str| {
        Err(Refusal::new(Code::PolicyDenied, reason, remedy).at(field, value))
    };
    if !tenant.spec.clusters.contains(spec.origin.as_str()) {
        let reason = format!("tenant {} may not send requests from {}", spec.tenant, spec.origin);
        let remedy = format!("name a cluster of its Tenant document: {}", listed(&tenant.spec.clusters));
        return denied("spec.origin", spec.origin.as_str(), reason, &remedy);
    }
    match &spec.gpus.devices {
        DeviceChoice::Class(class) => {
            if !bundle.classes.contains_key(class.as_str()) {
                return Err(Refusal::not_found("spec.gpus.class", class, "class"));
            }
            if !tenant.spec.classes.contains(class.as_str()) {
                let reason = format!("tenant {} may not ask for class {class}", spec.tenant);
                let remedy = format!("ask for a class of its Tenant document: {}", listed(&tenant.spec.classes));
                return denied("spec.gpus.class", class.as_str(), reason, &remedy);
            }
        }
        DeviceChoice::Selector(source) => drop(selector_of(source)?),
    }
    for (field, donors) in [("spec.allow_donors", &spec.allow_donors), ("spec.deny_donors", &spec.deny_donors)] {
        for donor in donors {
            if bundle.institution_of_cluster(donor.as_str()).is_none() {
                return Err(Refusal::not_found(field, donor, "cluster"));
            }
        }
    }
    check_data(bundle, spec)?;
    if let Some(class) = &spec.priority {
        let found = bundle
            .priorities
            .get(class.as_str())
            .ok_or_else(|| Refusal::not_found("spec.priority", class, "priority class"))?;
        if !found.spec.serves(tenant.name.as_str(), &tenant.spec.institution) {
            let reason = format!("tenant {} may not use priority class {class}", spec.tenant);
            let remedy = "name another one, or none; its PriorityClass document says who may use it";
            return denied("spec.priority", class.as_str(), reason, remedy);
        }
    }
    let limits = &bundle.federation.spec.limits;
    let milli = spec.most_milli();
    if milli > limits.max_gpus_per_request_milli {
        let reason = format!(
            "{} GPUs are more than the {} that one request may ask for",
            show_gpus(milli),
            show_gpus(limits.max_gpus_per_request_milli)
        );
        let (field, value) = match spec.members {
            Some(members) => ("spec.members.desired", members.desired),
            None => ("spec.gpus.count", spec.gpus.count),
        };
        return denied(field, &value.to_string(), reason, "ask for less, or split the request");
    }
    if spec.duration.0 > limits.max_lease_duration_ms {
        let reason = format!(
            "{} are more than the {} that a lease may last",
            show_duration(spec.duration.0),
            show_duration(limits.max_lease_duration_ms)
        );
        return denied("spec.duration_ms", &spec.duration.0.to_string(), reason, "ask for less, and renew the lease");
    }
    Ok(())
}

/// Refuses a request beyond a bound of the queue: first the tenant's, then its institution's, so that nobody fills the
/// federation's.
fn check_queue(state: &State, spec: &RequestSpec, bundle: &Bundle) -> Result<(), Refusal> {
    let limits = &bundle.federation.spec.limits;
    let tenant = &spec.tenant;
    let institution = bundle.institution_of_tenant(tenant.as_str()).unwrap_or_default();
    for (waiting, limit, whose) in [
        (state.queued_of(tenant), limits.max_queued_requests_per_tenant, format!("of tenant {tenant}")),
        (
            state.queued_of_institution(institution),
            limits.max_queued_requests_per_institution,
            format!("of institution {institution}"),
        ),
        (state.queued_len(), limits.max_queued_requests, "of the federation".to_owned()),
    ] {
        if u64::try_from(waiting).unwrap_or(u64::MAX) >= limit {
            return Err(Refusal::new(
                Code::LimitReached,
                format!("{limit} requests {whose} wait already"),
                "try again when the queue is shorter, or cancel some",
            ));
        }
    }
    Ok(())
}
