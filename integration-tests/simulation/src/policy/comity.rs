//! Comity itself: the broker's state machine and scheduler, with one donor that has the trace's nodes.
//!
//! A GPU task becomes a request, which the log's commands submit, plan and place. A task without GPUs runs as the
//! donor's local work, on the node that the planner advises, and the donor revises its offer.

use comity_core::packing::Task;
use comity_core::{Refusal, State};

use super::Policy;
use crate::broker::{Broker, DONOR, ORIGIN};
use crate::trace::Trace;

/// The broker's core on the nodes of a trace.
#[derive(Debug)]
pub struct Comity {
    broker: Broker,
    idle: State,
    refused: Option<String>,
}

impl Comity {
    /// Starts with idle nodes; expects work like `history`.
    ///
    /// # Errors
    /// When the core refuses the trace's nodes as an offer.
    pub fn new(trace: &Trace, history: &[Task]) -> Result<Self, Refusal> {
        let broker = Broker::with_one_donor(trace, history)?;
        Ok(Self { idle: broker.state.clone(), broker, refused: None })
    }

    fn request(&mut self, task: &Task) -> Result<bool, Refusal> {
        let request = self.broker.submit(ORIGIN, task)?;
        let placements = self.broker.plan(1).placements;
        if placements.is_empty() {
            self.broker.cancel(request)?;
            return Ok(false);
        }
        Ok(!self.broker.place(placements)?.is_empty())
    }

    /// Runs a task without GPUs as the donor's local work.
    fn run_locally(&mut self, task: &Task) -> Result<bool, Refusal> {
        let Some(id) = self.broker.advise(DONOR, task) else { return Ok(false) };
        self.broker.run_locally(DONOR, &id, |node| {
            node.local_cpu_milli += task.cpu_milli;
            node.local_memory_mib += task.memory_mib;
        })?;
        Ok(true)
    }
}

impl Policy for Comity {
    fn restart(&mut self, _seed: u64) {
        self.broker.restart(&self.idle);
    }

    fn place(&mut self, task: &Task) -> bool {
        let placed = if task.devices == 0 { self.run_locally(task) } else { self.request(task) };
        placed.unwrap_or_else(|refusal| {
            self.refused.get_or_insert_with(|| refusal.to_string());
            false
        })
    }

    fn fault(&self) -> Option<&str> {
        self.refused.as_deref()
    }
}
