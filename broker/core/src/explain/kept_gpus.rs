//! What reservations keep, now or in their next windows.

use comity_policy::{Bundle, DocRef, Document, Reservation};
use comity_types::ClusterId;

use crate::feasibility::advance_reservations::donor_windows::KeptWindow;
use crate::feasibility::advance_reservations::kept_at_donor::KeptAtDonor;
use crate::feasibility::snapshot::Snapshot;
use crate::model::time::Timestamp;
use crate::state::State;

/// What a reservation keeps at one donor, in the window that is open or begins next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeptGpus {
    /// The document, at the line of its `gpus`.
    pub reservation: DocRef,
    /// For whom.
    pub tenant: String,
    /// Their class.
    pub class: String,
    /// The donor.
    pub donor: ClusterId,
    /// Thousandths of GPUs that it keeps.
    pub gpu_milli: u64,
    /// Begin of the window, and its end, or when what is unused is released; `None` if there is none in three months.
    pub window: Option<(Timestamp, Timestamp)>,
    /// Whether the window is open.
    pub is_open: bool,
    /// Thousandths of GPUs of the class that the tenant has at the donor, up to those that are kept. What it has counts
    /// once: for those of its reservations whose windows open first.
    pub used_milli: u64,
    /// While the window is open: thousandths that are kept, and that the tenant does not use.
    pub held_milli: u64,
    /// Thousandths that will be missing, or are, of what the tenant does not use: leases that end too late, local work or
    /// failures have them.
    pub short_milli: u64,
}

/// What each reservation keeps at each of its donors, by name and donor.
#[must_use]
pub fn kept_gpus(state: &State) -> Vec<KeptGpus> {
    let Some(snapshot) = Snapshot::new(state) else { return Vec::new() };
    let bundle: &Bundle = snapshot.bundle;
    let mut all = Vec::new();
    for reservation in bundle.reservations.values() {
        let donors = reservation.spec.clusters.iter().filter_map(|name| ClusterId::parse(name, "cluster").ok());
        all.extend(donors.map(|donor| kept_at(&snapshot, reservation, donor)));
    }
    all
}

fn kept_at(snapshot: &Snapshot<'_>, reservation: &Document<Reservation>, donor: ClusterId) -> KeptGpus {
    let (spec, now) = (&reservation.spec, snapshot.state.log_time);
    let kept = KeptAtDonor::of(snapshot, &donor);
    let alike = kept.as_ref().map_or_else(Vec::new, |kept| first_windows_alike(kept, spec));
    let window = alike.iter().find(|window| window.reservation.name == reservation.name).copied();
    let is_open = window.is_some_and(|window| window.is_open(now));
    let (mut used_milli, mut held_milli, mut short_milli) = (0, 0, 0);
    if let (Some(kept), Some(window)) = (&kept, window) {
        let (tenant, class) = (&spec.tenant, &spec.class);
        used_milli = part_of(&alike, reservation, kept.lent_milli(tenant, class, now), 0).0;
        let at = now.max(Timestamp(window.span.start_ms));
        let moment = kept.moment(at);
        let open: Vec<KeptWindow<'_>> = alike.into_iter().filter(|window| window.is_open(at)).collect();
        let short = moment.short_of(kept.lendable(), class).min(moment.unused(tenant, class));
        let (used_then, missing) = part_of(&open, reservation, moment.lent(tenant, class), short);
        short_milli = missing;
        if is_open {
            held_milli = spec.gpus_milli.saturating_sub(used_then.saturating_add(missing));
        }
    }
    KeptGpus {
        reservation: reservation.cite("gpus"),
        tenant: spec.tenant.clone(),
        class: spec.class.clone(),
        donor,
        gpu_milli: spec.gpus_milli,
        window: window.map(|window| (Timestamp(window.span.start_ms), Timestamp(window.span.end_ms))),
        is_open,
        used_milli,
        held_milli,
        short_milli,
    }
}

/// The first window of each reservation at a donor for the same tenant and class, by begin.
fn first_windows_alike<'a>(kept: &KeptAtDonor<'_, 'a>, spec: &Reservation) -> Vec<KeptWindow<'a>> {
    let mut first: Vec<KeptWindow<'a>> = Vec::new();
    for window in kept.windows() {
        let other = &window.reservation.spec;
        let is_alike = other.tenant == spec.tenant && other.class == spec.class;
        if is_alike && first.iter().all(|known| known.reservation.name != window.reservation.name) {
            first.push(*window);
        }
    }
    first
}

/// A reservation's part of what the tenant uses of all `windows`, which count in their order, and of what is missing of
/// the rest.
fn part_of(
    windows: &[KeptWindow<'_>],
    reservation: &Document<Reservation>,
    mut used: u64,
    mut missing: u64,
) -> (u64, u64) {
    for window in windows {
        let kept = window.reservation.spec.gpus_milli;
        let own_used = used.min(kept);
        let own_missing = missing.min(kept - own_used);
        if window.reservation.name == reservation.name {
            return (own_used, own_missing);
        }
        used -= own_used;
        missing -= own_missing;
    }
    (0, 0)
}
