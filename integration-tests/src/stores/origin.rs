//! The origin of the requests: it joins and then stays silent, which is enough for queued requests.

use anyhow::{Context as _, Result};
use comity_proto::v1;
use comity_proto::v1::federation_service_client::FederationServiceClient;
use comity_runtime::{BrokerChannel, ClientTls, IdentityKey, JoinToken, KeyAndCsr, SystemEntropy, connect};

/// What the identity key signs the CSR for.
const PROOF_DOMAIN: &str = "join-csr";

/// Invites the cluster as admin, and joins as the cluster.
///
/// # Errors
/// When the brokers refuse either.
pub(crate) async fn join(admin: BrokerChannel, cluster: &str) -> Result<()> {
    let invite = v1::InviteClusterRequest {
        cluster: cluster.to_owned(),
        ttl_ms: 0,
        idempotency_key: format!("invite-{cluster}"),
        replace: false,
    };
    let invitation = FederationServiceClient::new(admin).invite_cluster(invite).await.context("invite")?.into_inner();
    let token: JoinToken = invitation.token.parse().context("a join token")?;
    let identity = IdentityKey::generate(&SystemEntropy);
    let key = KeyAndCsr::generate()?;
    let request = v1::JoinRequest {
        cluster: cluster.to_owned(),
        secret: token.secret.expose().to_vec(),
        csr_der: key.csr.as_bytes().to_vec(),
        identity_key: identity.public().to_string(),
        voucher: Vec::new(),
        identity_proof: identity.sign(PROOF_DOMAIN, &[key.csr.as_bytes()]).as_bytes().to_vec(),
    };
    let tls = ClientTls::pinned(token.ca_sha256, token.trust_domain.clone());
    FederationServiceClient::new(connect(&token.brokers, &tls)).join(request).await.context("join")?;
    Ok(())
}
