//! FederationService: members, and how they join.

mod certificates;
mod check_join;

use std::ops::Bound;

use comity_core::command::{InviteCluster, JoinCluster};
use comity_core::{Command, Idempotency, InviteSubject, Refusal, State};
use comity_proto::v1;
use comity_proto::v1::federation_service_server::FederationService;
use comity_runtime::ca::CsrDer;
use comity_runtime::signing::{IdentityPublicKey, IdentitySignature};
use comity_runtime::spiffe::{ClusterName, SpiffeId, SpiffeKind};
use comity_types::ClusterId;
use tonic::Request;

use crate::api::authorize::{Rpc, may_invite};
use crate::api::caller::Caller;
use crate::api::convert::csr::{parse_csr, parse_signature};
use crate::api::convert::{cluster, rights, timestamp};
use crate::api::invitation::Lifetimes;
use crate::api::paging::Page;
use crate::api::rpc::serve;
use crate::api::rpc_error::RpcError;
use crate::api::visible_names::VisibleNames;
use crate::api::{idempotency, invitation};
use crate::context::{Context, complete};
use crate::group::Consistency;

#[cfg(test)]
mod fuzz_joins;
mod invitations;
mod join_broker;
mod join_user;
mod revocations;

/// Purpose under which a joining agent signs its CSR with its identity key.
pub const JOIN_PROOF_DOMAIN: &str = "join-csr";

/// Members and how they join.
#[derive(Debug, Clone)]
pub struct FederationHandlers {
    /// Shared context.
    pub context: Context,
}

serve! { FederationService for FederationHandlers {
    get_federation: GetFederationRequest -> GetFederationResponse;
    invite_cluster: InviteClusterRequest -> InviteClusterResponse;
    check_join: CheckJoinRequest -> CheckJoinResponse;
    invite_user: InviteUserRequest -> InviteUserResponse;
    list_invitations: ListInvitationsRequest -> ListInvitationsResponse;
    revoke_invitation: RevokeInvitationRequest -> RevokeInvitationResponse;
    evict_cluster: EvictClusterRequest -> EvictClusterResponse;
    revoke_user: RevokeUserRequest -> RevokeUserResponse;
    suspend_institution: SuspendInstitutionRequest -> SuspendInstitutionResponse;
    resume_institution: ResumeInstitutionRequest -> ResumeInstitutionResponse;
    join: JoinRequest -> JoinResponse;
    join_user: JoinUserRequest -> JoinUserResponse;
    join_broker: JoinBrokerRequest -> JoinBrokerResponse;
    renew_certificate: RenewCertificateRequest -> RenewCertificateResponse;
    who_am_i: WhoAmIRequest -> WhoAmIResponse;
    list_clusters: ListClustersRequest -> ListClustersResponse;
    get_cluster: GetClusterRequest -> GetClusterResponse;
} }

/// A join request, parsed.
struct Joining {
    cluster: ClusterId,
    name: ClusterName,
    secret_sha256: String,
    csr: CsrDer,
    identity: IdentityPublicKey,
    voucher: Option<IdentitySignature>,
    idempotency: Idempotency,
}

impl FederationHandlers {
    async fn get_federation(
        &self,
        request: Request<v1::GetFederationRequest>,
    ) -> Result<v1::GetFederationResponse, RpcError> {
        self.context.admit(Rpc::GetFederation, &request).await?;
        let ca = self.context.ca.current();
        Ok(v1::GetFederationResponse {
            trust_domain: ca.trust_domain().to_string(),
            ca_sha256: ca.root_sha256().to_string(),
            ca_intermediate_not_after_ms: timestamp(ca.not_after()).0,
            ca_intermediate_due_ms: timestamp(ca.renew_at()).0,
            broker_version: env!("CARGO_PKG_VERSION").to_owned(),
            time_ms: self.context.now().0,
        })
    }

