//! Reservations by cluster, and the times at which they hold GPUs.

use std::collections::{BTreeMap, BTreeSet};

use super::Bundle;
use crate::calendar::TimeSpan;
use crate::documents::{Document, Reservation};

/// Names of the reservations at each cluster.
pub(crate) fn index_reservations(
    reservations: &BTreeMap<String, Document<Reservation>>,
) -> BTreeMap<String, Vec<String>> {
    let mut by_cluster = BTreeMap::<String, Vec<String>>::new();
    for reservation in reservations.values() {
        for cluster in &reservation.spec.clusters {
            by_cluster.entry(cluster.clone()).or_default().push(reservation.name.clone());
        }
    }
    by_cluster
}

impl Bundle {
    /// Whether a cluster keeps GPUs for somebody at some time.
    #[must_use]
    pub fn has_reservations_at(&self, cluster: &str) -> bool {
        // Most federations have none: no look-up by name then.
        !self.reservations_by_cluster.is_empty() && self.reservations_by_cluster.contains_key(cluster)
    }

    /// The reservations at a cluster, by name.
    pub fn reservations_at(&self, cluster: &str) -> impl Iterator<Item = &Document<Reservation>> {
        let names = self.reservations_by_cluster.get(cluster);
        names.into_iter().flatten().filter_map(|name| self.reservations.get(name))
    }

    /// The windows of a reservation that overlap `from_ms..until_ms`, in milliseconds since 1970: each from its begin,
    /// to its end or until what is unused of it is released.
    #[must_use]
    pub fn holding_spans(&self, reservation: &Reservation, from_ms: u64, until_ms: u64) -> Vec<TimeSpan> {
        let Some(schedule) = self.schedules.get(&reservation.during).map(|schedule| &schedule.spec) else {
            return Vec::new();
        };
        let Some(rules) = self.source.zones.get(&schedule.time_zone) else { return Vec::new() };
        let mut spans = schedule.spans(rules, from_ms, until_ms);
        if let Some(release_ms) = reservation.release_unused_after_ms {
            spans.iter_mut().for_each(|span| span.end_ms = span.end_ms.min(span.start_ms.saturating_add(release_ms)));
            spans.retain(|span| span.end_ms > from_ms);
        }
        spans
    }

    /// The next time at which a reservation whose window is open at `after_ms` releases what is unused. Other windows
    /// open before that.
    pub(crate) fn next_release_ms(&self, after_ms: u64) -> Option<u64> {
        // Many reservations follow few schedules.
        let mut seen: BTreeSet<(&str, u64)> = BTreeSet::new();
        let specs = self.reservations.values().map(|reservation| &reservation.spec);
        let releasing = specs.filter(|spec| {
            spec.release_unused_after_ms.is_some_and(|release_ms| seen.insert((&spec.during, release_ms)))
        });
        let open = releasing.flat_map(|spec| self.holding_spans(spec, after_ms, after_ms.saturating_add(1)));
        open.map(|span| span.end_ms).min()
    }
}
