//! Steps of a peering: the handshake, its tunnel and its end.

mod check_proof;
mod close_peering;
mod configure_fabric;
mod fail_peering;
mod forget_peering;
mod handshake;
mod make_keys;
mod open_psk;
mod report_established;
mod send_proof;
mod send_psk;

use std::time::Duration;

pub use check_proof::CheckProof;
pub use close_peering::ClosePeering;
pub use configure_fabric::ConfigureFabric;
pub use fail_peering::FailPeering;
pub use forget_peering::ForgetPeering;
pub use make_keys::MakeKeys;
pub use open_psk::OpenPsk;
pub use report_established::ReportEstablished;
pub use send_proof::SendProof;
pub use send_psk::SendPsk;

use super::Step;
use super::error::StepError;
use super::kind::{Kind, kinds};
use crate::reconcile::parts::Parts;

kinds! {
    /// A step of a peering.
    PeeringStep in Step {
        /// Makes keys.
        MakeKeys(MakeKeys),
        /// Donor: sends the pre-shared key.
        SendPsk(SendPsk),
        /// Origin: opens it.
        OpenPsk(OpenPsk),
        /// Origin: proves that.
        SendProof(SendProof),
        /// Donor: checks the proof.
        CheckProof(CheckProof),
        /// Sets up the tunnel.
        ConfigureFabric(ConfigureFabric),
        /// Reports the tunnel's handshake.
        ReportEstablished(ReportEstablished),
        /// Reports that the epoch failed.
        FailPeering(FailPeering),
        /// Takes the peering down.
        ClosePeering(ClosePeering),
        /// Forgets the peering, or old keys.
        ForgetPeering(ForgetPeering),
    }
}
