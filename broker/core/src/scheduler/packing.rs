//! Packing: chooses the node that serves a task so that little capacity is stranded in the end.
//!
//! Nodes of equal shape with equal free amounts share one *state*. Packing decides between states, not between nodes.
//! The value of a state is the capacity that would stay idle on it if recent work kept coming: packing plays fixed
//! rollouts of that work on the state. The cost of a task on a state is the growth of that idle capacity, plus prices
//! for scarce capacity.
//!
//! ```text
//! cost = idle after rollouts(state after) − idle after rollouts(state before)      rollout.rs
//!        (idle devices; where CPU runs out first, also refused CPU-only work)      refusals.rs
//!      + a small weight on the capacity left on the node                           cost.rs
//!      + thousandths of devices taken × scarcity of the shape                      scarcity.rs
//!      + Σ over gang classes: slots lost × price of a slot                         gang_slots.rs
//!
//! price of a slot = value of a gang × chance that demand reaches the number of slots left
//! ```
//!
//! One index holds the nodes of all donors. State values, scarcity and slot prices cover all donors together, because
//! work that finds no room at one donor goes to another. A choice covers one donor: the lowest cost wins, then the
//! lowest digest of the state, then the lowest node number (nodes are numbered by name). Everything is an integer, so
//! equal indexes and mixes give equal choices. "Beware of Fragmentation" (Weng et al., USENIX ATC 2023) minimizes
//! present fragmentation; this looks ahead instead.

pub(crate) mod assignments;
pub(crate) mod choice;
pub(crate) mod cost;
pub(crate) mod gang_slots;
pub(crate) mod log;
pub(crate) mod mix;
pub(crate) mod node_state;
pub(crate) mod offers;
pub(crate) mod ranking;
pub(crate) mod refusals;
pub(crate) mod rollout;
pub(crate) mod scarcity;
pub(crate) mod state_index;
pub(crate) mod task;
#[cfg(test)]
mod tests;

pub use choice::Choice;
pub use mix::Mix;
pub use node_state::{NodeState, Shape};
pub use state_index::{StateIndex, TaskId};
pub use task::Task;
