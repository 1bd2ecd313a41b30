//! Step `check-proof`: the donor checks that the origin opened the pre-shared key.

use comity_agent_model::envelope::Envelope;
use comity_agent_state::record::ReportKey;
use comity_proto::v1::peering_report::{Authenticated, Outcome};
use comity_types::PeeringId;
use subtle::ConstantTimeEq;

use super::handshake::proof;
use crate::reconcile::envelope::note_opened;
use crate::reconcile::parts::Parts;
use crate::reconcile::steps::epoch;
use crate::reconcile::steps::error::StepError;
use crate::reconcile::steps::kind::Kind;

/// Donor: checks the proof; without an envelope, reports the check again.
#[derive(Clone, Debug, PartialEq)]
pub struct CheckProof {
    /// The peering.
    pub peering: PeeringId,
    /// Epoch of the keys.
    pub epoch: u32,
    /// The proof, if it has just arrived.
    pub envelope: Option<Envelope>,
}

impl Kind for CheckProof {
    const NAME: &'static str = "check-proof";

    fn object(&self) -> String {
        self.peering.to_string()
    }

    async fn run(&self, Parts { member, store, .. }: &Parts) -> Result<(), StepError> {
        let record = epoch::record(store, self.peering, self.epoch)?;
        if let Some(envelope) = self.envelope.as_ref().filter(|_| !record.proven) {
            let remote = record.remote.as_ref().ok_or(StepError::Gone("the origin's keys"))?;
            let opened = match member.open(envelope, &record, remote) {
                Ok(opened) => opened,
                Err(error) => return epoch::fail_envelope(store, &envelope.key, &error.to_string()).await,
            };
            let wanted = proof(&record).ok_or(StepError::Gone("the pre-shared key"))?;
            if !bool::from(wanted.as_slice().ct_eq(&opened)) {
                let reason = "the origin's proof is of another pre-shared key";
                return epoch::fail_envelope(store, &envelope.key, reason).await;
            }
        }
        let Self { peering, epoch, envelope } = self.clone();
        let update = store.update(move |change| {
            change.change_peering(peering, epoch, |record| record.proven = true);
            if let Some(envelope) = &envelope {
                note_opened(change, &envelope.key);
            }
            let report = epoch::to_message(peering, epoch, Outcome::Authenticated(Authenticated {}));
            change.send(ReportKey::Authenticated(peering, epoch), report);
        });
        Ok(update.await?)
    }
}
