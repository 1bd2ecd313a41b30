use comity_types::{LeaseState, PeeringState};

use crate::model::lease::SideState;
use crate::state::State;
use crate::state::invariants::Invariant;

pub(crate) const THE_EVICTED_TAKE_NO_PART: Invariant = Invariant {
    sentence: "an evicted cluster offers nothing, requests nothing, has no peering but for leases that finish, and \
               nothing waits for it",
    check,
};

fn check(state: &State) -> Vec<String> {
    let mut violations = Vec::new();
    for (id, cluster) in state.clusters.iter().filter(|(_, cluster)| cluster.evicted.is_some()) {
        if cluster.connected || cluster.offer.is_some() {
            violations.push(format!("{id} is connected ({}) or offers something", cluster.connected));
        }
        for (request, _) in state.queued().filter(|(_, request)| request.spec.origin == *id) {
            violations.push(format!("{request} waits at {id}"));
        }
        for (lease, held) in state.leases_of(id) {
            let side = if held.origin == *id { held.origin_side } else { held.donor_side };
            if held.state.is_held() || held.state == LeaseState::Ending && side != SideState::Clean {
                violations.push(format!("{lease} is {:?} and waits for {id}", held.state));
            }
        }
        for (peering, held) in state.peerings_of(id) {
            let goes_on = held.leases.iter().filter_map(|lease| state.leases.get(lease));
            let is_used = goes_on.into_iter().any(|lease| lease.state.is_in_force());
            if !is_used && held.state != PeeringState::Draining {
                violations.push(format!("{peering} is {:?} without a lease in force", held.state));
            }
            if held.state == PeeringState::Draining && !held.side_of(id).is_some_and(|side| held.closed.contains(&side))
            {
                violations.push(format!("{peering} waits for {id}"));
            }
        }
    }
    violations
}
