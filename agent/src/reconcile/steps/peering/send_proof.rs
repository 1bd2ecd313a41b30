//! Step `send-proof`: the origin seals its proof again.

use comity_agent_state::record::ReportKey;
use comity_proto::v1::agent_message::Body;
use comity_types::PeeringId;

use super::handshake::seal_proof;
use crate::reconcile::parts::Parts;
use crate::reconcile::steps::epoch;
use crate::reconcile::steps::error::StepError;
use crate::reconcile::steps::kind::Kind;

/// Origin: seals the proof again after the broker refused the first.
#[derive(Clone, Debug, PartialEq)]
pub struct SendProof {
    /// The peering.
    pub peering: PeeringId,
    /// Epoch of the keys.
    pub epoch: u32,
}

impl Kind for SendProof {
    const NAME: &'static str = "send-proof";

    fn object(&self) -> String {
        self.peering.to_string()
    }

    async fn run(&self, Parts { member, store, .. }: &Parts) -> Result<(), StepError> {
        let mut record = epoch::record(store, self.peering, self.epoch)?;
        let proof = seal_proof(member, &mut record)?;
        let key = ReportKey::Proof(self.peering, self.epoch);
        let update = store.update(move |change| {
            change.put_peering(record);
            change.send(key, Body::Envelope(proof));
        });
        Ok(update.await?)
    }
}
