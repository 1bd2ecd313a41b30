//! The windows of one donor's reservations, and the leases and capacity beside which they count.

use std::collections::BTreeMap;

use comity_policy::{Bundle, Document, Reservation, TimeSpan, show_gpus, show_time};
use comity_types::{ClassName, ClusterId, LeaseId};

use crate::model::inventory::Node;
use crate::model::lease::Lease;
use crate::model::limits::WHOLE_MILLI;
use crate::model::time::{Millis, Timestamp};
use crate::state::State;
use crate::state::notice::schedule_notice;

/// How far ahead windows count: longer than the longest lease with its hold.
pub(crate) const AHEAD: Millis = Millis::from_hours(24 * 95);

/// A time in which a reservation holds its GPUs.
#[derive(Clone, Copy)]
pub(crate) struct KeptWindow<'a> {
    pub(crate) reservation: &'a Document<Reservation>,
    pub(crate) span: TimeSpan,
}

impl KeptWindow<'_> {
    /// What it keeps, for people.
    pub(crate) fn text(&self) -> String {
        let spec = &self.reservation.spec;
        format!(
            "{} GPUs of class {} for tenant {} from {} until {}",
            show_gpus(spec.gpus_milli),
            spec.class,
            spec.tenant,
            show_time(self.span.start_ms),
            show_time(self.span.end_ms)
        )
    }

    /// Whether it is open at `at`.
    pub(crate) fn is_open(&self, at: Timestamp) -> bool {
        self.span.start_ms <= at.0 && at.0 < self.span.end_ms
    }
}

/// The windows that overlap `from..until` of all reservations at a donor, by begin.
pub(crate) fn kept_windows<'a>(
    bundle: &'a Bundle,
    donor: &ClusterId,
    from: Timestamp,
    until: Timestamp,
) -> Vec<KeptWindow<'a>> {
    let reservations = bundle.reservations_at(donor.as_str());
    let windows = reservations.flat_map(|reservation| {
        let spans = bundle.holding_spans(&reservation.spec, from.0, until.0).into_iter();
        spans.map(move |span| KeptWindow { reservation, span })
    });
    let mut windows: Vec<KeptWindow<'a>> = windows.collect();
    windows.sort_by_key(|window| window.span);
    windows
}

/// GPUs of a lease at the donor.
#[derive(Clone, Copy)]
pub(crate) struct LentPart<'a> {
    pub(crate) id: LeaseId,
    pub(crate) lease: &'a Lease,
    /// Its latest end; of a preemptible lease, if it were reclaimed now.
    pub(crate) until: Timestamp,
}

/// The leases that a donor lends, with the moment until which each stays at the least.
pub(crate) fn lent_parts<'a>(
    state: &'a State,
    bundle: &Bundle,
    donor: &ClusterId,
    now: Timestamp,
) -> Vec<LentPart<'a>> {
    let notice = schedule_notice(bundle, donor);
    let lent = state.leases_of(donor).filter(|(_, lease)| lease.placement.donor == *donor && lease.occupies());
    let part = |(id, lease): (LeaseId, &'a Lease)| {
        let end = lease.latest_end(now);
        let until = if is_preemptible(state, lease) { end.min(now.after(notice)) } else { end };
        LentPart { id, lease, until }
    };
    lent.map(part).collect()
}

/// Whether a lease is reclaimed for a reservation: its request is preemptible.
pub(crate) fn is_preemptible(state: &State, lease: &Lease) -> bool {
    state.requests.get(&lease.request).is_some_and(|request| request.spec.preemptible.is_some())
}

/// What a donor can lend, in thousandths of GPUs.
#[derive(Clone, Debug, Default)]
pub(crate) struct LendableGpus<'a> {
    by_class: BTreeMap<&'a str, u64>,
    /// In all: beside the local reserve, and within `maxLentGpus`.
    in_all: u64,
}

impl<'a> LendableGpus<'a> {
    /// Of nodes with the classes of their devices, and `in_all` of all classes together.
    pub(crate) fn of(nodes: impl Iterator<Item = (&'a Node, &'a [Option<ClassName>])>, in_all: u64) -> Self {
        let mut by_class: BTreeMap<&str, u64> = BTreeMap::new();
        for (class, milli) in nodes.flat_map(|(node, classes)| of_node(node, classes)) {
            *by_class.entry(class.as_str()).or_default() += milli;
        }
        Self { by_class, in_all }
    }

    /// Of one class, or of all.
    pub(crate) fn milli(&self, class: Option<&str>) -> u64 {
        class.map_or(self.in_all, |class| self.by_class.get(class).copied().unwrap_or(0))
    }
}

/// The healthy devices of a node that belong to a class, with what local work leaves of each.
fn of_node<'a>(node: &'a Node, classes: &'a [Option<ClassName>]) -> impl Iterator<Item = (&'a ClassName, u64)> {
    let devices = node.devices.iter().zip(classes).filter(|(device, _)| node.schedulable && device.healthy);
    devices.filter_map(|(device, class)| {
        Some((class.as_ref()?, u64::from(WHOLE_MILLI.saturating_sub(device.local_use_milli))))
    })
}
