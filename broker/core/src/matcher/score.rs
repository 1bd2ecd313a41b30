//! Which of several donors: an integer tuple with a written order; the lowest wins.

use super::view::View;
use crate::id::ClusterId;
use crate::peering::PeeringState;
use crate::placement::Placement;
use crate::request::Request;

/// Compared field by field, in this order.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Score {
    /// A donor that failed this request before comes last.
    failed_before: bool,
    /// Fewer nodes: less traffic between them, fewer nodes broken into.
    nodes: usize,
    /// Thousandths left free on the devices broken into: what the placement strands.
    stranded_milli: u64,
    /// A warm peering saves the handshake.
    cold: bool,
    /// Donors that lend less come first.
    lent_milli: u64,
    /// Ties break by id.
    donor: ClusterId,
}

pub(super) fn score(view: &View<'_>, request: Option<&Request>, origin: &ClusterId, placement: &Placement) -> Score {
    let donor = &placement.donor;
    let warm = view
        .state
        .peering_between(origin, donor)
        .is_some_and(|(_, peering)| peering.state == PeeringState::Established);
    Score {
        failed_before: request.is_some_and(|request| request.failed_donors.contains(donor)),
        nodes: placement.nodes.len(),
        stranded_milli: stranded(view, placement),
        cold: !warm,
        lent_milli: view.lent_milli(donor),
        donor: donor.clone(),
    }
}

/// What stays free on the devices that the placement uses in part.
fn stranded(view: &View<'_>, placement: &Placement) -> u64 {
    let mut stranded = 0;
    for (id, part) in &placement.nodes {
        let lent = view.occupancy(&placement.donor, id);
        for (index, share) in &part.devices {
            let lent = lent.and_then(|node| node.devices.get(index)).copied().unwrap_or(0);
            stranded += u64::from(crate::limits::WHOLE_MILLI.saturating_sub(lent).saturating_sub(share.milli));
        }
    }
    stranded
}
