//! Which of several donors: an integer tuple with a written order; the lowest wins.

use std::cmp::Reverse;

use crate::feasibility::donors::gravity::distance;
use crate::feasibility::donors::link::Link;
use crate::feasibility::donors::promise::{Member, Promise};
use crate::feasibility::snapshot::Snapshot;
use crate::feasibility::verdict::FeasiblePlacement;
use crate::model::demand::RequestSpec;
use crate::model::id::ClusterId;
use crate::model::request::Request;
use crate::state::State;

/// Placements that leave idle so many thousandths of devices more or less are as good: tenths tell them apart.
pub(crate) const ALIKE_MILLI: i64 = 100;

/// Compared field by field, in this order.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Score {
    /// A donor that failed this request before comes last.
    failed_before: bool,
    /// More members of a gang; of all else, as many shares as are asked for.
    shares: Reverse<u64>,
    /// What its work reads is there soon, in [doublings of minutes](distance); nothing is known of work that does not
    /// say.
    data: u32,
    /// Fewer nodes: less traffic between them, fewer nodes broken into. Of what is to be spread, as many as can be.
    nodes: u64,
    /// Tenths of devices that the placement leaves idle in the end, rounded down: what is finer does not decide.
    waste: i64,
    /// A warm peering saves the handshake.
    cold: bool,
    /// A shorter [round trip](round_trip), in doublings.
    round_trip: u32,
    /// Donors that lend less come first.
    lent_milli: u64,
    /// Ties break by id.
    donor: ClusterId,
}

/// The part of a [`Score`] that comes first, of a donor [at its best](at_best): quickly known, it tells most donors
/// apart.
pub(crate) type Beginning = (bool, u32, u64, i64);

/// The beginning of a donor's score at its best.
pub(crate) fn beginning(
    state: &State,
    spec: &RequestSpec,
    request: Option<&Request>,
    Promise { member: Member { donor, .. }, idle_milli, .. }: Promise<'_>,
) -> Beginning {
    let failed_before = request.is_some_and(|request| request.failed_donors.contains(donor));
    (failed_before, distance(state, spec, donor), least_nodes(spec), tenths(idle_milli))
}

fn least_nodes(spec: &RequestSpec) -> u64 {
    u64::from(!spec.topology.spread_nodes)
}

fn tenths(least_waste_milli: Option<i64>) -> i64 {
    least_waste_milli.map_or(i64::MIN, |waste| waste.div_euclid(ALIKE_MILLI))
}

impl Score {
    /// The part of it that [`beginning`] says of a donor at its best.
    pub(crate) fn beginning(&self) -> Beginning {
        (self.failed_before, self.data, self.nodes, self.waste)
    }

    /// As if it had every share that can be asked for, to be compared with a donor [at its best](at_best).
    pub(crate) fn with_most_shares(&self) -> Self {
        Self { shares: MOST_SHARES, ..self.clone() }
    }
}

/// What no placement has more of.
const MOST_SHARES: Reverse<u64> = Reverse(u64::MAX);

pub(crate) fn score(
    snapshot: &Snapshot<'_>,
    spec: &RequestSpec,
    request: Option<&Request>,
    candidate: &FeasiblePlacement,
) -> Score {
    let placement = &candidate.placement;
    let waste = candidate.waste_milli.div_euclid(ALIKE_MILLI);
    let shares = Reverse(placement.units());
    let nodes = u64::try_from(placement.nodes.len()).unwrap_or(u64::MAX);
    let nodes = if spec.topology.spread_nodes { spec.most_shares().saturating_sub(nodes) } else { nodes };
    let line = Link::of(snapshot.state.peering_between(&spec.origin, &placement.donor));
    let lent_milli = snapshot.lent_milli(&placement.donor);
    Score { shares, nodes, waste, lent_milli, ..of_donor(snapshot.state, spec, request, (&placement.donor, line)) }
}

/// The score of a donor at its best: with every share on one node, or each on one of its own if they are to be spread,
/// leaving no less idle than what it promises.
pub(crate) fn at_best(
    snapshot: &Snapshot<'_>,
    spec: &RequestSpec,
    request: Option<&Request>,
    Promise { member, idle_milli, lent_milli }: &Promise<'_>,
) -> Score {
    let line = snapshot.lines_from(&spec.origin, |lines| lines.get(member.at).copied()).unwrap_or_default();
    let lent_milli = lent_milli.unwrap_or_else(|| snapshot.lent_milli(member.donor));
    debug_assert_eq!(lent_milli, snapshot.lent_milli(member.donor), "{}", member.donor);
    Score { waste: tenths(*idle_milli), lent_milli, ..of_donor(snapshot.state, spec, request, (member.donor, line)) }
}

/// The score of a donor that has every share in the best place, leaves nothing idle, and lends nothing yet.
fn of_donor(state: &State, spec: &RequestSpec, request: Option<&Request>, (donor, line): (&ClusterId, Link)) -> Score {
    Score {
        failed_before: request.is_some_and(|request| request.failed_donors.contains(donor)),
        shares: MOST_SHARES,
        data: distance(state, spec, donor),
        nodes: least_nodes(spec),
        waste: i64::MIN,
        cold: !line.warm,
        round_trip: line.round_trip,
        lent_milli: 0,
        donor: donor.clone(),
    }
}
