//! Spreads a gang that no single donor can start over several donors, one part at each.
//!
//! Nothing is held during the search: a plan contains all parts or none, so gangs cannot deadlock with partial
//! placements. Donors with room for the most members come first, until the gang's minimum is reached; more members join
//! once it runs. Members at one donor take nothing from another, and policy limits count over all donors, so this finds
//! a placement whenever one exists.

use comity_types::ClusterId;

use crate::feasibility::donors::promise::donors;
use crate::feasibility::donors::score::{Preference, Score, preference, score};
use crate::feasibility::snapshot::Snapshot;
use crate::feasibility::verdict::{FeasiblePlacement, Fitter, ask_donor};
use crate::model::demand::{Members, RequestSpec};
use crate::model::limits::MAX_PARTS;
use crate::model::request::Request;

/// A placement at one donor, or in parts at several; never empty.
pub(crate) type Found = Vec<FeasiblePlacement>;

/// Parts for at least the minimum of members, each at a different donor; `None` if the request may not be spread, or if
/// all donors together lack room.
pub(crate) fn spread(
    snapshot: &Snapshot<'_>,
    spec: &RequestSpec,
    request: Option<&Request>,
    fitter: Fitter<'_>,
) -> Option<Found> {
    let members = spec.members.filter(|_| spec.spread_donors)?;
    let found = gather(snapshot, spec, request, fitter);
    (found.iter().map(|part| members_in(spec, part)).sum::<u32>() >= members.min).then_some(found)
}

/// Like [`spread`], but returns fewer members if there is no room for the minimum.
pub(crate) fn gather(
    snapshot: &Snapshot<'_>,
    spec: &RequestSpec,
    request: Option<&Request>,
    fitter: Fitter<'_>,
) -> Found {
    let members = spec.members.unwrap_or(Members { min: 1, desired: 1 });
    let mut snapshot = snapshot.clone();
    let (mut found, mut held) = (Found::new(), 0_u32);
    let mut left: Vec<(&ClusterId, Preference)> =
        donors(snapshot.state, spec).map(|donor| (donor, preference(&snapshot, spec, donor))).collect();
    while held < members.min && found.len() < MAX_PARTS {
        let most = members.desired.saturating_sub(held);
        let mut best: Option<((u32, Score), FeasiblePlacement)> = None;
        for (donor, preference) in &left {
            let Some((members, candidate)) = part_at(&snapshot, spec, donor, most, fitter) else { continue };
            let rank = (most.saturating_sub(members), score(&snapshot, spec, request, &candidate, *preference));
            if best.as_ref().is_none_or(|(least, _)| rank < *least) {
                best = Some((rank, candidate));
            }
        }
        let Some((_, candidate)) = best else { break };
        let placement = &candidate.placement;
        snapshot.take(spec, &candidate.class, candidate.agreement.as_deref(), placement);
        snapshot.beside_milli = snapshot.beside_milli.saturating_add(placement.milli());
        left.retain(|(donor, _)| **donor != placement.donor);
        held = held.saturating_add(members_in(spec, &candidate));
        found.push(candidate);
    }
    found
}

/// The largest part that fits at `donor` and that policy allows, up to `most` members.
fn part_at(
    snapshot: &Snapshot<'_>,
    spec: &RequestSpec,
    donor: &ClusterId,
    most: u32,
    fitter: Fitter<'_>,
) -> Option<(u32, FeasiblePlacement)> {
    let part = spec.for_members(Members { min: 1, desired: most }, Vec::new());
    let candidate = ask_donor(snapshot, &part, donor, fitter).ok()?;
    Some((members_in(spec, &candidate), candidate))
}

pub(crate) fn members_in(spec: &RequestSpec, candidate: &FeasiblePlacement) -> u32 {
    let members = candidate.placement.units() / u64::from(spec.gpus.count.max(1));
    u32::try_from(members).unwrap_or(u32::MAX)
}
