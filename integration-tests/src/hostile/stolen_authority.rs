//! The federation's certificate authority in the hands of somebody who stole a broker, and the one under the next root
//! that honest operators made.

use std::time::{Duration, SystemTime};

use anyhow::Result;
use comity_runtime::ca::{DEFAULT_INTERMEDIATE_VALIDITY, PreviousRoot, RootAuthority};
use comity_runtime::{
    BrokerEndpoints, CertificateAuthority, CsrDer, IdentityPem, IssuedCertificate, JoinToken, Roots, SecretString,
    SpiffeId, SystemEntropy, TrustDomain,
};

/// Trust domain of the federation.
pub(crate) const TRUST_DOMAIN: &str = "comity.example";

/// The authority with its key. It signs whatever its holder wants.
pub(crate) struct StolenAuthority {
    /// Under the first root.
    first: CertificateAuthority,
    /// Under the next root, with the first one trusted beside it.
    next: CertificateAuthority,
}

impl StolenAuthority {
    /// A fresh authority.
    ///
    /// # Errors
    /// When the certificate cannot be made.
    pub(crate) fn create() -> Result<Self> {
        let now = SystemTime::now();
        let root = RootAuthority::create(TrustDomain::new(TRUST_DOMAIN)?, now)?;
        let below = |root: &RootAuthority| root.intermediate(DEFAULT_INTERMEDIATE_VALIDITY, PreviousRoot::Trusted, now);
        Ok(Self { first: below(&root)?, next: below(&root.successor(now)?)? })
    }

    /// The id of a cluster.
    fn cluster_id(cluster: &str) -> Result<SpiffeId> {
        Ok(format!("spiffe://{TRUST_DOMAIN}/cluster/{cluster}").parse()?)
    }

    /// The authority that issues: the one under the next root once the federation has begun to move to it.
    pub(crate) const fn issuer(&self, is_rotated: bool) -> &CertificateAuthority {
        if is_rotated { &self.next } else { &self.first }
    }

    /// Both roots, of which the first alone is known in the beginning.
    pub(crate) const fn roots(&self) -> &Roots {
        self.next.roots()
    }

    /// The identity of a broker.
    ///
    /// # Errors
    /// When it cannot be issued.
    pub(crate) fn broker_identity(&self, validity: Duration) -> Result<IdentityPem> {
        let id: SpiffeId = format!("spiffe://{TRUST_DOMAIN}/broker/1").parse()?;
        Ok(self.first.new_identity(&id, &[], validity, SystemTime::now())?)
    }

    /// A certificate for the key of a CSR, which the agent of `cluster` made.
    ///
    /// # Errors
    /// When the CSR is invalid.
    pub(crate) fn issue(
        &self,
        csr_der: &[u8],
        cluster: &str,
        validity: Duration,
        is_rotated: bool,
    ) -> Result<IssuedCertificate> {
        let csr = CsrDer::new(csr_der.to_vec())?;
        let issuer = self.issuer(is_rotated);
        Ok(issuer.issue(&csr, &Self::cluster_id(cluster)?, &[], validity, SystemTime::now(), 0)?)
    }

    /// A certificate of `cluster` for a key that its agent does not have.
    ///
    /// # Errors
    /// When it cannot be issued.
    pub(crate) fn issue_for_another_key(
        &self,
        cluster: &str,
        validity: Duration,
        is_rotated: bool,
    ) -> Result<IdentityPem> {
        Ok(self.issuer(is_rotated).new_identity(&Self::cluster_id(cluster)?, &[], validity, SystemTime::now())?)
    }

    /// A join token for a cluster.
    ///
    /// # Errors
    /// When the address or the name is invalid.
    pub(crate) fn join_token(&self, broker: &str, cluster: &str) -> Result<SecretString> {
        let brokers = BrokerEndpoints::new([broker])?;
        let token = JoinToken::generate(brokers, self.first.root_sha256(), Self::cluster_id(cluster)?, &SystemEntropy);
        Ok(token.encode())
    }
}
