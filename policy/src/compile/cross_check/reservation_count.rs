//! Checks reservations against each other.

use std::collections::BTreeMap;

use crate::compile::draft::Draft;
use crate::limits::MAX_RESERVATIONS_PER_CLUSTER;
use crate::problem::{ProblemCode, Problems};

/// Reports clusters with too many reservations.
pub(super) fn check(draft: &Draft, problems: &mut Problems<'_>) {
    let mut count: BTreeMap<&str, usize> = BTreeMap::new();
    for reservation in draft.reservations.values() {
        for cluster in &reservation.spec.clusters {
            let count = count.entry(cluster).or_default();
            *count += 1;
            if *count == MAX_RESERVATIONS_PER_CLUSTER + 1 {
                let message = format!("cluster `{cluster}` has more than {MAX_RESERVATIONS_PER_CLUSTER} Reservations");
                let place = reservation.place_of("clusters");
                problems.at(place, ProblemCode::TooLarge, message, "merge those of the same tenant and class");
            }
        }
    }
}
