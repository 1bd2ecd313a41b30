use crate::state::State;
use crate::state::invariants::Invariant;

pub(crate) const REVISIONS_DO_NOT_RUN_AHEAD: Invariant =
    Invariant { sentence: "no object has a revision above the state's, and every id is unique", check };

fn check(state: &State) -> Vec<String> {
    let mut violations = Vec::new();
    let mut look = |what: String, revision: u64| {
        if revision > state.revision {
            violations.push(format!("{what} has revision {revision} above {}", state.revision));
        }
    };
    state.clusters.iter().for_each(|(id, cluster)| look(id.to_string(), cluster.revision));
    state.requests.iter().for_each(|(id, request)| look(id.to_string(), request.revision));
    state.leases.iter().for_each(|(id, lease)| look(id.to_string(), lease.revision));
    state.peerings.iter().for_each(|(id, peering)| look(id.to_string(), peering.revision));
    if state.requests.last_key_value().is_some_and(|(id, _)| id.0 > state.next_request)
        || state.leases.last_key_value().is_some_and(|(id, _)| id.0 > state.next_lease)
        || state.peerings.last_key_value().is_some_and(|(id, _)| id.0 > state.next_peering)
    {
        violations.push("a number above the counter is in use".to_owned());
    }
    violations
}
