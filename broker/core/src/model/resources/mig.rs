//! MIG geometry: the instances that a board can be partitioned into, and where each may lie.
//!
//! A board has a row of memory slots. An instance takes a contiguous run of slots and may start only at certain ones.
//! Instances can coexist if they do not overlap and at most one has the device's media extension; compute slices never
//! add a constraint. Profile names depend on a board's memory: "1g.10gb" means different instances on an A100 of 40 GB
//! and on one of 80 GB, so a name has a meaning only together with the board.
//!
//! - [`Slots`]: a set of slots of one device
//! - [`Board`], [`InstanceShape`]: geometry tables and profile names
//! - [`InUse`]: the used part of one device
//! - [`StateValues`]: how much of the expected work a device in a given state can still serve
//! - [`fit_together`]: whether several instances fit on several devices
//!
//! Source: NVIDIA MIG User Guide, "Supported MIG Profiles"; `nvidia-smi mig -lgip` and `-lgipp`.

pub(crate) mod board;
pub(crate) mod fit_together;
pub(crate) mod in_use;
pub(crate) mod slots;
pub(crate) mod state_values;

pub use board::{Board, InstanceShape, MAX_SHAPES};
pub use fit_together::{InstanceCounts, fit_together};
pub use in_use::InUse;
pub use slots::Slots;
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