    async fn invite_cluster(
        &self,
        request: Request<v1::InviteClusterRequest>,
    ) -> Result<v1::InviteClusterResponse, RpcError> {
        let caller = self.context.admit(Rpc::InviteCluster, &request).await?;
        let mut message = request.into_inner();
        let key = std::mem::take(&mut message.idempotency_key);
        let idempotency = idempotency::of_call(&caller.name(), &key, "InviteCluster", &message)?;
        let id = ClusterId::parse(&message.cluster, "cluster")?;
        let ttl = Lifetimes::MEMBER.parse(message.ttl_ms)?;
        self.context.permit(|bundle| may_invite(&caller, bundle, &id)).await?;

        let command = |secret_sha256| {
            Command::InviteCluster(InviteCluster { cluster: id.clone(), secret_sha256, ttl, replace: message.replace })
        };
        let invited = SpiffeKind::Cluster(cluster_name(&id)?);
        let new = invitation::invite(&self.context, &caller, &invited, idempotency, command).await?;
        Ok(v1::InviteClusterResponse { token: new.token.encode().expose().clone(), expires_at_ms: new.expires_at.0 })
    }

    async fn join(&self, request: Request<v1::JoinRequest>) -> Result<v1::JoinResponse, RpcError> {
        // The token authorizes; the caller's certificate does not matter.
        complete(request.get_ref())?;
        let joining = parse_join(request.into_inner())?;
        let subject = InviteSubject::Cluster(joining.cluster.clone());
        invitation::check_outstanding(&self.context, &subject, &joining.secret_sha256, &joining.idempotency).await?;
        self.vouched(&joining).await?;

        let not_after = self.not_after(self.context.validity.clusters);
        let command = Command::JoinCluster(JoinCluster {
            cluster: joining.cluster.clone(),
            secret_sha256: joining.secret_sha256,
            identity_key: joining.identity.to_string(),
            certificate_not_after: not_after,
        });
        let id = SpiffeId::cluster(self.context.ca.trust_domain().clone(), joining.name);
        let caller = Caller::Cluster(id.clone(), joining.cluster.clone(), 0);
        // A repeated call gets the same answer, so that an agent which lost the reply can join. It gets a certificate of
        // the same generation and end: no more than the first one gave, and nothing after a revocation.
        let applied = self.context.propose(&caller, command, Some(joining.idempotency)).await?;
        let certificate = applied.reply.map_err(|refusal| invitation::used_up(&subject, refusal))?;
        self.still_enrolled(&joining.cluster).await?;
        let (certificate_pem, not_after) = self.issue(&joining.csr, &id, &certificate).await?;
        tracing::info!(cluster = %joining.cluster, "joined");
        Ok(v1::JoinResponse { certificate_pem, ca_pem: self.context.ca.root_pem(), not_after_ms: not_after.0 })
    }

    /// Checks the voucher, if any: the institution's signature over the cluster's identity key.
    async fn vouched(&self, joining: &Joining) -> Result<(), RpcError> {
        let Some(voucher) = &joining.voucher else { return Ok(()) };
        let keys = self
            .context
            .group
            .read(Consistency::Stale, |state| {
                let bundle = &state.policy.as_ref()?.bundle;
                let institution = bundle.institution_of_cluster(joining.cluster.as_str())?;
                Some((institution.to_owned(), bundle.institutions.get(institution)?.spec.signing_keys.clone()))
            })
            .await?;
        let (institution, keys) = keys.unwrap_or_default();
        let good = |key: &[u8; 32]| {
            IdentityPublicKey::from_bytes(key)
                .and_then(|key| key.verify_voucher(&institution, &joining.name, &joining.identity, voucher))
                .is_ok()
        };
        if keys.is_empty() || keys.iter().any(good) {
            return Ok(());
        }
        Err(Refusal::invalid_bytes(
            "voucher",
            &format!("is not a voucher of institution {institution} for this cluster and its identity key"),
            "let the institution make it again (comity cluster voucher create), or add its key to the Institution document",
        )
        .into())
    }

