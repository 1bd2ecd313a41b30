//! Step `report-established`: waits for the tunnel's handshake, then reports it.

use std::time::Duration;

use comity_agent_state::record::ReportKey;
use comity_proto::v1;
use comity_proto::v1::agent_message::Body;

use super::{Context, StepError};

/// Less than the step's deadline, so that the error comes from the fabric and names its cause.
const PATIENCE: Duration = Duration::from_secs(25);

pub(super) async fn run(context: &Context, peering: &str, epoch: u32) -> Result<(), StepError> {
    let handle = context.fabric.peer(peering).filter(|handle| handle.epoch() == u64::from(epoch));
    let handshake = handle.ok_or(StepError::Gone("the tunnel"))?.wait_handshake(PATIENCE).await?;
    let rtt_us = handshake.rtt.map_or(0, |rtt| u64::try_from(rtt.as_micros()).unwrap_or(u64::MAX));
    let outcome = v1::peering_report::Outcome::Established(v1::peering_report::Established { rtt_us });
    let report = v1::PeeringReport { peering: peering.to_owned(), epoch, outcome: Some(outcome) };
    let key = ReportKey::Established(peering.to_owned(), epoch);
    Ok(context.store.update(move |change| change.send(key, Body::PeeringReport(report))).await?)
}
