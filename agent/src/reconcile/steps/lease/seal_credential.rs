//! Steps `seal-credential` and `renew-credential`: issue a credential and seal it for the origin.

use comity_agent_delivery::{Credential, VirtualNodeGrant};
use comity_agent_model::lease::Lease;
use comity_agent_state::record::{ReportKey, SealedCredential};
use comity_agent_state::store::Store;
use comity_proto::v1;
use comity_proto::v1::agent_message::Body;
use comity_types::Delivery;

use super::report;
use super::terms::donor_lease;
use crate::reconcile::bound_peering::BoundEpoch;
use crate::reconcile::envelope::CREDENTIAL;
use crate::reconcile::parts::{Deliveries, Parts, Subject};
use crate::reconcile::steps::epoch;
use crate::reconcile::steps::error::StepError;
use crate::reconcile::steps::kind::Kind;

/// Name of a renewal.
const RENEWAL: &str = "renew-credential";

/// Donor: issues a credential and seals it: the first of an epoch, or a renewal.
#[derive(Clone, Debug, PartialEq)]
pub struct SealCredential {
    /// The lease.
    pub lease: Box<Lease>,
    /// When it ends at the latest, in milliseconds since 1970.
    pub ends_at_ms: u64,
    /// Epoch of its peering to whose key it is sealed.
    pub epoch: BoundEpoch,
    /// Whether the origin has an earlier one of this epoch.
    pub renewal: bool,
}

impl Kind for SealCredential {
    const NAME: &'static str = "seal-credential";

    fn names() -> Vec<&'static str> {
        vec![Self::NAME, RENEWAL]
    }

    fn name(&self) -> &'static str {
        if self.renewal { RENEWAL } else { Self::NAME }
    }

    fn object(&self) -> String {
        self.lease.id.to_string()
    }

    fn traceparent(&self) -> &str {
        &self.lease.traceparent
    }

    async fn run(&self, Parts { member, store, deliveries, clock, .. }: &Parts) -> Result<(), StepError> {
        let Self { lease, ends_at_ms, epoch, .. } = self;
        let issued_at_ms = clock.unix_ms();
        let issued = self.issue(store, deliveries).await;
        let Some(credential) = report::or_fail(store, lease, issued).await? else { return Ok(()) };
        let peering = epoch::record(store, epoch.peering(), epoch.epoch())?;
        let remote = epoch::bound_remote(&peering, epoch)?;
        let records = store.records();
        let record = records.donors.get(&lease.id).ok_or(StepError::Gone("the lease's record"))?;
        let sequence = record.last_sequence + 1;
        let subject = Subject { keys: &peering, remote, lease: Some(lease.id), step: CREDENTIAL, sequence };
        let envelope = match member.seal(subject, &credential.encode()) {
            Ok(envelope) => v1::Envelope { expires_at_ms: credential.expires_at_ms(), ..envelope },
            Err(error) => {
                let token = lease.fencing_token;
                return report::fail(store, lease.id, token, "credential-too-large", &error.to_string()).await;
            }
        };
        let sealed = SealedCredential {
            epoch: epoch.epoch(),
            sequence,
            issued_at_ms,
            expires_at_ms: credential.expires_at_ms(),
            lease_end_ms: *ends_at_ms,
        };
        let (id, token, peer) = (lease.id, lease.fencing_token, epoch.to_record());
        let update = store.update(move |change| {
            let mut namespace = None;
            change.change_donor(id, |record| {
                record.last_sequence = sequence;
                record.peer = Some(peer);
                record.sealed = Some(sealed);
                namespace.clone_from(&record.namespace);
            });
            change.send(ReportKey::Credential(id), Body::Envelope(envelope));
            if let Some(namespace) = namespace {
                report::send_ready(change, id, token, namespace, String::new());
            }
        });
        Ok(update.await?)
    }
}

impl SealCredential {
    /// Issues a credential; that of a virtual node names the granted resources.
    async fn issue(&self, store: &Store, deliveries: &Deliveries) -> Result<Credential, StepError> {
        let Self { lease, ends_at_ms, .. } = self;
        let records = store.records();
        let record = records.donors.get(&lease.id).ok_or(StepError::Gone("the lease's record"))?;
        if record.delivery == Delivery::Namespace {
            return Ok(Credential::Api(deliveries.donor.credential(&donor_lease(lease, *ends_at_ms)?).await?));
        }
        let grant = record.grant.as_ref().ok_or(StepError::Gone("the grant"))?;
        deliveries.virtual_nodes()?.donor.in_force(&record.slice(), grant).await?;
        Ok(Credential::VirtualNode(VirtualNodeGrant {
            slice: record.slice(),
            tenant_namespace: record.namespace.clone().ok_or(StepError::Gone("the tenant's namespace"))?,
            resources: grant.resources.clone(),
            expires_at_ms: *ends_at_ms,
        }))
    }
}
