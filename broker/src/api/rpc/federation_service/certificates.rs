//! Issues certificates to members. The state decides about the generation and the end of each one before it is issued.

use std::time::{Duration, UNIX_EPOCH};

use comity_core::command::{RecordCertificate, RecordIssuer};
use comity_core::member_certificate::{CertificateHolder, MemberCertificate};
use comity_core::refusal::Code;
use comity_core::{Command, Refusal, ReplyBody, State, Timestamp};
use comity_proto::v1;
use comity_runtime::ca::{CaError, CsrDer};
use comity_runtime::signing::IdentityPublicKey;
use comity_runtime::spiffe::{SpiffeId, SpiffeKind};
use comity_types::ClusterId;
use tonic::Request;

use super::FederationHandlers;
use crate::api::authorize::Rpc;
use crate::api::caller::Caller;
use crate::api::caller_life::CallerLife;
use crate::api::convert::csr::{parse_csr, parse_signature};
use crate::api::convert::timestamp;
use crate::api::rpc_error::RpcError;
use crate::context::complete;
use crate::group::Consistency;

impl FederationHandlers {
    pub(super) async fn renew_certificate(
        &self,
        request: Request<v1::RenewCertificateRequest>,
    ) -> Result<v1::RenewCertificateResponse, RpcError> {
        let life = self.context.admit_stream(Rpc::RenewCertificate, &request).await?;
        complete(request.get_ref())?;
        let caller = life.caller();
        let message = request.into_inner();
        let csr = parse_csr(message.csr_der)?;
        let (id, certificate) = match caller {
            Caller::Cluster(id, cluster, _) => {
                let identity_key = self.identity_key(cluster, &life).await?;
                check_proof(&identity_key, id, &csr, &message.identity_proof)?;
                let not_after = self.not_after(self.context.validity.clusters);
                let command = RecordCertificate { cluster: cluster.clone(), identity_key, not_after };
                let applied = self.context.propose(caller, Command::RecordCertificate(command), None).await?;
                (id, applied.reply?)
            }
            Caller::User(id, _) => {
                let not_after = self.not_after(self.context.validity.users);
                // A revocation before this read refuses the caller; a later one voids the new certificate.
                let newest = |state: &State| life.standing(state).map(|()| state.certificate_generation);
                let generation = self.context.group.read(Consistency::Linearizable, newest).await??;
                (id, ReplyBody::Certificate { generation, not_after })
            }
            Caller::Anonymous | Caller::Broker(_) => {
                return Err(Refusal::new(
                    Code::PermissionDenied,
                    format!("{} gets no certificate here", caller.name()),
                    "brokers renew theirs from the authority on their own disk",
                )
                .into());
            }
        };
        let (certificate_pem, not_after) = self.issue(&csr, id, &certificate).await?;
        tracing::info!(caller = caller.name(), "certificate renewed");
        let ca_pem = self.context.ca.root_pem();
        Ok(v1::RenewCertificateResponse { certificate_pem, ca_pem, not_after_ms: not_after.0 })
    }

    /// The registered identity key of a cluster that policy still names and whose certificate is not void.
    async fn identity_key(&self, cluster: &ClusterId, life: &CallerLife) -> Result<String, RpcError> {
        self.still_enrolled(cluster).await?;
        let registered = |state: &State| {
            life.standing(state)?;
            let record = state.clusters.get(cluster);
            let record = record.ok_or_else(|| Refusal::not_found("cluster", cluster, "member cluster"))?;
            Ok::<_, Refusal>(record.identity_key.clone())
        };
        Ok(self.context.group.read(Consistency::Linearizable, registered).await??)
    }

