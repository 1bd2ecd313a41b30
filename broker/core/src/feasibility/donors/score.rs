//! Scores donors: a tuple compared field by field; the lowest wins.

use std::cmp::Reverse;

use comity_policy::PreferenceFacts;
use comity_types::ClusterId;

use crate::feasibility::donors::gravity::distance;
use crate::feasibility::donors::link::Link;
use crate::feasibility::donors::promise::{Member, Promise};
use crate::feasibility::snapshot::Snapshot;
use crate::feasibility::verdict::FeasiblePlacement;
use crate::model::demand::{DeviceChoice, RequestSpec};
use crate::model::request::Request;
use crate::state::State;

/// Placements whose waste differs by less than a tenth of a device are equally good.
pub(crate) const WASTE_STEP_MILLI: i64 = 100;

/// Whether the donor keeps GPUs for the tenant that it does not use, and a sum of weights of rules; the highest come
/// first.
pub(crate) type Preference = Reverse<(bool, u32)>;

/// Compared in the order of its fields.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Score {
    /// Donors that failed this request before come last.
    failed_before: bool,
    /// Donors that keep GPUs for the tenant, then donors that [rules of policy prefer](preference) come first.
    preference: Preference,
    /// More members of a gang come first; other requests always get the shares that they ask for.
    shares: Reverse<u64>,
    /// Time until the work's data arrives, in [doublings of minutes](distance); 0 for work without declared data.
    data: u32,
    /// Fewer nodes come first: less traffic between nodes, and fewer nodes in part use. For work to be spread, more
    /// nodes come first.
    nodes: u64,
    /// Tenths of devices left idle in the end, rounded down.
    waste: i64,
    /// An established peering saves the handshake.
    cold: bool,
    /// [Round trip](crate::feasibility::donors::gravity::round_trip) in doublings.
    round_trip: u32,
    /// Donors that lend less come first.
    lent_milli: u64,
    /// Ties break by id.
    donor: ClusterId,
}

/// The leading fields of a [`Score`], of a donor [at its best](best_possible_score). They are cheap to compute and
/// separate most donors.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct ScorePrefix {
    failed_before: bool,
    pub(crate) preference: Preference,
    data: u32,
    nodes: u64,
    waste: i64,
}

/// The leading fields of a donor's best possible score.
pub(crate) fn score_prefix(
    snapshot: &Snapshot<'_>,
    spec: &RequestSpec,
    request: Option<&Request>,
    Promise { member: Member { donor, .. }, idle_milli, .. }: Promise<'_>,
) -> ScorePrefix {
    let failed_before = request.is_some_and(|request| request.failed_donors.contains(donor));
    let (preference, data) = (preference(snapshot, spec, donor), distance(snapshot.state, spec, donor));
    ScorePrefix { failed_before, preference, data, nodes: least_nodes(spec), waste: tenths(idle_milli) }
}

/// Whether a donor keeps GPUs for the tenant, and the sum of the weights of the rules that prefer it, for a comparison
/// in which the lowest wins. Ask once for each donor of a request: rules cost microseconds.
pub(crate) fn preference(snapshot: &Snapshot<'_>, spec: &RequestSpec, donor: &ClusterId) -> Preference {
    let weight = snapshot.bundle.preference(&PreferenceFacts {
        tenant: spec.tenant.as_str(),
        origin_cluster: spec.origin.as_str(),
        donor_cluster: donor.as_str(),
        class: match &spec.gpus.devices {
            DeviceChoice::Class(class) => Some(class.as_str()),
            DeviceChoice::Selector(_) => None,
        },
        gpus_milli: spec.least_milli(),
        delivery: spec.delivery,
        duration_ms: spec.duration.0,
        data: &spec.data,
        purpose: &spec.purpose,
    });
    let tenant = spec.tenant.as_str();
    let keeps = |class: &str| snapshot.keeps_for(donor, tenant, class);
    let keeps = match &spec.gpus.devices {
        DeviceChoice::Class(class) => keeps(class.as_str()),
        DeviceChoice::Selector(_) => {
            let mut kept = snapshot.bundle.reservations_at(donor.as_str());
            kept.any(|it| it.spec.tenant == tenant && keeps(&it.spec.class))
        }
    };
    Reverse((keeps, weight))
}

fn least_nodes(spec: &RequestSpec) -> u64 {
    u64::from(!spec.topology.spread_nodes)
}

fn tenths(least_waste_milli: Option<i64>) -> i64 {
    least_waste_milli.map_or(i64::MIN, |waste| waste.div_euclid(WASTE_STEP_MILLI))
}

impl Score {
    /// The fields that [`score_prefix`] computes for a donor at its best.
    pub(crate) fn score_prefix(&self) -> ScorePrefix {
        let Self { failed_before, preference, data, nodes, waste, .. } = *self;
        ScorePrefix { failed_before, preference, data, nodes, waste }
    }

    /// Assumes the largest number of shares, for comparison with a [best possible score](best_possible_score).
    pub(crate) fn assuming_most_shares(&self) -> Self {
        Self { shares: MOST_SHARES, ..self.clone() }
    }
}

/// At least as good as any placement.
const MOST_SHARES: Reverse<u64> = Reverse(u64::MAX);

pub(crate) fn score(
    snapshot: &Snapshot<'_>,
    spec: &RequestSpec,
    request: Option<&Request>,
    candidate: &FeasiblePlacement,
    preference: Preference,
) -> Score {
    let placement = &candidate.placement;
    let waste = candidate.waste_milli.div_euclid(WASTE_STEP_MILLI);
    let shares = Reverse(placement.units());
    let nodes = u64::try_from(placement.nodes.len()).unwrap_or(u64::MAX);
    let nodes = if spec.topology.spread_nodes { spec.most_shares().saturating_sub(nodes) } else { nodes };
    let link = Link::of(snapshot.state.peering_between(&spec.origin, &placement.donor));
    let lent_milli = snapshot.lent_milli(&placement.donor);
    Score {
        shares,
        nodes,
        waste,
        lent_milli,
        preference,
        ..ideal_score(snapshot.state, spec, request, &placement.donor, link)
    }
}

/// The best score a donor can reach: all shares on one node, or each on its own node if they are to be spread, and no
/// more idle capacity than promised.
pub(crate) fn best_possible_score(
    snapshot: &Snapshot<'_>,
    spec: &RequestSpec,
    request: Option<&Request>,
    Promise { member, idle_milli, lent_milli }: &Promise<'_>,
    preference: Preference,
) -> Score {
    let link = snapshot.with_links_from(&spec.origin, |lines| lines.get(member.at).copied()).unwrap_or_default();
    let lent_milli = lent_milli.unwrap_or_else(|| snapshot.lent_milli(member.donor));
    debug_assert_eq!(lent_milli, snapshot.lent_milli(member.donor), "{}", member.donor);
    Score {
        waste: tenths(*idle_milli),
        lent_milli,
        preference,
        ..ideal_score(snapshot.state, spec, request, member.donor, link)
    }
}

/// The score of a donor with an ideal placement, no waste, nothing lent, and preferred most.
fn ideal_score(state: &State, spec: &RequestSpec, request: Option<&Request>, donor: &ClusterId, link: Link) -> Score {
    Score {
        failed_before: request.is_some_and(|request| request.failed_donors.contains(donor)),
        preference: Reverse((true, u32::MAX)),
        shares: MOST_SHARES,
        data: distance(state, spec, donor),
        nodes: least_nodes(spec),
        waste: i64::MIN,
        cold: !link.warm,
        round_trip: link.round_trip,
        lent_milli: 0,
        donor: donor.clone(),
    }
}
