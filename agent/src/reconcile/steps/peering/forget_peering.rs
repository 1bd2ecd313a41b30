//! Step `forget-peering`: removes the tunnel and the keys of a peering that the broker no longer knows, or old keys.

use comity_agent_state::store::Change;
use comity_types::PeeringId;

use crate::reconcile::parts::Parts;
use crate::reconcile::steps::error::StepError;
use crate::reconcile::steps::kind::Kind;

/// Takes down a peering that the broker no longer knows, or forgets keys of epochs before this one.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ForgetPeering {
    /// The peering.
    pub peering: PeeringId,
    /// Forgets only epochs before this one.
    pub before: Option<u32>,
}

impl Kind for ForgetPeering {
    const NAME: &'static str = "forget-peering";

    fn object(&self) -> String {
        self.peering.to_string()
    }

    async fn run(&self, Parts { store, tunnels, remap_book, .. }: &Parts) -> Result<(), StepError> {
        let Self { peering, before } = *self;
        if before.is_none() {
            tunnels.take_down(peering);
        }
        let update = store.update(move |change| {
            drop_epochs(change, peering, before);
            if before.is_none() {
                change.drop_closed(peering);
            }
        });
        update.await?;
        Ok(remap_book.forget_strangers().await?)
    }
}

/// Drops the records of epochs before one, or of all.
pub(super) fn drop_epochs(change: &mut Change<'_>, peering: PeeringId, before: Option<u32>) {
    let epochs: Vec<u32> = change.records().epochs(peering).map(|record| record.epoch).collect();
    for epoch in epochs.into_iter().filter(|epoch| before.is_none_or(|before| *epoch < before)) {
        change.drop_peering(peering, epoch);
    }
}
