use crate::state::invariants::Invariant;
use crate::state::{Derived, State};

pub(crate) const DERIVED_DATA_IS_CURRENT: Invariant =
    Invariant { sentence: "derived data matches the rest of the state", check };

fn check(state: &State) -> Vec<String> {
    if state.derived == Derived::of(state) {
        Vec::new()
    } else {
        vec!["it differs from what a restart would build".to_owned()]
    }
}
