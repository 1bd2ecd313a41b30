//! LeaseService: follow, renew, checkpoint and release leases.

use std::ops::Bound;

use comity_core::command::{CheckpointLease, ReleaseLease, RenewLease};
use comity_core::{Command, Millis, Refusal, State};
use comity_policy::Bundle;
use comity_proto::v1;
use comity_proto::v1::lease_service_server::LeaseService;
use comity_types::{ClusterId, LeaseId, LeaseState, TenantId};
use tonic::Request;

use crate::api::authorize::{Rpc, may_change, may_decide};
use crate::api::caller::Caller;
use crate::api::convert::lease;
use crate::api::idempotency;
use crate::api::paging::Page;
use crate::api::rpc::serve;
use crate::api::rpc_error::RpcError;
use crate::api::visible_names::VisibleNames;
use crate::context::Context;
use crate::group::Consistency;

/// Follows, renews and releases leases, and hears that their work is saved.
#[derive(Debug, Clone)]
pub struct LeaseHandlers {
    /// Shared context.
    pub context: Context,
}

serve! { LeaseService for LeaseHandlers {
    get_lease: GetLeaseRequest -> GetLeaseResponse;
    list_leases: ListLeasesRequest -> ListLeasesResponse;
    release_lease: ReleaseLeaseRequest -> ReleaseLeaseResponse;
    renew_lease: RenewLeaseRequest -> RenewLeaseResponse;
    checkpoint_lease: CheckpointLeaseRequest -> CheckpointLeaseResponse;
} }

impl LeaseHandlers {
    async fn get_lease(&self, request: Request<v1::GetLeaseRequest>) -> Result<v1::GetLeaseResponse, RpcError> {
        let caller = self.context.admit(Rpc::GetLease, &request).await?;
        let viewer = self.context.viewer(&caller);
        let message = request.into_inner();
        let id = LeaseId::parse(&message.lease, "lease")?;
        let read = |state: &State| {
            let held = state.leases.get(&id);
            let held = held.filter(|held| viewer.sees_lease(&held.tenant, &held.origin, &held.placement.donor));
            let held = held.ok_or_else(|| Refusal::not_found("lease", id, "lease"))?;
            Ok(v1::GetLeaseResponse { lease: Some(lease::to_proto(id, held)) })
        };
        self.context.read(message.consistency, read).await
    }

    async fn list_leases(&self, request: Request<v1::ListLeasesRequest>) -> Result<v1::ListLeasesResponse, RpcError> {
        let caller = self.context.admit(Rpc::ListLeases, &request).await?;
        let viewer = self.context.viewer(&caller);
        let message = request.into_inner();
        let page = Page::parse(message.page, "leases")?;
        let after = page.after(|key| LeaseId::parse(key, "page.token"))?;
        let tenant =
            Some(&message.tenant).filter(|t| !t.is_empty()).map(|t| TenantId::parse(t, "tenant")).transpose()?;
        let cluster =
            Some(&message.cluster).filter(|c| !c.is_empty()).map(|c| ClusterId::parse(c, "cluster")).transpose()?;
        // Tenants have hundreds of thousands of records, and the caller may see few of them.
        let state = self.context.copy(message.consistency).await?;
        let names = VisibleNames::in_state(&caller, &state);
        tenant.as_ref().map_or(Ok(()), |tenant| names.check_tenant(&state, &viewer, tenant))?;
        cluster.as_ref().map_or(Ok(()), |cluster| names.check_cluster(&state, &viewer, cluster))?;
        let range = (after.map_or(Bound::Unbounded, Bound::Excluded), Bound::Unbounded);
        let wanted = state.leases.range(range).filter(|(_, held)| {
            let donor = &held.placement.donor;
            viewer.sees_lease(&held.tenant, &held.origin, donor)
                && tenant.as_ref().is_none_or(|tenant| *tenant == held.tenant)
                && cluster.as_ref().is_none_or(|cluster| *cluster == held.origin || cluster == donor)
                && (message.include_ended || held.state != LeaseState::Ended)
        });
        let (leases, page) = page.take(wanted.map(|(id, held)| (*id, lease::to_proto(*id, held))), state.revision);
        Ok(v1::ListLeasesResponse { leases, page: Some(page) })
    }

