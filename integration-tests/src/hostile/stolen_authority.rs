//! The federation's certificate authority in the hands of somebody who stole a broker.

use std::time::{Duration, SystemTime};

use anyhow::Result;
use comity_runtime::{
    BrokerEndpoints, CertificateAuthority, CsrDer, IdentityPem, IssuedCertificate, JoinToken, SecretString, SpiffeId,
    SystemEntropy, TrustDomain,
};

/// Trust domain of the federation.
pub(crate) const TRUST_DOMAIN: &str = "comity.example";

/// The authority with its key. It signs whatever its holder wants.
pub(crate) struct StolenAuthority(CertificateAuthority);

impl StolenAuthority {
    /// A fresh authority.
    ///
    /// # Errors
    /// When the certificate cannot be made.
    pub(crate) fn create() -> Result<Self> {
        Ok(Self(CertificateAuthority::create(TrustDomain::new(TRUST_DOMAIN)?, SystemTime::now())?))
    }

    /// The id of a cluster.
    fn cluster_id(cluster: &str) -> Result<SpiffeId> {
        Ok(format!("spiffe://{TRUST_DOMAIN}/cluster/{cluster}").parse()?)
    }

    /// The authority's certificate and its roots, for a server.
    pub(crate) const fn authority(&self) -> &CertificateAuthority {
        &self.0
    }

    /// The identity of a broker.
    ///
    /// # Errors
    /// When it cannot be issued.
    pub(crate) fn broker_identity(&self, validity: Duration) -> Result<IdentityPem> {
        let id: SpiffeId = format!("spiffe://{TRUST_DOMAIN}/broker/1").parse()?;
        Ok(self.0.new_identity(&id, &[], validity, SystemTime::now())?)
    }

    /// A certificate for the key of a CSR, which the agent of `cluster` made.
    ///
    /// # Errors
    /// When the CSR is invalid.
    pub(crate) fn issue(&self, csr_der: &[u8], cluster: &str, validity: Duration) -> Result<IssuedCertificate> {
        let csr = CsrDer::new(csr_der.to_vec())?;
        Ok(self.0.issue(&csr, &Self::cluster_id(cluster)?, &[], validity, SystemTime::now(), 0)?)
    }

    /// A certificate of `cluster` for a key that its agent does not have.
    ///
    /// # Errors
    /// When it cannot be issued.
    pub(crate) fn issue_for_another_key(&self, cluster: &str, validity: Duration) -> Result<IdentityPem> {
        Ok(self.0.new_identity(&Self::cluster_id(cluster)?, &[], validity, SystemTime::now())?)
    }

    /// A join token for a cluster.
    ///
    /// # Errors
    /// When the address or the name is invalid.
    pub(crate) fn join_token(&self, broker: &str, cluster: &str) -> Result<SecretString> {
        let brokers = BrokerEndpoints::new([broker])?;
        let token = JoinToken::generate(brokers, self.0.root_sha256(), Self::cluster_id(cluster)?, &SystemEntropy);
        Ok(token.encode())
    }
}
