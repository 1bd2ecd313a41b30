//! The terms on which a request may be preempted.

use serde::{Deserialize, Serialize};

use crate::model::limits::MAX_GRACE_MS;
use crate::model::refusal::Refusal;
use crate::model::time::Millis;

/// Terms of preemption. A request without them is reclaimed only for its donor's own reasons.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Preemptible {
    /// Notice that its work needs to save itself. A longer `reclaimGrace` of the donor overrides it.
    pub grace: Millis,
    /// Whether its work reports checkpoints. If so, a preemption loses only the work since the last one.
    pub checkpoint: bool,
    /// Whether a checkpoint fits only the type of GPUs that wrote it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub same_gpu_type: bool,
}

impl Preemptible {
    /// Checks the bound, and that only checkpoints need a type of GPUs.
    ///
    /// # Errors
    /// Refuses with field, value and remedy.
    pub fn check(&self) -> Result<(), Refusal> {
        if self.grace.0 > MAX_GRACE_MS {
            let remedy = format!("use at most {MAX_GRACE_MS}, or leave it out for the donor's own");
            return Err(Refusal::invalid("spec.preemptible.grace_ms", self.grace.0, "is too long a notice", remedy));
        }
        if self.same_gpu_type && !self.checkpoint {
            let problem = "concerns checkpoints, and its work has none";
            let remedy = "set spec.preemptible.checkpoint too, or leave it out";
            return Err(Refusal::invalid("spec.preemptible.same_gpu_type", true, problem, remedy));
        }
        Ok(())
    }
}
