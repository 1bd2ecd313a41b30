//! Step `forget-peering`: removes the tunnel and the keys of a peering that the broker no longer knows, or the keys of
//! all epochs but the established one.

use comity_agent_state::store::Change;
use comity_types::PeeringId;

use crate::reconcile::parts::Parts;
use crate::reconcile::steps::error::StepError;
use crate::reconcile::steps::kind::Kind;

/// Takes down a peering that the broker no longer knows, or forgets the keys of other epochs than this one.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ForgetPeering {
    /// The peering.
    pub peering: PeeringId,
    /// The epoch that stays, with the tunnel; `None`: nothing does.
    pub keep: Option<u32>,
}

impl Kind for ForgetPeering {
    const NAME: &'static str = "forget-peering";

    fn object(&self) -> String {
        self.peering.to_string()
    }

    async fn run(&self, Parts { store, tunnels, remap_book, .. }: &Parts) -> Result<(), StepError> {
        let Self { peering, keep } = *self;
        if keep.is_none() {
            tunnels.take_down(peering);
        }
        let update = store.update(move |change| {
            drop_epochs(change, peering, keep);
            if keep.is_none() {
                change.drop_closed(peering);
            }
        });
        update.await?;
        Ok(remap_book.forget_strangers().await?)
    }
}

/// Drops the records of all epochs but one, or of all.
pub(super) fn drop_epochs(change: &mut Change<'_>, peering: PeeringId, keep: Option<u32>) {
    let epochs: Vec<u32> = change.records().epochs(peering).map(|record| record.epoch).collect();
    for epoch in epochs.into_iter().filter(|epoch| Some(*epoch) != keep) {
        change.drop_peering(peering, epoch);
    }
}
