//! Steps that exchange the keys of the two Liqos once per peering, so that the origin's Liqo may call the donor's API
//! server, and that maintain the network between them.

mod admit;
mod answer;
mod challenge;
mod exchange;
mod identity;
mod mint;
mod network;
mod remove;

use std::time::Duration;

pub use admit::LiqoAdmit;
pub use answer::LiqoAnswer;
pub use challenge::LiqoChallenge;
pub use identity::LiqoIdentity;
pub use mint::LiqoMint;
pub use network::LiqoNetwork;
pub use remove::LiqoRemove;

use super::Step;
use super::error::StepError;
use super::kind::{Kind, kinds};
use crate::reconcile::parts::Parts;

kinds! {
    /// A step of the exchange of the two Liqos of a peering.
    LiqoStep in Step {
        /// Donor: makes a challenge.
        Challenge(LiqoChallenge),
        /// Donor: makes the origin its tenant.
        Admit(LiqoAdmit),
        /// Donor: makes a token for the origin.
        Mint(LiqoMint),
        /// Origin: signs the challenge.
        Answer(LiqoAnswer),
        /// Origin: makes its identity.
        Identity(LiqoIdentity),
        /// Exchanges the state of the network.
        Network(LiqoNetwork),
        /// Ends the exchange.
        Remove(LiqoRemove),
    }
}
