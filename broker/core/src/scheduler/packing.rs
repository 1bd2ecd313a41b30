//! Packing: from which node a task should be served, so that in the end as little as possible is stranded.
//!
//! Nodes of equal shape with the same free amounts are one *state*; a decision is between states, not between nodes. A
//! state is worth what would stay idle on it if the work came that is asked for lately: fixed rollouts of such work are
//! played on it. What a task costs on a state is how much that grows, and prices for what is scarce.
//!
//! ```text
//! cost = idle after rollouts(state after) − idle after rollouts(state before)      rollout.rs
//!        (idle devices, and where CPU runs out before they do, work without
//!        devices that is refused)                                                refusals.rs
//!      + a little for what the node is left with                                 cost.rs
//!      + thousandths of devices taken × scarcity of the shape                    scarcity.rs
//!      + Σ over sorts of gang: slots lost × price of a slot                      slots.rs
//!
//! price of a slot = worth of a gang × chance that as many are asked for as there are slots
//! ```
//!
//! The nodes of all donors are in one index, each donor's at a *donor* of it: what a state is worth, what is scarce and
//! how many slots are left is a matter of all of them, as work that finds no place at one goes to another. A choice is
//! made at one donor: the lowest cost wins; then the lowest digest of the state; then the lowest number of a node, which
//! is in the order of names. All in integers: equal pools and mixes give equal choices. Beside "Beware of
//! Fragmentation" (Weng et al., USENIX ATC 2023), which takes the steepest descent of what is fragmented now, this
//! looks at what will be.

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
