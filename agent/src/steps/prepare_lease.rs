//! Steps `admit-lease` and `prepare-lease`: the donor takes a lease on, and makes its namespace.

use comity_proto::v1;

use super::{Context, StepError, lease_report};
use crate::delivery::{DeliveryError, DonorLease};
use crate::record::DonorRecord;

pub(super) async fn admit(context: &Context, lease: &str, fencing_token: u64, milli: u64) -> Result<(), StepError> {
    let record = DonorRecord {
        lease: lease.to_owned(),
        fencing_token,
        milli,
        admitted_at_ms: context.clock.unix_ms(),
        namespace: None,
        last_sequence: 0,
        sealed: None,
        removed: false,
        clean_acked: false,
    };
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
    let wanted = donor_lease(lease, ends_at_ms)?;
    match context.donor.prepare(&wanted).await {
        Ok(prepared) => {
            let id = lease.id.clone();
            let note = move |record: &mut DonorRecord| record.namespace = Some(prepared.namespace);
            context.store.update(move |change| change.change_donor(&id, note)).await?;
            Ok(())
        }
        Err(DeliveryError::Permanent { code, message }) => {
            lease_report::fail(context, &lease.id, lease.fencing_token, code, &message).await
        }
        Err(error) => Err(error.into()),
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
