//! One idempotent action each: every step may run twice, or stop at any point. A step's file owns its name, deadline
//! and work.

mod api_address;
mod discard_envelope;
mod epoch;
mod error;
mod kind;
pub mod lease;
pub mod liqo;
pub mod peering;

use std::time::Duration;

pub use discard_envelope::DiscardEnvelope;
pub use error::StepError;

use self::kind::{Kind, kinds};
use self::lease::{LeaseStep, RemoveLease};
use self::liqo::LiqoStep;
use self::peering::{ForgetPeering, PeeringStep};
use crate::reconcile::parts::Parts;

kinds! {
    /// One idempotent action.
    Step {
        /// The tunnel of a peering.
        Peering(PeeringStep),
        /// The two Liqos of a peering.
        Liqo(LiqoStep),
        /// One side of a lease.
        Lease(LeaseStep),
        /// An envelope that nobody needs.
        DiscardEnvelope(DiscardEnvelope),
    }
}

impl Step {
    /// Whether it removes an object that the broker no longer wants.
    #[must_use]
    pub fn removes_unwanted(&self) -> bool {
        matches!(
            self,
            Self::Lease(LeaseStep::RemoveLease(RemoveLease { side: None, .. }))
                | Self::Peering(PeeringStep::ForgetPeering(ForgetPeering { keep: None, .. }))
        )
    }
}