    async fn who_am_i(&self, request: Request<v1::WhoAmIRequest>) -> Result<v1::WhoAmIResponse, RpcError> {
        let caller = self.context.admit(Rpc::WhoAmI, &request).await?;
        // A role that was granted by an acknowledged bundle must show.
        self.context.group.read(Consistency::Linearizable, |_| ()).await?;
        Ok(rights::to_proto(&caller, self.context.hub.policy().as_deref(), &self.context.bootstrap_admins))
    }

    async fn list_clusters(
        &self,
        request: Request<v1::ListClustersRequest>,
    ) -> Result<v1::ListClustersResponse, RpcError> {
        let caller = self.context.admit(Rpc::ListClusters, &request).await?;
        let viewer = self.context.viewer(&caller);
        let message = request.into_inner();
        let page = Page::parse(message.page, "clusters")?;
        let after = page.after(|key| ClusterId::parse(key, "page.token"))?;
        let copy = self.context.copy(message.consistency).await?;
        let range = (after.map_or(Bound::Unbounded, Bound::Excluded), Bound::Unbounded);
        let visible = copy.clusters.range(range).map(|(id, _)| id).filter(|id| viewer.sees_cluster(id));
        // A copy lacks sums, so apply waits for those of one cluster at a time.
        let clusters = visible.filter_map(|id| {
            let shown = |state: &State| Some(cluster::to_proto(state, id, state.clusters.get(id)?));
            Some((id.clone(), self.context.group.peek(shown)?))
        });
        let (clusters, page) = page.take(clusters, copy.revision);
        Ok(v1::ListClustersResponse { clusters, page: Some(page) })
    }

    async fn get_cluster(&self, request: Request<v1::GetClusterRequest>) -> Result<v1::GetClusterResponse, RpcError> {
        let caller = self.context.admit(Rpc::GetCluster, &request).await?;
        let viewer = self.context.viewer(&caller);
        let message = request.into_inner();
        let id = ClusterId::parse(&message.cluster, "cluster")?;
        let read = |state: &State| {
            let held = state.clusters.get(&id).filter(|_| viewer.sees_cluster(&id));
            let names = VisibleNames::in_state(&caller, state);
            let held = held.ok_or_else(|| names.suggest(Refusal::not_found("cluster", &id, "cluster")))?;
            Ok(v1::GetClusterResponse { cluster: Some(cluster::to_proto(state, &id, held)) })
        };
        self.context.read(message.consistency, read).await
    }
}

fn parse_join(message: v1::JoinRequest) -> Result<Joining, Refusal> {
    let cluster = ClusterId::parse(&message.cluster, "cluster")?;
    let name = cluster_name(&cluster)?;
    let secret_sha256 = invitation::parse_secret(&message.secret)?;
    // The secret itself stays out of the hash of the body; its own hash is in the key.
    let body = v1::JoinRequest { secret: Vec::new(), ..message.clone() };
    let idempotency = Idempotency {
        caller: format!("join/{cluster}"),
        key: secret_sha256.clone(),
        body_sha256: idempotency::body_sha256("Join", &body),
    };
    let csr = parse_csr(message.csr_der)?;
    let identity: IdentityPublicKey = message.identity_key.parse().map_err(|error| {
        Refusal::invalid(
            "identity_key",
            &message.identity_key,
            &format!("is refused: {error}"),
            "send ed25519: and base64 of 32 bytes",
        )
    })?;
    let proof = parse_signature("identity_proof", &message.identity_proof)?;
    identity.verify(JOIN_PROOF_DOMAIN, &[csr.as_bytes()], &proof).map_err(|_| {
        Refusal::invalid_bytes(
            "identity_proof",
            "is not this identity key's signature over the CSR",
            "sign the CSR's DER with the identity key that is being registered",
        )
    })?;
    let voucher = match message.voucher.as_slice() {
        [] => None,
        bytes => Some(parse_signature("voucher", bytes)?),
    };
    Ok(Joining { cluster, name, secret_sha256, csr, identity, voucher, idempotency })
}

fn cluster_name(id: &ClusterId) -> Result<ClusterName, Refusal> {
    ClusterName::new(id.as_str())
        .map_err(|error| Refusal::invalid("cluster", id, &format!("is refused: {error}"), "use a DNS label"))
}
