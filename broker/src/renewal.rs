//! Renews a broker's own certificate from the authority on its disk, without closing connections.

use std::sync::Arc;
use std::time::Duration;

use comity_runtime::ca::{CaError, CertificateAuthority};
use comity_runtime::clock::Clock;
use comity_runtime::identity::{IdentityDir, IdentityError, IdentitySource, TlsIdentity};
use comity_runtime::spiffe::SpiffeId;
use tokio_util::sync::CancellationToken;

/// Interval of renewal checks; short, because clocks may be set.
const RENEWAL_CHECK_INTERVAL: Duration = Duration::from_secs(30);

/// Why a certificate was not renewed.
#[derive(Debug, thiserror::Error)]
pub enum RenewalError {
    /// The authority cannot issue it.
    #[error(transparent)]
    Ca(#[from] CaError),
    /// It cannot be stored.
    #[error(transparent)]
    Identity(#[from] IdentityError),
}

/// Renews one broker's certificate.
#[derive(Debug)]
pub struct Renewal {
    /// The authority.
    pub ca: Arc<CertificateAuthority>,
    /// Directory of key and certificate.
    pub dir: IdentityDir,
    /// Identity to certify.
    pub id: SpiffeId,
    /// Validity of each certificate.
    pub validity: Duration,
    /// Time.
    pub clock: Arc<dyn Clock>,
}

impl Renewal {
    /// The identity on disk, renewed if it is due.
    ///
    /// # Errors
    /// [`RenewalError`].
    pub fn load(&self) -> Result<TlsIdentity, RenewalError> {
        let (_, identity) = self.dir.load()?;
        if self.is_due(&identity) { self.renew() } else { Ok(identity) }
    }

    /// Renews whenever it is due, until `stop`.
    pub async fn run(self, source: IdentitySource, stop: CancellationToken) {
        loop {
            tokio::select! {
                () = self.clock.sleep(RENEWAL_CHECK_INTERVAL) => {}
                () = stop.cancelled() => return,
            }
            if !self.is_due(&source.current()) {
                continue;
            }
            match self.renew() {
                Ok(identity) => source.update(identity),
                // A third of its validity is left for the operator to act.
                Err(error) => tracing::error!(%error, "this broker's certificate is not renewed"),
            }
        }
    }

    fn is_due(&self, identity: &TlsIdentity) -> bool {
        self.clock.now() >= identity.renew_at()
    }

    fn renew(&self) -> Result<TlsIdentity, RenewalError> {
        let pem = self.ca.new_identity(&self.id, &[], self.validity, self.clock.now())?;
        let identity = self.dir.save(&pem)?;
        tracing::info!(id = %self.id, "this broker's certificate is renewed");
        Ok(identity)
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use std::time::{SystemTime, UNIX_EPOCH};

    use comity_runtime::clock::ManualClock;
    use comity_runtime::spiffe::TrustDomain;

    use super::*;

    #[test]
    fn a_certificate_is_renewed_after_two_thirds_of_its_life() {
        let home = tempfile::tempdir().unwrap();
        let now = SystemTime::now();
        let domain = TrustDomain::new("dev.test").unwrap();
        let ca = Arc::new(CertificateAuthority::create(domain.clone(), now).unwrap());
        let clock = ManualClock::at_unix_ms(now.duration_since(UNIX_EPOCH).unwrap().as_millis().try_into().unwrap());
        let renewal = Renewal {
            id: SpiffeId::broker(domain, 1),
            dir: IdentityDir::new(home.path()),
            validity: Duration::from_secs(3600),
            clock: Arc::new(clock.clone()),
            ca: Arc::clone(&ca),
        };
        renewal.dir.save(&ca.new_identity(&renewal.id, &[], renewal.validity, now).unwrap()).unwrap();
        let first = renewal.load().unwrap();
        clock.advance(Duration::from_secs(2300));
        assert_eq!(renewal.load().unwrap().not_after(), first.not_after());
        clock.advance(Duration::from_secs(300));
        assert!(renewal.load().unwrap().not_after() > first.not_after());
    }
}