    /// Refuses a cluster that policy no longer names: its membership ends with its current certificate.
    pub(super) async fn still_enrolled(&self, cluster: &ClusterId) -> Result<(), RpcError> {
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

    /// The end of a certificate that is issued now.
    pub(super) fn not_after(&self, validity: Duration) -> Timestamp {
        timestamp(self.context.issued_at() + validity)
    }

    /// Records under which root the certificate is, for those who replace the root.
    async fn record_issuer(&self, id: &SpiffeId, generation: u64, not_after: Timestamp) -> Result<(), RpcError> {
        let (caller, holder) = match id.kind() {
            SpiffeKind::Cluster(name) => {
                let cluster = ClusterId::parse(name.as_str(), "cluster").map_err(Refusal::from)?;
                (Caller::Cluster(id.clone(), cluster.clone(), generation), CertificateHolder::Cluster(cluster))
            }
            SpiffeKind::User(name) => {
                (Caller::User(id.clone(), generation), CertificateHolder::User(name.as_str().to_owned()))
            }
            SpiffeKind::Broker(_) => return Ok(()),
        };
        let certificate = MemberCertificate { root_sha256: self.context.ca.root_sha256().to_string(), not_after };
        let command = Command::RecordIssuer(RecordIssuer { holder, certificate });
        self.context.propose(&caller, command, None).await?.reply?;
        Ok(())
    }

    /// Issues the certificate that a command permitted, unless a revocation has voided it since, or it would have
    /// expired: then the command was repeated.
    pub(super) async fn issue(
        &self,
        csr: &CsrDer,
        id: &SpiffeId,
        permitted: &ReplyBody,
    ) -> Result<(String, Timestamp), RpcError> {
        let ReplyBody::Certificate { generation, not_after } = *permitted else {
            return Err(RpcError::Internal { what: "recording the certificate" });
        };
        let stands = |state: &State| match id.kind() {
            SpiffeKind::Cluster(name) => {
                state.check_cluster_certificate(&ClusterId::parse(name.as_str(), "cluster")?, generation)
            }
            SpiffeKind::User(name) => state.check_user_certificate(name.as_str(), &id.to_string(), generation),
            SpiffeKind::Broker(_) => Ok(()),
        };
        self.context.group.read(Consistency::Linearizable, stands).await??;
        let (now, ends) = (self.context.issued_at(), UNIX_EPOCH + Duration::from_millis(not_after.0));
        let validity =
            ends.duration_since(now).ok().filter(|left| *left >= Duration::from_secs(1)).ok_or_else(|| {
                Refusal::new(
                    Code::InvalidToken,
                    "the certificate of this join has expired",
                    "ask for a new token: `comity cluster invite --replace` or `comity user add`",
                )
                .at("secret", "[redacted]")
            })?;
        self.record_issuer(id, generation, not_after).await?;
        let issued = self.context.ca.issue(csr, id, &[], validity, now, generation).map_err(csr_refused)?;
        tracing::info!(%id, serial = issued.serial, generation, "certificate issued");
        Ok((issued.chain_pem, timestamp(issued.not_after)))
    }
}

/// Refuses a renewal that the registered identity key did not sign: whoever stole a TLS key alone gets no further
/// certificate.
fn check_proof(registered: &str, id: &SpiffeId, csr: &CsrDer, proof: &[u8]) -> Result<(), Refusal> {
    let proof = parse_signature("identity_proof", proof)?;
    let verified = |key: IdentityPublicKey| key.verify_renewal(id, csr.as_bytes(), &proof).ok();
    registered.parse::<IdentityPublicKey>().ok().and_then(verified).ok_or_else(|| {
        Refusal::invalid_bytes(
            "identity_proof",
            "is not the registered identity key's signature over the id and the CSR",
            "renew with the agent that joined; for another one, use `comity cluster invite --replace`",
        )
    })
}

fn csr_refused(error: CaError) -> RpcError {
    match error {
        CaError::CsrTooLarge { .. } | CaError::CsrMalformed { .. } | CaError::CsrSignature | CaError::KeyAlgorithm => {
            let why = format!("is refused: {error}");
            Refusal::invalid_bytes("csr_der", &why, "send a PKCS #10 request in DER for a P-256 key").into()
        }
        other => {
            tracing::error!(error = %other, "cannot issue a certificate");
            RpcError::Internal { what: "issuing the certificate" }
        }
    }
}
