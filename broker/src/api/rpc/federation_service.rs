//! FederationService: members, and how they join.

mod check_join;

use std::ops::Bound;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use comity_core::command::{InviteCluster, JoinCluster, RecordCertificate};
use comity_core::refusal::Code;
use comity_core::{Command, Idempotency, InviteSubject, Refusal, State, Timestamp};
use comity_proto::v1;
use comity_proto::v1::federation_service_server::FederationService;
use comity_runtime::ca::{CaError, CsrDer};
use comity_runtime::signing::{IdentityPublicKey, IdentitySignature};
use comity_runtime::spiffe::{ClusterName, SpiffeId, SpiffeKind};
use comity_types::ClusterId;
use tonic::Request;

use crate::api::authorize::{Rpc, may_invite};
use crate::api::caller::Caller;
use crate::api::convert::{cluster, rights};
use crate::api::invitation::Lifetimes;
use crate::api::paging::Page;
use crate::api::rpc::serve;
use crate::api::rpc_error::RpcError;
use crate::api::visible_names::VisibleNames;
use crate::api::{idempotency, invitation};
use crate::context::{Context, complete};
use crate::group::Consistency;

mod invitations;
mod join_broker;
mod join_user;

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

        let now = self.context.issued_at();
        let not_after = timestamp(now + self.context.validity.clusters);
        let command = Command::JoinCluster(JoinCluster {
            cluster: joining.cluster.clone(),
            secret_sha256: joining.secret_sha256,
            identity_key: joining.identity.to_string(),
            certificate_not_after: not_after,
        });
        let id = SpiffeId::cluster(self.context.ca.trust_domain().clone(), joining.name);
        let caller = Caller::Cluster(id.clone(), joining.cluster.clone());
        // A repeated call gets the same answer, so that an agent which lost the reply can join.
        let applied = self.context.propose(&caller, command, Some(joining.idempotency)).await?;
        applied.reply.map_err(|refusal| invitation::used_up(&subject, refusal))?;
        if applied.changes.is_empty() {
            self.still_member(&joining.cluster, &joining.identity.to_string()).await?;
            self.record(&caller, &joining.cluster, not_after).await?;
        }
        let (certificate_pem, not_after) = self.issue(&joining.csr, &id, self.context.validity.clusters)?;
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
                Some(bundle.institutions.get(institution)?.spec.signing_keys.clone())
            })
            .await?
            .unwrap_or_default();
        let good = |key: &[u8; 32]| {
            IdentityPublicKey::from_bytes(key)
                .and_then(|key| key.verify_voucher(&joining.name, &joining.identity, voucher))
                .is_ok()
        };
        if keys.is_empty() || keys.iter().any(good) {
            return Ok(());
        }
        Err(Refusal::invalid(
            "voucher",
            "",
            "is not a signature by a key of the cluster's institution",
            "let the institution sign this cluster's identity key again, or add its key to the Institution document",
        )
        .into())
    }

    async fn renew_certificate(
        &self,
        request: Request<v1::RenewCertificateRequest>,
    ) -> Result<v1::RenewCertificateResponse, RpcError> {
        let caller = self.context.admit(Rpc::RenewCertificate, &request).await?;
        let csr = parse_csr(request.into_inner().csr_der)?;
        let (certificate_pem, not_after) = match &caller {
            Caller::Cluster(id, cluster) => {
                self.still_enrolled(cluster).await?;
                let validity = self.context.validity.clusters;
                self.record(&caller, cluster, timestamp(self.context.issued_at() + validity)).await?;
                self.issue(&csr, id, validity)?
            }
            Caller::User(id) => self.issue(&csr, id, self.context.validity.users)?,
            Caller::Anonymous | Caller::Broker(_) => {
                return Err(Refusal::new(
                    Code::PermissionDenied,
                    format!("{} gets no certificate here", caller.name()),
                    "brokers renew theirs from the authority on their own disk",
                )
                .into());
            }
        };
        tracing::info!(caller = caller.name(), "certificate renewed");
        let ca_pem = self.context.ca.root_pem();
        Ok(v1::RenewCertificateResponse { certificate_pem, ca_pem, not_after_ms: not_after.0 })
    }

    /// Refuses a cluster that policy no longer names: its membership ends with its current certificate.
    /// Refuses a repeated call of an agent that another one has replaced, or whose cluster left the policy.
    async fn still_member(&self, cluster: &ClusterId, identity_key: &str) -> Result<(), RpcError> {
        self.still_enrolled(cluster).await?;
        let is_same =
            |state: &State| state.clusters.get(cluster).is_some_and(|record| record.identity_key == identity_key);
        if self.context.group.read(Consistency::Linearizable, is_same).await? {
            return Ok(());
        }
        let reason = format!("another agent has joined as cluster {cluster} since");
        let remedy = InviteSubject::Cluster(cluster.clone()).remedy();
        Err(Refusal::new(Code::InvalidToken, reason, remedy).at("secret", "[redacted]").into())
    }

    async fn still_enrolled(&self, cluster: &ClusterId) -> Result<(), RpcError> {
        let enrolled = |state: &State| {
            state.policy.as_ref().is_some_and(|record| record.bundle.institution_of_cluster(cluster.as_str()).is_some())
        };
        if self.context.group.read(Consistency::Linearizable, enrolled).await? {
            return Ok(());
        }
        Err(Refusal::new(
            Code::PermissionDenied,
            format!("cluster {cluster} is not in the policy bundle any more"),
            "ask your federation's maintainers",
        )
        .into())
    }

    async fn record(&self, caller: &Caller, cluster: &ClusterId, not_after: Timestamp) -> Result<(), RpcError> {
        let command = Command::RecordCertificate(RecordCertificate { cluster: cluster.clone(), not_after });
        self.context.propose(caller, command, None).await?.reply?;
        Ok(())
    }

    fn issue(&self, csr: &CsrDer, id: &SpiffeId, validity: Duration) -> Result<(String, Timestamp), RpcError> {
        let issued = self.context.ca.issue(csr, id, &[], validity, self.context.issued_at()).map_err(csr_refused)?;
        tracing::info!(%id, serial = issued.serial, "certificate issued");
        Ok((issued.chain_pem, timestamp(issued.not_after)))
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
        let read = |state: &State| {
            let range = (after.map_or(Bound::Unbounded, Bound::Excluded), Bound::Unbounded);
            let visible = state.clusters.range(range).filter(|(id, _)| viewer.sees_cluster(id));
            let clusters = visible.map(|(id, held)| (id.clone(), cluster::to_proto(state, id, held)));
            let (clusters, page) = page.take(clusters, state.revision);
            Ok(v1::ListClustersResponse { clusters, page: Some(page) })
        };
        self.context.read(message.consistency, read).await
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
    let signature = |field: &str, bytes: &[u8]| {
        IdentitySignature::from_bytes(bytes).map_err(|_| {
            Refusal::invalid(
                field,
                format!("{} bytes", bytes.len()),
                "is not an Ed25519 signature",
                "send its 64 bytes",
            )
        })
    };
    let proof = signature("identity_proof", &message.identity_proof)?;
    identity.verify(JOIN_PROOF_DOMAIN, &[csr.as_bytes()], &proof).map_err(|_| {
        Refusal::invalid(
            "identity_proof",
            "",
            "is not this identity key's signature over the CSR",
            "sign the CSR's DER with the identity key that is being registered",
        )
    })?;
    let voucher = match message.voucher.as_slice() {
        [] => None,
        bytes => Some(signature("voucher", bytes)?),
    };
    Ok(Joining { cluster, name, secret_sha256, csr, identity, voucher, idempotency })
}
fn parse_csr(der: Vec<u8>) -> Result<CsrDer, Refusal> {
    let bytes = der.len();
    CsrDer::new(der).map_err(|_| {
        Refusal::invalid(
            "csr_der",
            format!("{bytes} bytes"),
            "is too large",
            format!("send at most {} bytes", CsrDer::MAX_BYTES),
        )
    })
}

fn csr_refused(error: CaError) -> RpcError {
    match error {
        CaError::CsrTooLarge { .. } | CaError::CsrMalformed { .. } | CaError::CsrSignature | CaError::KeyAlgorithm => {
            Refusal::invalid(
                "csr_der",
                "",
                &format!("is refused: {error}"),
                "send a PKCS #10 request in DER for a P-256 key",
            )
            .into()
        }
        other => {
            tracing::error!(error = %other, "cannot issue a certificate");
            RpcError::Internal { what: "issuing the certificate" }
        }
    }
}

fn cluster_name(id: &ClusterId) -> Result<ClusterName, Refusal> {
    ClusterName::new(id.as_str())
        .map_err(|error| Refusal::invalid("cluster", id, &format!("is refused: {error}"), "use a DNS label"))
}

fn timestamp(time: SystemTime) -> Timestamp {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    Timestamp(u64::try_from(since.as_millis()).unwrap_or(u64::MAX))
}
