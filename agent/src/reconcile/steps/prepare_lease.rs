//! Steps `admit-lease` and `prepare-lease`: the donor admits a lease, then makes its namespace or grants its virtual
//! node.

use comity_agent_delivery::{DonorLease, LentNode};
use comity_agent_model::delivery_error::DeliveryError;
use comity_agent_model::delivery_kind::DeliveryKind;
use comity_agent_state::record::{DonorRecord, Records};
use comity_agent_state::store::Change;
use comity_proto::v1;

use super::{Context, StepError, accept_credential, lease_report, liqo};

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
        // A lease taken down in an outage may return: its sequence and admission time continue.
        let before = change.records().donors.get(&record.lease).cloned();
        let (last_sequence, admitted_at_ms) =
            before.map_or((0, record.admitted_at_ms), |before| (before.last_sequence, before.admitted_at_ms));
        change.put_donor(DonorRecord { last_sequence, admitted_at_ms, ..record });
    });
    Ok(update.await?)
}

pub(super) async fn run(context: &Context, lease: &v1::Lease, ends_at_ms: u64) -> Result<(), StepError> {
    match prepare(context, lease, ends_at_ms).await {
        Ok((namespace, lent)) => {
            let id = lease.id.clone();
            let note = move |change: &mut Change<'_>| {
                // Chosen in the transaction: leases are prepared concurrently, and no two may share a slice.
                let slice = lent.as_ref().map(|lent| choose_slice(change.records(), &id, &lent.idle));
                change.change_donor(&id, |record| {
                    record.namespace = Some(namespace);
                    record.grant = lent.map(|lent| lent.grant);
                    record.slice = slice;
                });
            };
            Ok(context.store.update(note).await?)
        }
        Err(StepError::Delivery(DeliveryError::Permanent { code, message })) => {
            lease_report::fail(context, &lease.id, lease.fencing_token, code, &message).await
        }
        Err(error) => Err(error),
    }
}

/// The namespace on this cluster, and a virtual node's grant, which takes effect when it is stored.
async fn prepare(
    context: &Context,
    lease: &v1::Lease,
    ends_at_ms: u64,
) -> Result<(String, Option<LentNode>), StepError> {
    let wanted = donor_lease(lease, ends_at_ms)?;
    match DeliveryKind::of(lease) {
        DeliveryKind::Namespace => Ok((context.donor.prepare(&wanted).await?.namespace, None)),
        DeliveryKind::VirtualNode => {
            let peer = accept_credential::peer(context, &lease.peering)?;
            let lent = liqo::virtual_nodes(context)?.donor.prepare(&peer, &wanted).await?;
            Ok((peer.tenant_namespace(), Some(lent)))
        }
    }
}

/// The ResourceSlice for a lease: an idle one that no other lease uses, else one of its own.
fn choose_slice(records: &Records, lease: &str, idle: &[String]) -> String {
    let in_use = |slice: &str| {
        records.donors.values().any(|record| record.lease != lease && !record.removed && record.slice() == slice)
    };
    if let Some(before) = records.donors.get(lease).and_then(|record| record.slice.clone()) {
        return before;
    }
    idle.iter().find(|slice| !in_use(slice)).cloned().unwrap_or_else(|| lease.to_owned())
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

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    #[test]
    fn no_two_leases_have_one_slice() {
        let record = |lease: &str, slice: Option<&str>, removed| {
            let record = DonorRecord::new(lease, 1, DeliveryKind::VirtualNode);
            (lease.to_owned(), Arc::new(DonorRecord { slice: slice.map(str::to_owned), removed, ..record }))
        };
        let donors = [
            record("lease-1", None, true),
            record("lease-2", None, false),
            record("lease-3", Some("lease-1"), false),
            record("lease-4", None, false),
        ];
        let records = Records { donors: donors.into(), ..Records::default() };
        let idle = ["lease-1", "lease-2", "lease-0"].map(str::to_owned);
        assert_eq!(choose_slice(&records, "lease-4", &idle), "lease-0", "the others are in use");
        assert_eq!(choose_slice(&records, "lease-4", &idle[..2]), "lease-4");
        assert_eq!(choose_slice(&records, "lease-3", &idle), "lease-1", "what was chosen before stays");
    }
}
