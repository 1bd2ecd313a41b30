//! Step `close-peering`: removes the tunnel and all keys of a peering, and reports it.

use comity_agent_state::record::ReportKey;
use comity_proto::v1::peering_report::{Closed, Outcome};
use comity_types::PeeringId;

use super::forget_peering::drop_epochs;
use crate::reconcile::parts::Parts;
use crate::reconcile::steps::epoch;
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

    async fn run(&self, Parts { store, tunnels, remap_book, .. }: &Parts) -> Result<(), StepError> {
        let Self { peering, epoch } = *self;
        tunnels.take_down(peering);
        let report = epoch::to_message(peering, epoch, Outcome::Closed(Closed {}));
        let update = store.update(move |change| {
            drop_epochs(change, peering, None);
            change.send(ReportKey::Closed(peering), report);
        });
        update.await?;
        Ok(remap_book.forget_strangers().await?)
    }
}
