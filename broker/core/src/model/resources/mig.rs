//! The geometry of MIG: which instances a board can be cut into, and where each may lie.
//!
//! A board has memory slots on an axis; an instance of a profile takes some that follow one another and may begin only
//! at certain ones. What does not overlap there, and keeps to the one media extension a device has, can exist together:
//! compute slices follow. Names of profiles are computed from a board's memory, so "1g.10gb" is one thing on an A100 of
//! 40 GB and another on one of 80 GB; only together with the board does a name say what is meant.
//!
//! - [`Slots`]: a set of slots of one device
//! - [`Board`], [`Shape`]: tables, and names
//! - [`InUse`]: what of one device is taken
//! - [`StateValues`]: how much of the work that is expected a device in some state still serves
//! - [`fit_together`]: whether several instances fit on several devices
//!
//! Source: NVIDIA MIG User Guide, "Supported MIG Profiles"; `nvidia-smi mig -lgip` and `-lgipp`.

pub(crate) mod board;
pub(crate) mod fit_together;
pub(crate) mod in_use;
pub(crate) mod slots;
pub(crate) mod state_values;

pub use board::{Board, MAX_SHAPES, Shape};
pub use fit_together::{InstanceCounts, fit_together};
pub use in_use::InUse;
pub use slots::Slots;
pub use state_values::{StateValues, Weights};

/// States that a device can be in: all that instances in use can leave behind.
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
