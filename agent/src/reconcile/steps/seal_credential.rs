//! Steps `seal-credential` and `renew-credential`: issue a credential and seal it for the origin.

use comity_agent_delivery::{Credential, VirtualNodeGrant};
use comity_agent_model::delivery_error::DeliveryError;
use comity_agent_model::delivery_kind::DeliveryKind;
use comity_agent_state::record::{ReportKey, SealedCredential};
use comity_proto::v1;
use comity_proto::v1::agent_message::Body;

use super::{Context, StepError, authenticate, lease_report, liqo, prepare_lease};
use crate::keys::seal::{self, Binding};

pub(super) async fn run(context: &Context, lease: &v1::Lease, ends_at_ms: u64, epoch: u32) -> Result<(), StepError> {
    let issued_at_ms = context.clock.unix_ms();
    let credential = match credential(context, lease, ends_at_ms).await {
        Ok(credential) => credential,
        Err(StepError::Delivery(DeliveryError::Permanent { code, message })) => {
            return lease_report::fail(context, &lease.id, lease.fencing_token, code, &message).await;
        }
        Err(error) => return Err(error),
    };
    let peering = authenticate::record(context, &lease.peering, epoch)?;
    let remote = peering.remote.as_ref().ok_or(StepError::Gone("the origin's keys"))?;
    let records = context.store.records();
    let record = records.donors.get(&lease.id).ok_or(StepError::Gone("the lease's record"))?;
    let sequence = record.last_sequence + 1;
    let binding = Binding {
        federation: context.federation.clone(),
        peering: lease.peering.clone(),
        epoch,
        lease: lease.id.clone(),
        step: "credential".to_owned(),
        sequence,
        from: context.cluster.clone(),
        to: remote.cluster.clone(),
    };
    let sealed =
        seal::seal(&binding, &credential.encode(), &remote.hpke_public, &context.identity, context.entropy.as_ref());
    let envelope = match sealed {
        Ok(envelope) => v1::Envelope { expires_at_ms: credential.expires_at_ms(), ..envelope },
        Err(error) => {
            return lease_report::fail(
                context,
                &lease.id,
                lease.fencing_token,
                "credential-too-large",
                &error.to_string(),
            )
            .await;
        }
    };
    let sealed = SealedCredential {
        epoch,
        sequence,
        issued_at_ms,
        expires_at_ms: credential.expires_at_ms(),
        lease_end_ms: ends_at_ms,
    };
    let (id, token) = (lease.id.clone(), lease.fencing_token);
    let update = context.store.update(move |change| {
        let mut namespace = None;
        change.change_donor(&id, |record| {
            record.last_sequence = sequence;
            record.sealed = Some(sealed);
            namespace.clone_from(&record.namespace);
        });
        change.send(ReportKey::Credential(id.clone()), Body::Envelope(envelope));
        if let Some(namespace) = namespace {
            lease_report::send_ready(change, &id, token, namespace, String::new());
        }
    });
    Ok(update.await?)
}

/// Issues a credential; that of a virtual node names the granted resources.
async fn credential(context: &Context, lease: &v1::Lease, ends_at_ms: u64) -> Result<Credential, StepError> {
    let records = context.store.records();
    let record = records.donors.get(&lease.id).ok_or(StepError::Gone("the lease's record"))?;
    if record.delivery == DeliveryKind::Namespace {
        let credential = context.donor.credential(&prepare_lease::donor_lease(lease, ends_at_ms)?).await?;
        return Ok(Credential::Api(credential));
    }
    let grant = record.grant.as_ref().ok_or(StepError::Gone("the grant"))?;
    liqo::virtual_nodes(context)?.donor.in_force(record.slice(), grant).await?;
    Ok(Credential::VirtualNode(VirtualNodeGrant {
        slice: record.slice().to_owned(),
        tenant_namespace: record.namespace.clone().ok_or(StepError::Gone("the tenant's namespace"))?,
        resources: grant.resources.clone(),
        expires_at_ms: ends_at_ms,
    }))
}
