//! Step `liqo-mint`: the donor issues a token for the origin instead of exchanging keys.

use std::time::Duration;

use comity_agent_liqo::IdentityParams;
use comity_agent_liqo::messages::Message as _;
use comity_agent_state::record::MintedToken;
use comity_types::PeeringId;

use super::exchange::{self, Exchange, Sent};
use crate::reconcile::parts::Parts;
use crate::reconcile::steps::error::StepError;
use crate::reconcile::steps::kind::Kind;

/// Donor: makes a token for the origin and seals it; repeated before each token ends. Replaces the key exchange.
#[derive(Clone, Debug, PartialEq)]
pub struct LiqoMint {
    /// The peering.
    pub peering: PeeringId,
    /// Epoch to whose keys it is sealed.
    pub epoch: u32,
}

impl Kind for LiqoMint {
    const NAME: &'static str = "liqo-mint";

    fn object(&self) -> String {
        exchange::object(self.peering)
    }

    fn deadline(&self) -> Duration {
        exchange::DEADLINE
    }

    async fn run(&self, parts: &Parts) -> Result<(), StepError> {
        let mut exchange = Exchange::begin(parts, self.peering, self.epoch)?;
        let rotation_ms = parts.deliveries.node_service.borrow().authentication.rotation_ms;
        let done = mint(&mut exchange, rotation_ms).await;
        exchange.finish(None, done).await
    }
}

/// The token is not stored: a lost one is replaced.
async fn mint(exchange: &mut Exchange<'_>, rotation_ms: u64) -> Result<Option<Sent>, StepError> {
    let record = &mut exchange.record;
    let (donor, peer) = (&exchange.nodes.donor, record.peer());
    let minted = match record.minted {
        None => donor.admit_by_token(&peer, rotation_ms).await?,
        Some(_) => donor.mint_token(&peer, rotation_ms).await?,
    };
    let at_ms = exchange.clock.unix_ms();
    // The API server may give a shorter life than was asked for.
    let life_ms = minted.expires_at_ms.saturating_sub(at_ms);
    record.minted = Some(MintedToken { at_ms, next_ms: at_ms + rotation_ms.min(life_ms / 3 * 2) });
    record.done = true;
    Ok(Some((IdentityParams::STEP, minted.params.encode())))
}
