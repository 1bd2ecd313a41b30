//! The best placement over all donors.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use crate::feasibility::donors::promise::Promise;
use crate::feasibility::donors::score::{Beginning, Score, at_best, beginning, score};
use crate::feasibility::donors::spread::{Found, spread};
use crate::feasibility::snapshot::Snapshot;
use crate::feasibility::verdict::{FeasiblePlacement, Fitter, ask_donor};
use crate::model::demand::RequestSpec;
use crate::model::id::ClusterId;
use crate::model::request::Request;

/// The best placement over all donors, if there is any: at one of them, or else as parts at several where that is
/// allowed. Those that promise most are asked first, and none whose promise is worse than what was found.
pub(crate) fn best(
    snapshot: &Snapshot<'_>,
    spec: &RequestSpec,
    request: Option<&Request>,
    promises: Vec<Promise<'_>>,
    fitter: Fitter<'_>,
) -> Option<Found> {
    let mut promises: Vec<(Beginning, Promise<'_>)> =
        promises.into_iter().map(|promise| (beginning(snapshot.state, spec, request, promise), promise)).collect();
    promises.sort_unstable_by_key(|(beginning, _)| *beginning);
    let mut one: Option<(Score, FeasiblePlacement)> = None;
    // How many shares a donor has room for is not promised: a gang asks all of them.
    let gang = spec.members.is_some();
    for alike in promises.chunk_by(|one, other| one.0 == other.0) {
        if !gang && one.as_ref().is_some_and(|(found, _)| found.beginning() < alike[0].0) {
            break;
        }
        // Most often the first is the one.
        let mut next: BinaryHeap<Reverse<(Score, &ClusterId)>> =
            alike.iter().map(|(_, it)| Reverse((at_best(snapshot, spec, request, it), it.member.donor))).collect();
        while let Some(Reverse((at_best, donor))) = next.pop() {
            let surpassed = |(found, _): &(Score, FeasiblePlacement)| found.with_most_shares() < at_best;
            if !gang && one.as_ref().is_some_and(surpassed) {
                break;
            }
            let Ok(candidate) = ask_donor(snapshot, spec, donor, fitter) else { continue };
            let score = score(snapshot, spec, request, &candidate);
            debug_assert!(at_best <= score, "{donor} promised {at_best:?} and keeps {score:?}");
            if one.as_ref().is_none_or(|(found, _)| score < *found) {
                one = Some((score, candidate));
            }
        }
    }
    match one {
        Some((_, candidate)) => Some(vec![candidate]),
        None => spread(snapshot, spec, request, fitter),
    }
}
