use crate::state::State;
use crate::state::invariants::Invariant;

pub(crate) const LEASES_ARE_DELIVERED_AS_ASKED: Invariant =
    Invariant { sentence: "every lease uses the delivery that its request asks for", check };

/// The state may drop a request before its leases; then there is nothing to compare.
fn check(state: &State) -> Vec<String> {
    let mut violations = Vec::new();
    for (id, lease) in &state.leases {
        let Some(request) = state.requests.get(&lease.request) else { continue };
        if lease.delivery != request.spec.delivery {
            let (has, wants) = (lease.delivery, request.spec.delivery);
            violations.push(format!("{id} is delivered by {has}, and {} asks for {wants}", lease.request));
        }
    }
    violations
}