    async fn release_lease(
        &self,
        request: Request<v1::ReleaseLeaseRequest>,
    ) -> Result<v1::ReleaseLeaseResponse, RpcError> {
        let caller = self.context.admit(Rpc::ReleaseLease, &request).await?;
        let mut message = request.into_inner();
        let key = std::mem::take(&mut message.idempotency_key);
        let idempotency = idempotency::of_call(&caller.name(), &key, "ReleaseLease", &message)?;
        let id = LeaseId::parse(&message.lease, "lease")?;
        self.permitted(&caller, id, may_decide).await?;
        let command = Command::ReleaseLease(ReleaseLease { lease: id });
        let lease = self.context.mutate(&caller, command, Some(idempotency), |state, _| shown(state, id)).await?;
        Ok(v1::ReleaseLeaseResponse { lease: Some(lease) })
    }

    async fn renew_lease(&self, request: Request<v1::RenewLeaseRequest>) -> Result<v1::RenewLeaseResponse, RpcError> {
        let caller = self.context.admit(Rpc::RenewLease, &request).await?;
        let mut message = request.into_inner();
        let key = std::mem::take(&mut message.idempotency_key);
        let idempotency = idempotency::of_call(&caller.name(), &key, "RenewLease", &message)?;
        let id = LeaseId::parse(&message.lease, "lease")?;
        self.permitted(&caller, id, may_decide).await?;
        let command = Command::RenewLease(RenewLease {
            lease: id,
            duration: Millis(message.duration_ms),
            may_shorten: message.may_shorten,
        });
        let lease = self.context.mutate(&caller, command, Some(idempotency), |state, _| shown(state, id)).await?;
        Ok(v1::RenewLeaseResponse { lease: Some(lease) })
    }

    async fn checkpoint_lease(
        &self,
        request: Request<v1::CheckpointLeaseRequest>,
    ) -> Result<v1::CheckpointLeaseResponse, RpcError> {
        let caller = self.context.admit(Rpc::CheckpointLease, &request).await?;
        let mut message = request.into_inner();
        let key = std::mem::take(&mut message.idempotency_key);
        let idempotency = idempotency::of_call(&caller.name(), &key, "CheckpointLease", &message)?;
        let id = LeaseId::parse(&message.lease, "lease")?;
        self.permitted(&caller, id, may_change).await?;
        let command = Command::CheckpointLease(CheckpointLease { lease: id });
        let lease = self.context.mutate(&caller, command, Some(idempotency), |state, _| shown(state, id)).await?;
        Ok(v1::CheckpointLeaseResponse { lease: Some(lease) })
    }

    /// Checks that the caller may do this with the lease; an invisible lease counts as missing.
    async fn permitted(&self, caller: &Caller, id: LeaseId, may: MayChange) -> Result<(), RpcError> {
        let found = self
            .context
            .group
            .read(Consistency::Linearizable, |state| {
                let held = state.leases.get(&id)?;
                let owner = state.requests.get(&held.request).map_or_else(String::new, |r| r.spec.submitted_by.clone());
                Some((held.tenant.clone(), held.origin.clone(), held.placement.donor.clone(), owner))
            })
            .await?;
        let viewer = self.context.viewer(caller);
        let (tenant, origin, _, owner) = found
            .filter(|(tenant, origin, donor, _)| viewer.sees_lease(tenant, origin, donor))
            .ok_or_else(|| Refusal::not_found("lease", id, "lease"))?;
        self.context
            .permit(|bundle| may(caller, bundle, &tenant, &origin, &owner).map_err(|refusal| refusal.at("lease", id)))
            .await
    }
}

/// Permits a caller something with a lease of this tenant and origin, whose request this owner submitted.
type MayChange = fn(&Caller, Option<&Bundle>, &TenantId, &ClusterId, &str) -> Result<(), Refusal>;

fn shown(state: &State, id: LeaseId) -> Result<v1::Lease, Refusal> {
    let held = state.leases.get(&id).ok_or_else(|| Refusal::not_found("lease", id, "lease"))?;
    Ok(lease::to_proto(id, held))
}
