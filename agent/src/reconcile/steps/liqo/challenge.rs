//! Step `liqo-challenge`: the donor makes a challenge for the origin to sign.

use std::time::Duration;

use comity_agent_liqo::Challenge;
use comity_agent_liqo::messages::Message as _;
use comity_agent_state::record::SecretBlob;
use comity_types::PeeringId;

use super::exchange::{self, Exchange, Sent};
use crate::reconcile::parts::Parts;
use crate::reconcile::steps::error::StepError;
use crate::reconcile::steps::kind::Kind;

/// Donor: makes Liqo's challenge and seals it.
#[derive(Clone, Debug, PartialEq)]
pub struct LiqoChallenge {
    /// The peering.
    pub peering: PeeringId,
    /// Epoch to whose keys it is sealed.
    pub epoch: u32,
}

impl Kind for LiqoChallenge {
    const NAME: &'static str = "liqo-challenge";

    fn object(&self) -> String {
        exchange::object(self.peering)
    }

    fn deadline(&self) -> Duration {
        exchange::DEADLINE
    }

    async fn run(&self, parts: &Parts) -> Result<(), StepError> {
        let mut exchange = Exchange::begin(parts, self.peering, self.epoch)?;
        let done = challenge(&mut exchange).await;
        exchange.finish(None, done).await
    }
}

async fn challenge(exchange: &mut Exchange<'_>) -> Result<Option<Sent>, StepError> {
    let challenge = exchange.nodes.donor.challenge(&exchange.record.peer()).await?.encode();
    exchange.record.challenge = Some(SecretBlob::new(challenge.clone()));
    Ok(Some((Challenge::STEP, challenge)))
}
