//! Step `open-psk`: the origin opens the pre-shared key, and proves that it did.

use comity_agent_model::envelope::Envelope;
use comity_agent_state::record::{ReportKey, SecretKey};
use comity_proto::v1;
use comity_proto::v1::agent_message::Body;

use super::handshake::seal_proof;
use crate::keys::bundle::{self, Expected};
use crate::keys::continuity;
use crate::reconcile::envelope::note_opened;
use crate::reconcile::parts::Parts;
use crate::reconcile::steps::epoch;
use crate::reconcile::steps::error::StepError;
use crate::reconcile::steps::kind::Kind;

/// Origin: verifies the donor's keys, opens the pre-shared key and seals the proof.
#[derive(Clone, Debug, PartialEq)]
pub struct OpenPsk {
    /// The expected sender of the bundle.
    pub expected: Expected,
    /// The donor's keys.
    pub bundle: Box<v1::KeyBundle>,
    /// The sealed pre-shared key.
    pub envelope: Envelope,
}

impl Kind for OpenPsk {
    const NAME: &'static str = "open-psk";

    fn object(&self) -> String {
        self.expected.peering.to_string()
    }

    async fn run(&self, Parts { member, store, clock, .. }: &Parts) -> Result<(), StepError> {
        let (peering, epoch, envelope) = (self.expected.peering, self.expected.epoch, &self.envelope);
        let remote = match bundle::verify(&self.bundle, &self.expected, &member.pins) {
            Ok(remote) => remote,
            Err(error) => return epoch::fail(store, peering, epoch, "bad-keys", &error.to_string()).await,
        };
        let mut record = epoch::record(store, peering, epoch)?;
        let opened = match member.open(envelope, &record, &remote) {
            Ok(opened) => opened,
            Err(error) => return epoch::fail_envelope(store, &envelope.key, &error.to_string()).await,
        };
        let halves =
            opened.split_first_chunk::<32>().and_then(|(preshared, nonce)| Some((preshared, nonce.try_into().ok()?)));
        let Some((preshared, nonce)) = halves else {
            return epoch::fail_envelope(store, &envelope.key, "the psk envelope does not hold a key and a nonce")
                .await;
        };
        record.preshared = Some(SecretKey::new(*preshared));
        record.nonce = Some(SecretKey::new(nonce));
        record.remote = Some(remote.clone());
        let proof = seal_proof(member, &mut record)?;
        let (key, envelope) = (ReportKey::Proof(peering, epoch), envelope.key.clone());
        let (claimed, now_ms) = (self.expected.institution.clone(), clock.unix_ms());
        let update = store.update(move |change| {
            let noted = continuity::note(change, &remote, &claimed, now_ms);
            if noted.is_ok() {
                change.put_peering(record);
                note_opened(change, &envelope);
                change.send(key, Body::Envelope(proof));
            }
            noted
        });
        match update.await? {
            Ok(()) => Ok(()),
            Err(error) => epoch::fail_continuity(store, peering, epoch, &error).await,
        }
    }
}
