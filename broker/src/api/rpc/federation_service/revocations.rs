//! Evicts clusters, revokes users, suspends and resumes institutions.

use comity_core::command::{EvictCluster, ResumeInstitution, RevokeUser, SuspendInstitution};
use comity_core::revocation::{RevocationEffects, UserRevocationEffects};
use comity_core::{Actor, Command, Idempotency, Refusal, ReplyBody, State};
use comity_proto::v1;
use comity_types::{ClusterId, InstitutionId, LeaseTreatment};
use tonic::Request;

use super::FederationHandlers;
use crate::api::authorize::Rpc;
use crate::api::caller::Caller;
use crate::api::rpc_error::RpcError;
use crate::api::{idempotency, invitation};
use crate::group::Consistency;

impl FederationHandlers {
    pub(super) async fn evict_cluster(
        &self,
        request: Request<v1::EvictClusterRequest>,
    ) -> Result<v1::EvictClusterResponse, RpcError> {
        let caller = self.context.admit(Rpc::EvictCluster, &request).await?;
        let mut message = request.into_inner();
        let key = std::mem::take(&mut message.idempotency_key);
        let idempotency = idempotency::of_call(&caller.name(), &key, "EvictCluster", &message)?;
        let cluster = ClusterId::parse(&message.cluster, "cluster")?;
        let command = EvictCluster { cluster, leases: treatment(message.leases, LeaseTreatment::Stop)? };
        let effects = if message.dry_run {
            self.preview(&caller, |state, actor| command.effects(state, actor)).await?
        } else {
            evicted_or_suspended(self.revoke(&caller, Command::EvictCluster(command), idempotency).await?)
        };
        Ok(v1::EvictClusterResponse { effects: Some(effects_to_proto(effects)) })
    }

    pub(super) async fn revoke_user(
        &self,
        request: Request<v1::RevokeUserRequest>,
    ) -> Result<v1::RevokeUserResponse, RpcError> {
        let caller = self.context.admit(Rpc::RevokeUser, &request).await?;
        let mut message = request.into_inner();
        let key = std::mem::take(&mut message.idempotency_key);
        let idempotency = idempotency::of_call(&caller.name(), &key, "RevokeUser", &message)?;
        let user = invitation::parse_user_or_id(&message.user, self.context.ca.trust_domain())?;
        // A user's leases are the tenant's, so they stay unless the caller says otherwise.
        let leases = treatment(message.leases, LeaseTreatment::Finish)?;
        let command = RevokeUser { user: user.into(), allow_unknown: message.allow_unknown, leases };
        let effects = if message.dry_run {
            self.preview(&caller, |state, actor| command.effects(state, actor)).await?
        } else {
            match self.revoke(&caller, Command::RevokeUser(command), idempotency).await? {
                ReplyBody::UserRevoked(effects) => effects,
                _ => UserRevocationEffects::default(),
            }
        };
        Ok(v1::RevokeUserResponse {
            invitations: capped(effects.invitations),
            tenant_leases: capped(effects.leases),
            effects: Some(effects_to_proto(effects.own.unwrap_or_default())),
            none_may_invite: effects.none_may_invite,
        })
    }

    pub(super) async fn suspend_institution(
        &self,
        request: Request<v1::SuspendInstitutionRequest>,
    ) -> Result<v1::SuspendInstitutionResponse, RpcError> {
        let caller = self.context.admit(Rpc::SuspendInstitution, &request).await?;
        let mut message = request.into_inner();
        let key = std::mem::take(&mut message.idempotency_key);
        let idempotency = idempotency::of_call(&caller.name(), &key, "SuspendInstitution", &message)?;
        let institution = InstitutionId::parse(&message.institution, "institution")?;
        let command = SuspendInstitution { institution, leases: treatment(message.leases, LeaseTreatment::Stop)? };
        let effects = if message.dry_run {
            self.preview(&caller, |state, actor| command.effects(state, actor)).await?
        } else {
            evicted_or_suspended(self.revoke(&caller, Command::SuspendInstitution(command), idempotency).await?)
        };
        Ok(v1::SuspendInstitutionResponse { effects: Some(effects_to_proto(effects)) })
    }

    pub(super) async fn resume_institution(
        &self,
        request: Request<v1::ResumeInstitutionRequest>,
    ) -> Result<v1::ResumeInstitutionResponse, RpcError> {
        let caller = self.context.admit(Rpc::ResumeInstitution, &request).await?;
        let mut message = request.into_inner();
        let key = std::mem::take(&mut message.idempotency_key);
        let idempotency = idempotency::of_call(&caller.name(), &key, "ResumeInstitution", &message)?;
        let institution = InstitutionId::parse(&message.institution, "institution")?;
        let command = Command::ResumeInstitution(ResumeInstitution { institution });
        self.revoke(&caller, command, idempotency).await?;
        Ok(v1::ResumeInstitutionResponse {})
    }

    /// What a command would end; changes nothing.
    async fn preview<E>(
        &self,
        caller: &Caller,
        effects: impl FnOnce(&State, &Actor) -> Result<E, Refusal>,
    ) -> Result<E, RpcError> {
        let actor = caller.actor();
        let read = |state: &State| effects(state, &actor);
        let suggested = |refusal: Refusal| self.context.with_suggestion(caller, refusal.into());
        self.context.group.read(Consistency::Linearizable, read).await?.map_err(suggested)
    }

    /// Commits a revocation. Streams and watches notice it on each broker as it is applied there.
    async fn revoke(&self, caller: &Caller, command: Command, idempotency: Idempotency) -> Result<ReplyBody, RpcError> {
        let name = command.name();
        let applied = self.context.propose(caller, command, Some(idempotency)).await?;
        let suggested = |refusal: Refusal| self.context.with_suggestion(caller, refusal.into());
        let reply = applied.reply.map_err(suggested)?;
        tracing::warn!(command = name, caller = caller.name(), effects = ?reply, "revocation");
        Ok(reply)
    }
}

fn evicted_or_suspended(reply: ReplyBody) -> RevocationEffects {
    match reply {
        ReplyBody::Revoked(effects) => effects,
        _ => RevocationEffects::default(),
    }
}

/// The treatment that the caller asks for, or `unspecified`.
fn treatment(leases: i32, unspecified: LeaseTreatment) -> Result<LeaseTreatment, Refusal> {
    match v1::LeaseTreatment::try_from(leases) {
        Ok(v1::LeaseTreatment::Unspecified) => Ok(unspecified),
        Ok(v1::LeaseTreatment::Stop) => Ok(LeaseTreatment::Stop),
        Ok(v1::LeaseTreatment::Drain) => Ok(LeaseTreatment::Drain),
        Ok(v1::LeaseTreatment::Finish) => Ok(LeaseTreatment::Finish),
        Err(_) => Err(Refusal::invalid(
            "leases",
            leases,
            "is not a treatment that this broker knows",
            "use LEASE_TREATMENT_FINISH (1), LEASE_TREATMENT_DRAIN (2) or LEASE_TREATMENT_STOP (3)",
        )),
    }
}

fn effects_to_proto(effects: RevocationEffects) -> v1::RevocationEffects {
    v1::RevocationEffects {
        clusters: effects.clusters.iter().map(ToString::to_string).collect(),
        leases: capped(effects.leases),
        starting: capped(effects.starting),
        requests: capped(effects.requests),
        invitations: capped(effects.invitations),
    }
}

fn capped(count: usize) -> u32 {
    u32::try_from(count).unwrap_or(u32::MAX)
}
