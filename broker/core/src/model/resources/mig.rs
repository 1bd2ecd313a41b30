//! What the scheduler knows of MIG beyond the geometry of `comity_types::mig`.
//!
//! - [`StateValues`]: how much of the expected work a device in a given state can still serve
//! - [`fit_together`]: whether several instances fit on several devices

pub(crate) mod fit_together;
pub(crate) mod state_values;

pub use comity_types::mig::{Board, InUse, InstanceShape, MAX_SHAPES, Slots};
pub use fit_together::{InstanceCounts, fit_together};
pub use state_values::{StateValues, Weights};

/// All states that used instances can leave a device in.
#[cfg(test)]
fn states(board: Board) -> std::collections::BTreeSet<InUse> {
    let (mut all, mut open) = (std::collections::BTreeSet::new(), std::collections::BTreeSet::from([InUse::default()]));
    while let Some(state) = open.pop_first() {
        for shape in board.shapes() {
            open.extend(state.starts(shape).map(|start| state.with(shape, start)).filter(|next| !all.contains(next)));
        }
        all.insert(state);
    }
    all
}
