//! Step `close-peering`: removes the tunnel and all keys of a peering, and reports it.

use comity_agent_state::record::ReportKey;
use comity_proto::v1;
use comity_proto::v1::agent_message::Body;
use comity_types::PeeringId;

use super::forget_peering::drop_epochs;
use crate::reconcile::parts::Parts;
use crate::reconcile::steps::error::StepError;
use crate::reconcile::steps::kind::Kind;

/// Takes a peering down and reports it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ClosePeering {
    /// The peering.
    pub peering: PeeringId,
    /// Epoch of the keys.
    pub epoch: u32,
}

impl Kind for ClosePeering {
    const NAME: &'static str = "close-peering";

    fn object(&self) -> String {
        self.peering.to_string()
    }

    async fn run(&self, Parts { store, tunnels, .. }: &Parts) -> Result<(), StepError> {
        let Self { peering, epoch } = *self;
        tunnels.take_down(peering);
        let outcome = v1::peering_report::Outcome::Closed(v1::peering_report::Closed {});
        let report = v1::PeeringReport { peering: peering.to_string(), epoch, outcome: Some(outcome) };
        let update = store.update(move |change| {
            drop_epochs(change, peering, None);
            change.send(ReportKey::Closed(peering), Body::PeeringReport(report));
        });
        Ok(update.await?)
    }
}
