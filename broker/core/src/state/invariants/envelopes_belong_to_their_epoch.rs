use crate::state::State;
use crate::state::invariants::Invariant;

pub(crate) const ENVELOPES_BELONG_TO_THEIR_EPOCH: Invariant = Invariant {
    sentence: "every envelope belongs to the current epoch of a live peering, and the side that owns its step sends it",
    check,
};

fn check(state: &State) -> Vec<String> {
    let mut violations = Vec::new();
    for (key, envelope) in &state.envelopes {
        let right = state.peerings.get(&key.peering).is_some_and(|peering| {
            peering.epoch == key.epoch
                && peering.state.accepts_leases()
                && peering.side_of(&key.to).is_some()
                && peering.side_of(&envelope.from) == Some(key.step.sender())
                && key.to != envelope.from
        });
        if !right {
            violations.push(format!("{key:?}"));
        }
    }
    violations
}
