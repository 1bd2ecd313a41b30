//! Steps `admit-lease` and `prepare-lease`: the donor takes a lease on, and makes its namespace or grants its virtual node.

use comity_proto::v1;

use super::{Context, StepError, accept_credential, lease_report, liqo};
use crate::delivery::{DeliveryError, DeliveryKind, DonorLease, Grant};
use crate::record::DonorRecord;

pub(super) async fn admit(
    context: &Context,
    lease: &str,
    fencing_token: u64,
    milli: u64,
    delivery: DeliveryKind,
) -> Result<(), StepError> {
    let admitted_at_ms = context.clock.unix_ms();
    let record = DonorRecord { milli, admitted_at_ms, ..DonorRecord::new(lease, fencing_token, delivery) };
    let update = context.store.update(move |change| {
        // One that was taken down in an outage comes back: its sequences go on, and its time here with them.
        let before = change.records().donors.get(&record.lease).cloned();
        let (last_sequence, admitted_at_ms) =
            before.map_or((0, record.admitted_at_ms), |before| (before.last_sequence, before.admitted_at_ms));
        change.put_donor(DonorRecord { last_sequence, admitted_at_ms, ..record });
    });
    Ok(update.await?)
}

pub(super) async fn run(context: &Context, lease: &v1::Lease, ends_at_ms: u64) -> Result<(), StepError> {
    match prepare(context, lease, ends_at_ms).await {
        Ok((namespace, grant)) => {
            let id = lease.id.clone();
            let note = move |record: &mut DonorRecord| {
                record.namespace = Some(namespace);
                record.grant = grant;
            };
            context.store.update(move |change| change.change_donor(&id, note)).await?;
            Ok(())
        }
        Err(StepError::Delivery(DeliveryError::Permanent { code, message })) => {
            lease_report::fail(context, &lease.id, lease.fencing_token, code, &message).await
        }
        Err(error) => Err(error),
    }
}

/// The namespace on this cluster, and for a virtual node what it is granted: from the moment that this is kept.
async fn prepare(context: &Context, lease: &v1::Lease, ends_at_ms: u64) -> Result<(String, Option<Grant>), StepError> {
    let wanted = donor_lease(lease, ends_at_ms)?;
    match DeliveryKind::of(lease) {
        DeliveryKind::Namespace => Ok((context.donor.prepare(&wanted).await?.namespace, None)),
        DeliveryKind::VirtualNode => {
            let peer = accept_credential::peer(context, &lease.peering)?;
            let grant = liqo::virtual_nodes(context)?.donor.prepare(&peer, &wanted).await?;
            Ok((peer.tenant_namespace(), Some(grant)))
        }
    }
}

pub(super) fn donor_lease(lease: &v1::Lease, ends_at_ms: u64) -> Result<DonorLease, StepError> {
    Ok(DonorLease {
        lease_id: lease.id.clone(),
        tenant: lease.tenant.clone(),
        origin: lease.origin.clone(),
        placement: lease.placement.clone().ok_or(StepError::Gone("the placement"))?,
        gpus: lease.gpus.clone().unwrap_or_default(),
        fencing_token: lease.fencing_token,
        ends_at_ms,
    })
}
