//! Step `open-credential`: the origin opens a credential once and stores it.

use comity_agent_delivery::Credential;
use comity_agent_model::delivery_kind::DeliveryKind;
use comity_agent_state::record::{HeldCredential, OriginRecord, SecretBlob};
use comity_proto::v1;

use super::{Context, StepError, authenticate, note_opened, peering_report};
use crate::keys::seal;

pub(super) async fn run(
    context: &Context,
    lease: &str,
    fencing_token: u64,
    envelope: &v1::Envelope,
) -> Result<(), StepError> {
    let peering = authenticate::record(context, &envelope.peering, envelope.epoch)?;
    let remote = peering.remote.as_ref().ok_or(StepError::Gone("the donor's keys"))?;
    let opened = match seal::open(&context.federation, envelope, &peering.hpke_secret, &remote.identity_key) {
        Ok(opened) => opened,
        Err(error) => return peering_report::fail_envelope(context, envelope, &error.to_string()).await,
    };
    let delivery = match Credential::decode(&opened) {
        Ok(Credential::Api(_)) => DeliveryKind::Namespace,
        Ok(Credential::VirtualNode(_)) => DeliveryKind::VirtualNode,
        Err(error) => return peering_report::fail_envelope(context, envelope, &error.to_string()).await,
    };
    let held = HeldCredential {
        epoch: envelope.epoch,
        sequence: envelope.sequence,
        encoded: SecretBlob::new(opened.to_vec()),
    };
    let (lease, envelope) = (lease.to_owned(), envelope.clone());
    let update = context.store.update(move |change| {
        let mut record = match change.records().origins.get(&lease) {
            Some(record) => OriginRecord::clone(record),
            None => OriginRecord::new(&lease, fencing_token, delivery),
        };
        record.delivery = delivery;
        record.credential = Some(held);
        record.removed = false;
        change.put_origin(record);
        note_opened(change, &envelope);
    });
    Ok(update.await?)
}
