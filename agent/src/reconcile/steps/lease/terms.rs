//! A lease as the deliveries need it, and its credential.

use comity_agent_delivery::{Credential, DonorLease, OriginLease};
use comity_agent_model::lease::Lease;
use comity_agent_state::store::Store;
use comity_types::LeaseId;

use crate::reconcile::live::LiveLease;
use crate::reconcile::steps::error::StepError;

/// A lease for the donor's side.
pub(super) fn donor_lease(lease: &Lease, ends_at_ms: u64) -> Result<DonorLease, StepError> {
    Ok(DonorLease {
        lease_id: lease.id,
        tenant: lease.tenant.clone(),
        origin: lease.origin.to_string(),
        target_namespace: lease.target_namespace.clone(),
        placement: lease.placement.clone().ok_or(StepError::Gone("the placement"))?,
        gpus: lease.gpus.clone().unwrap_or_default(),
        fencing_token: lease.fencing_token,
        ends_at_ms,
    })
}

/// A lease for the origin's side.
pub(super) fn origin_lease(lease: &Lease) -> OriginLease {
    OriginLease {
        lease_id: lease.id,
        tenant: lease.tenant.clone(),
        donor: lease.placement.as_ref().map(|placement| placement.donor.to_string()).unwrap_or_default(),
        target_namespace: lease.target_namespace.clone(),
        expires_at_ms: lease.expires_at_ms,
    }
}

/// The newest credential that the origin holds for a lease.
pub(super) fn held_credential(store: &Store, lease: LeaseId) -> Result<(Credential, LiveLease), StepError> {
    let records = store.records();
    let held = records.origins.get(&lease).and_then(|record| record.credential.as_ref());
    let held = held.ok_or(StepError::Gone("the credential"))?;
    let live = LiveLease { epoch: held.epoch, sequence: held.sequence, tunnel_epoch: 0 };
    Ok((Credential::decode_stored(held.encoded.expose())?, live))
}
