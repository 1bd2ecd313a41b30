//! Step `open-credential`: the origin opens a credential once and stores it.

use comity_agent_delivery::Credential;
use comity_agent_model::envelope::Envelope;
use comity_agent_state::record::{HeldCredential, OriginRecord, SecretBlob};
use comity_types::{Delivery, LeaseId};

use crate::reconcile::bound_peering::BoundEpoch;
use crate::reconcile::envelope::note_opened;
use crate::reconcile::parts::Parts;
use crate::reconcile::steps::epoch;
use crate::reconcile::steps::error::StepError;
use crate::reconcile::steps::kind::Kind;

/// Origin: opens a credential and keeps it.
#[derive(Clone, Debug, PartialEq)]
pub struct OpenCredential {
    /// The lease.
    pub lease: LeaseId,
    /// Its fencing token.
    pub fencing_token: u64,
    /// Epoch of its peering.
    pub epoch: BoundEpoch,
    /// The sealed credential.
    pub envelope: Envelope,
}

impl Kind for OpenCredential {
    const NAME: &'static str = "open-credential";

    fn object(&self) -> String {
        self.lease.to_string()
    }

    async fn run(&self, Parts { member, store, .. }: &Parts) -> Result<(), StepError> {
        let Self { lease, fencing_token, epoch, envelope } = self.clone();
        let peering = epoch::record(store, epoch.peering(), epoch.epoch())?;
        let remote = epoch::bound_remote(&peering, &epoch)?;
        let opened = match member.open(&envelope, &peering, remote) {
            Ok(opened) => opened,
            Err(error) => return epoch::fail_envelope(store, &envelope.key, &error.to_string()).await,
        };
        let delivery = match Credential::decode(&opened) {
            Ok(Credential::Api(_)) => Delivery::Namespace,
            Ok(Credential::VirtualNode(_)) => Delivery::VirtualNode,
            Err(error) => return epoch::fail_envelope(store, &envelope.key, &error.to_string()).await,
        };
        let held = HeldCredential {
            epoch: envelope.key.epoch,
            sequence: envelope.key.sequence,
            encoded: SecretBlob::new(opened.to_vec()),
        };
        let update = store.update(move |change| {
            let mut record = match change.records().origins.get(&lease) {
                Some(record) => OriginRecord::clone(record),
                None => OriginRecord::new(lease, fencing_token, delivery),
            };
            record.peer = Some(epoch.to_record());
            record.delivery = delivery;
            record.credential = Some(held);
            record.removed = false;
            change.put_origin(record);
            note_opened(change, &envelope.key);
        });
        Ok(update.await?)
    }
}
