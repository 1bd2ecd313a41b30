//! Step `report-established`: waits for the tunnel's handshake, then reports it.

use std::time::Duration;

use comity_agent_state::record::ReportKey;
use comity_proto::v1::peering_report::{Established, Outcome};
use comity_types::PeeringId;

use crate::reconcile::parts::Parts;
use crate::reconcile::steps::epoch;
use crate::reconcile::steps::error::StepError;
use crate::reconcile::steps::kind::Kind;

/// Less than the step's deadline, so that the error comes from the fabric and names its cause.
const PATIENCE: Duration = Duration::from_secs(25);

/// Waits for the tunnel's handshake and reports it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ReportEstablished {
    /// The peering.
    pub peering: PeeringId,
    /// Epoch of the keys.
    pub epoch: u32,
}

impl Kind for ReportEstablished {
    const NAME: &'static str = "report-established";

    /// Beside the peering's other steps: it may wait long for an epoch that never comes up, and the next one must not.
    fn object(&self) -> String {
        format!("{}/tunnel/{}", self.peering, self.epoch)
    }

    async fn run(&self, Parts { store, tunnels, .. }: &Parts) -> Result<(), StepError> {
        let Self { peering, epoch } = *self;
        let handle = tunnels.peer(peering).filter(|handle| handle.epoch() == u64::from(epoch));
        let handshake = handle.ok_or(StepError::Gone("the tunnel"))?.wait_handshake(PATIENCE).await?;
        let rtt_us = handshake.rtt.map_or(0, |rtt| u64::try_from(rtt.as_micros()).unwrap_or(u64::MAX));
        let report = epoch::to_message(peering, epoch, Outcome::Established(Established { rtt_us }));
        let key = ReportKey::Established(peering, epoch);
        Ok(store.update(move |change| change.send(key, report)).await?)
    }
}
