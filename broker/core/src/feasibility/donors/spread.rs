//! Gangs that no single donor can start: their members over several donors, as one part at each.
//!
//! Nothing is held while it is looked for: either a plan has all parts, or it has none, so gangs cannot wait for each
//! other with halves in their hands. Donors are taken by how many members they have room for, the most first, until the
//! least number that the gang needs is reached; more join once it runs. As members at one donor take nothing of another
//! one, and a limit of policy counts over all of them, that finds a place if there is one.

use crate::feasibility::donors::promise::donors;
use crate::feasibility::donors::score::{Score, score};
use crate::feasibility::snapshot::Snapshot;
use crate::feasibility::verdict::{FeasiblePlacement, Fitter, ask_donor};
use crate::model::demand::{Members, RequestSpec};
use crate::model::id::ClusterId;
use crate::model::limits::MAX_PARTS;
use crate::model::request::Request;

/// Where something is placed: at one donor, or as several parts; never empty.
pub(crate) type Found = Vec<FeasiblePlacement>;

/// Parts for at least as many members as `spec` needs, each at another donor; `None` if it may not be spread, or all
/// donors together have not enough.
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

/// As many members as it needs, or all that donors have room for if those are fewer.
pub(crate) fn gather(
    snapshot: &Snapshot<'_>,
    spec: &RequestSpec,
    request: Option<&Request>,
    fitter: Fitter<'_>,
) -> Found {
    let members = spec.members.unwrap_or(Members { min: 1, desired: 1 });
    let mut snapshot = snapshot.clone();
    let (mut found, mut held) = (Found::new(), 0_u32);
    let mut left: Vec<&ClusterId> = donors(snapshot.state, spec).collect();
    while held < members.min && found.len() < MAX_PARTS {
        let most = members.desired.saturating_sub(held);
        let mut best: Option<((u32, Score), FeasiblePlacement)> = None;
        for donor in &left {
            let Some((many, candidate)) = part_at(&snapshot, spec, donor, most, fitter) else { continue };
            let rank = (most.saturating_sub(many), score(&snapshot, spec, request, &candidate));
            if best.as_ref().is_none_or(|(least, _)| rank < *least) {
                best = Some((rank, candidate));
            }
        }
        let Some((_, candidate)) = best else { break };
        let placement = &candidate.placement;
        snapshot.take(spec.tenant.as_str(), &candidate.class, candidate.agreement.as_deref(), placement);
        snapshot.beside_milli = snapshot.beside_milli.saturating_add(placement.milli());
        left.retain(|donor| **donor != placement.donor);
        held = held.saturating_add(members_in(spec, &candidate));
        found.push(candidate);
    }
    found
}

/// So many members of `spec` as fit at `donor` and policy allows, `most` at most.
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

/// How many members a candidate holds.
pub(crate) fn members_in(spec: &RequestSpec, candidate: &FeasiblePlacement) -> u32 {
    let members = candidate.placement.units() / u64::from(spec.gpus.count.max(1));
    u32::try_from(members).unwrap_or(u32::MAX)
}
