//! Checks renewals.

use comity_policy::{Booking, Denial};
use comity_types::LeaseId;

use crate::feasibility::advance_reservations::check_kept::KeptQuery;
use crate::feasibility::check::denied;
use crate::feasibility::held_capacity::HeldCapacity;
use crate::feasibility::obstacle::{Obstacle, permitted};
use crate::feasibility::snapshot::{PolicyQuery, Snapshot};
use crate::model::lease::Lease;
use crate::model::meter::Meter;
use crate::model::refusal::Refusal;
use crate::model::time::{Millis, Timestamp};
use crate::state::gpu_time::{KeptEnd, booking};
use crate::state::{State, gang};

/// The leases that a renewal concerns.
#[derive(Clone, Debug, Default)]
pub(crate) struct Renewed {
    /// Leases in force that get a new term: those of a gang end at the same time.
    pub(crate) in_force: Vec<LeaseId>,
    /// Leases that are to end with them, and are not active yet: further members, and replacements.
    pub(crate) waiting: Vec<LeaseId>,
}

/// The leases that the renewal of `id` concerns.
pub(crate) fn renewed_with(state: &State, id: LeaseId) -> Renewed {
    let request = state.leases.get(&id).and_then(|lease| state.requests.get(&lease.request));
    let gang = request.filter(|request| request.leases().any(|own| own == id));
    let parts = || gang.into_iter().flat_map(|request| gang::parts(state, request));
    let others = parts().filter(|(other, lease)| *other != id && lease.state.is_in_force()).map(|(other, _)| other);
    let in_force: Vec<LeaseId> = std::iter::once(id).chain(others).collect();
    let joining = parts().filter(|(_, lease)| lease.state.is_held()).map(|(id, _)| id);
    let replacing = in_force.iter().filter_map(|id| state.leases.get(id)?.moved_to);
    let waits = |id: &LeaseId| {
        let lease = state.leases.get(id);
        lease.is_some_and(|lease| lease.ends_by.is_some() && matches!(lease.meter, Meter::Waits { .. }))
    };
    let waiting = joining.chain(replacing).filter(waits).collect();
    Renewed { in_force, waiting }
}

/// Checks whether policy allows `lease` a new term of length `term`.
pub fn check_renewal(state: &State, lease: LeaseId, term: Millis) -> Result<(), Refusal> {
    if !state.leases.contains_key(&lease) {
        return Err(Refusal::not_found("lease", lease, "lease"));
    }
    let snapshot = Snapshot::new(state).ok_or_else(Refusal::no_policy)?;
    permit_renewal(snapshot, lease, term).map_err(|obstacle| denied(&obstacle))
}

/// Why policy does not allow a lease a new term of length `term`; `None` if it does, or while no policy is in force.
pub(crate) fn renewal_obstacle(state: &State, lease: LeaseId, term: Millis) -> Option<Box<Obstacle>> {
    permit_renewal(Snapshot::new(state)?, lease, term).err()
}

fn permit_renewal(mut snapshot: Snapshot<'_>, id: LeaseId, term: Millis) -> Result<(), Box<Obstacle>> {
    let state = snapshot.state;
    let Some(lease) = state.leases.get(&id) else { return Ok(()) };
    snapshot.exclude(lease);
    // The GPU-time of all leases of a gang is checked at once, below, and so are reservations for others.
    snapshot.kept_end = Some(KeptEnd { until: state.log_time, counted_milli: u64::MAX });
    let ask = PolicyQuery {
        tenant: lease.tenant.as_str(),
        user: &lease.submitted_by,
        origin: &lease.origin,
        class: &lease.class,
        milli: lease.placement.milli(),
        delivery: lease.delivery,
        duration: term,
        data: &lease.data,
        purpose: &lease.purpose,
        preemptible: state.requests.get(&lease.request).is_some_and(|request| request.spec.preemptible.is_some()),
    };
    permitted(snapshot.may_borrow(&lease.placement.donor, ask))?;
    check_kept_together(&mut snapshot, id, term, ask.preemptible)?;
    permitted(may_rebook(&snapshot, id, state.log_time.after(term)).map(|()| None)).map(|_| ())
}

/// Checks reservations for others for the new end of a lease, and of the others that end with it.
fn check_kept_together(
    snapshot: &mut Snapshot<'_>,
    id: LeaseId,
    term: Millis,
    preemptible: bool,
) -> Result<(), Box<Obstacle>> {
    let (state, now) = (snapshot.state, snapshot.state.log_time);
    let Renewed { in_force, waiting } = renewed_with(state, id);
    let all = in_force.into_iter().chain(waiting).filter_map(|id| Some((id, state.leases.get(&id)?)));
    let all: Vec<(LeaseId, &Lease)> =
        all.filter(|(_, lease)| snapshot.bundle.has_reservations_at(lease.placement.donor.as_str())).collect();
    for (id, lease) in &all {
        snapshot.kept.note_released(&HeldCapacity::of_lease(*id, lease, now));
    }
    // Each is checked beside those before it.
    for (_, lease) in all {
        let donor = &lease.placement.donor;
        let query = KeptQuery {
            tenant: lease.tenant.as_str(),
            class: &lease.class,
            milli: lease.placement.milli(),
            lasts: term,
            ends_by: None,
            preemptible,
            renews: true,
        };
        snapshot.check_kept_for(donor, query)?;
        let until = snapshot.stays_until(donor, now, term, None, preemptible);
        snapshot.kept.note_taken(&lease.placement, (lease.tenant.as_str(), lease.class.as_str()), (now, until));
    }
    Ok(())
}

/// Checks quotas of GPU-hours for a new end of a lease, and of the others that end with it.
fn may_rebook(snapshot: &Snapshot<'_>, id: LeaseId, end: Timestamp) -> Result<(), Box<Denial>> {
    let state = snapshot.state;
    let Renewed { in_force, waiting } = renewed_with(state, id);
    let leases = |ids: &[LeaseId]| ids.iter().filter_map(|id| state.leases.get(id)).cloned().collect::<Vec<Lease>>();
    let (in_force, waiting) = (leases(&in_force), leases(&waiting));
    let renewed = in_force.iter().map(|lease| Lease { expires_at: Some(end), ..lease.clone() });
    let renewed = renewed.chain(waiting.iter().map(|lease| Lease { ends_by: Some(end), ..lease.clone() }));
    let (before, renewed): (Vec<&Lease>, Vec<Lease>) = in_force.iter().chain(&waiting).zip(renewed).unzip();
    // What was used until now stays: the rest alone is compared, so that a denial can tell how long a term fits.
    let (mut was, mut becomes): (Vec<Booking<'_>>, Vec<Booking<'_>>) = (Vec::new(), Vec::new());
    for (before, after) in before.iter().zip(&renewed) {
        let (Some(old), Some(new)) = (booking(before), booking(after)) else { continue };
        let from_ms = old.from_ms.max(old.until_ms.min(state.log_time.0));
        was.push(Booking { from_ms, ..old });
        becomes.push(Booking { from_ms, ..new });
    }
    snapshot.bundle.may_rebook(state.gpu_time_booked(), &was, &becomes)
}
