//! Calls of the brokers' API that several tests make.

use std::path::Path;

use anyhow::{Context as _, Result};
use comity_proto::v1;
use comity_proto::v1::federation_service_client::FederationServiceClient;
use comity_runtime::{
    BrokerChannel, BrokerEndpoints, ClientTls, IdentityDir, IdentityKey, IdentityPem, IdentitySource, JoinToken,
    KeyAndCsr, SystemEntropy, TlsIdentity, TrustedRoots, connect,
};

use crate::comity::identity;

/// Maximum items per page.
pub(crate) const MAX_PAGE_ITEMS: u32 = 500;
/// Context string of the identity key's signature of the CSR.
const PROOF_DOMAIN: &str = "join-csr";

/// A channel with a certificate, on a connection of its own.
///
/// # Errors
/// When the certificate is unusable.
pub(crate) fn channel(brokers: &BrokerEndpoints, pem: &IdentityPem) -> Result<BrokerChannel> {
    let source = IdentitySource::new(TlsIdentity::from_pem(pem)?);
    Ok(connect(brokers, &ClientTls::new(TrustedRoots::of(&source), source.subscribe())))
}

/// A channel of a user of the federation in `dir`.
///
/// # Errors
/// When the user has no identity.
pub(crate) fn user_channel(dir: &Path, user: &str, brokers: &BrokerEndpoints) -> Result<BrokerChannel> {
    let (pem, _) = IdentityDir::new(identity(dir, user)).load()?;
    channel(brokers, &pem)
}

/// Invites a cluster as admin; returns its join token.
///
/// # Errors
/// When the brokers refuse it.
pub(crate) async fn invite(admin: BrokerChannel, cluster: &str) -> Result<String> {
    let request = v1::InviteClusterRequest {
        cluster: cluster.to_owned(),
        ttl_ms: 0,
        idempotency_key: format!("invite-{cluster}"),
        replace: false,
    };
    let reply = FederationServiceClient::new(admin).invite_cluster(request).await;
    Ok(reply.with_context(|| format!("invite {cluster}"))?.into_inner().token)
}

/// A cluster that has joined.
pub(crate) struct JoinedCluster {
    pub(crate) brokers: BrokerEndpoints,
    /// The certificate of its agent.
    pub(crate) pem: IdentityPem,
    /// The public identity key.
    pub(crate) identity_key: String,
}

/// Joins as the cluster, with the token of its invitation.
///
/// # Errors
/// When the brokers refuse it.
pub(crate) async fn join(cluster: &str, token: &str) -> Result<JoinedCluster> {
    let token: JoinToken = token.parse().context("a join token")?;
    let identity = IdentityKey::generate(&SystemEntropy);
    let key = KeyAndCsr::generate()?;
    let identity_key = identity.public().to_string();
    let request = v1::JoinRequest {
        cluster: cluster.to_owned(),
        secret: token.secret.expose().to_vec(),
        csr_der: key.csr.as_bytes().to_vec(),
        identity_key: identity_key.clone(),
        voucher: Vec::new(),
        identity_proof: identity.sign(PROOF_DOMAIN, &[key.csr.as_bytes()]).as_bytes().to_vec(),
    };
    let tls = ClientTls::pinned(token.ca_sha256, token.id.trust_domain().clone());
    let mut client = FederationServiceClient::new(connect(&token.brokers, &tls));
    let reply = client.join(request).await.with_context(|| format!("{cluster} joins"))?.into_inner();
    let pem = IdentityPem { key: key.key_pem, chain: reply.certificate_pem, ca: reply.ca_pem };
    Ok(JoinedCluster { brokers: token.brokers, pem, identity_key })
}
