//! The authority that is in force: replaced while the broker runs.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use tokio::sync::watch;

use super::{CaError, CertificateAuthority, CsrDer, IssuedCertificate};
use crate::host_name::HostName;
use crate::identity::RootHash;
use crate::spiffe::{SpiffeId, TrustDomain};

/// The newest authority of a broker. Clones share it.
#[derive(Debug, Clone)]
pub struct LiveAuthority {
    trust_domain: TrustDomain,
    newest: Arc<watch::Sender<Arc<CertificateAuthority>>>,
}

impl LiveAuthority {
    /// Begins with an authority.
    #[must_use]
    pub fn new(authority: CertificateAuthority) -> Self {
        let trust_domain = authority.trust_domain().clone();
        Self { trust_domain, newest: Arc::new(watch::Sender::new(Arc::new(authority))) }
    }

    /// Puts the next authority into force.
    ///
    /// # Errors
    /// [`CaError::OtherAuthority`] if it is of another federation.
    pub fn replace(&self, authority: CertificateAuthority) -> Result<(), CaError> {
        if *authority.trust_domain() != self.trust_domain {
            let (found, expected) = (authority.trust_domain().clone(), self.trust_domain.clone());
            return Err(CaError::OtherAuthority { found, expected });
        }
        self.newest.send_replace(Arc::new(authority));
        Ok(())
    }

    /// The newest authority.
    #[must_use]
    pub fn current(&self) -> Arc<CertificateAuthority> {
        self.newest.borrow().clone()
    }

    /// A receiver of the newest authority.
    #[must_use]
    pub fn subscribe(&self) -> watch::Receiver<Arc<CertificateAuthority>> {
        self.newest.subscribe()
    }

    /// The trust domain of the federation, which no replacement changes.
    #[must_use]
    pub const fn trust_domain(&self) -> &TrustDomain {
        &self.trust_domain
    }

    /// The hash of the root that join tokens pin.
    #[must_use]
    pub fn root_sha256(&self) -> RootHash {
        self.current().root_sha256()
    }

    /// The trusted root certificates as PEM.
    #[must_use]
    pub fn root_pem(&self) -> String {
        self.current().root_pem().to_owned()
    }

    /// Issues a certificate like [`CertificateAuthority::issue`].
    ///
    /// # Errors
    /// Like [`CertificateAuthority::issue`].
    pub fn issue(
        &self,
        csr: &CsrDer,
        id: &SpiffeId,
        hosts: &[HostName],
        validity: Duration,
        now: SystemTime,
        generation: u64,
    ) -> Result<IssuedCertificate, CaError> {
        self.current().issue(csr, id, hosts, validity, now, generation)
    }
}
