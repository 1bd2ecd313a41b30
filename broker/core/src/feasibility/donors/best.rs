//! Finds the best placement over all donors.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use comity_types::ClusterId;

use crate::feasibility::donors::promise::Promise;
use crate::feasibility::donors::score::{Score, ScorePrefix, best_possible_score, score, score_prefix};
use crate::feasibility::donors::spread::{Found, spread};
use crate::feasibility::snapshot::Snapshot;
use crate::feasibility::verdict::{FeasiblePlacement, Fitter, ask_donor};
use crate::model::demand::RequestSpec;
use crate::model::request::Request;

/// The best placement over all donors: at one donor, or else spread over several where that is allowed. Donors are
/// asked in order of their promises, until no promise beats the best placement found.
pub(crate) fn best(
    snapshot: &Snapshot<'_>,
    spec: &RequestSpec,
    request: Option<&Request>,
    promises: Vec<Promise<'_>>,
    fitter: Fitter<'_>,
) -> Option<Found> {
    let mut promises: Vec<(ScorePrefix, Promise<'_>)> =
        promises.into_iter().map(|promise| (score_prefix(snapshot, spec, request, promise), promise)).collect();
    promises.sort_unstable_by_key(|(score_prefix, _)| *score_prefix);
    let mut one: Option<(Score, FeasiblePlacement)> = None;
    // Promises do not cover the number of shares, so a gang asks every donor.
    let gang = spec.members.is_some();
    for alike in promises.chunk_by(|one, other| one.0 == other.0) {
        if !gang && one.as_ref().is_some_and(|(found, _)| found.score_prefix() < alike[0].0) {
            break;
        }
        // Usually the first donor already wins.
        let mut next: BinaryHeap<Reverse<(Score, &ClusterId)>> = alike
            .iter()
            .map(|(prefix, it)| {
                Reverse((best_possible_score(snapshot, spec, request, it, prefix.preference), it.member.donor))
            })
            .collect();
        while let Some(Reverse((best_possible_score, donor))) = next.pop() {
            let is_better =
                |(found, _): &(Score, FeasiblePlacement)| found.assuming_most_shares() < best_possible_score;
            if !gang && one.as_ref().is_some_and(is_better) {
                break;
            }
            let Ok(candidate) = ask_donor(snapshot, spec, donor, fitter) else { continue };
            let score = score(snapshot, spec, request, &candidate, alike[0].0.preference);
            debug_assert!(best_possible_score <= score, "{donor} promised {best_possible_score:?} and keeps {score:?}");
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
