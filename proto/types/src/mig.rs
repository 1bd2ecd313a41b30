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
//!
//! Source: NVIDIA MIG User Guide, "Supported MIG Profiles"; `nvidia-smi mig -lgip` and `-lgipp`.

mod board;
mod in_use;
mod slots;

pub use board::{Board, InstanceShape, MAX_SHAPES};
pub use in_use::InUse;
pub use slots::Slots;
