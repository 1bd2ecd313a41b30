//! Which of several donors: an integer tuple with a written order; the lowest wins.

use std::cmp::Reverse;

use super::verdict::Candidate;
use super::view::View;
use crate::id::ClusterId;
use crate::peering::PeeringState;
use crate::request::Request;

/// Compared field by field, in this order.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Score {
    /// A donor that failed this request before comes last.
    failed_before: bool,
    /// More members of a gang; of all else, as many shares as are asked for.
    shares: Reverse<u64>,
    /// Fewer nodes: less traffic between them, fewer nodes broken into.
    nodes: usize,
    /// Tenths of devices that the placement leaves idle in the end, rounded down: what is finer does not decide.
    waste: i64,
    /// A warm peering saves the handshake.
    cold: bool,
    /// Donors that lend less come first.
    lent_milli: u64,
    /// Ties break by id.
    donor: ClusterId,
}

impl Score {
    /// As if it had every share that can be asked for, to be compared with a donor [at its best](at_best).
    pub(super) fn with_most_shares(&self) -> Self {
        Self { shares: MOST_SHARES, ..self.clone() }
    }
}

/// What no placement has more of.
const MOST_SHARES: Reverse<u64> = Reverse(u64::MAX);

pub(super) fn score(view: &View<'_>, request: Option<&Request>, origin: &ClusterId, candidate: &Candidate) -> Score {
    let placement = &candidate.placement;
    let waste = candidate.waste_milli.div_euclid(100);
    let shares = Reverse(placement.units());
    Score { shares, nodes: placement.nodes.len(), waste, ..at_best(view, request, origin, (&placement.donor, None)) }
}

/// The score of a donor at its best: with every share on one node, leaving no less idle than what it promises in thousandths
/// of a device; `None`: nobody knows.
pub(super) fn at_best(
    view: &View<'_>,
    request: Option<&Request>,
    origin: &ClusterId,
    (donor, least_waste_milli): (&ClusterId, Option<i64>),
) -> Score {
    let warm = view
        .state
        .peering_between(origin, donor)
        .is_some_and(|(_, peering)| peering.state == PeeringState::Established);
    Score {
        failed_before: request.is_some_and(|request| request.failed_donors.contains(donor)),
        shares: MOST_SHARES,
        nodes: 1,
        waste: least_waste_milli.map_or(i64::MIN, |waste| waste.div_euclid(100)),
        cold: !warm,
        lent_milli: view.lent_milli(donor),
        donor: donor.clone(),
    }
}
