//! What a request says about its own preemption.

use serde::{Deserialize, Serialize};

use crate::model::limits::MAX_GRACE_MS;
use crate::model::refusal::Refusal;
use crate::model::time::Millis;

/// That a request may be preempted, and how. One that does not say is being reclaimed only for what concerns its donor.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Preemptible {
    /// Notice that its work needs to save itself; the donor's `reclaimGrace`, if that is longer.
    pub grace: Millis,
    /// Whether its work says when it has saved itself. If it does, only what came later is lost.
    pub checkpoint: bool,
}

impl Preemptible {
    /// Checks the bound.
    ///
    /// # Errors
    /// Names the field, its value and what would do.
    pub fn check(&self) -> Result<(), Refusal> {
        if self.grace.0 > MAX_GRACE_MS {
            let remedy = format!("use at most {MAX_GRACE_MS}, or leave it out for the donor's own");
            return Err(Refusal::invalid("spec.preemptible.grace_ms", self.grace.0, "is too long a notice", remedy));
        }
        Ok(())
    }
}
