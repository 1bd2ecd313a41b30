//! Renews a user's certificate while they use it, so that nobody logs in every month.

use std::fs::{File, OpenOptions, TryLockError};
use std::os::unix::fs::OpenOptionsExt as _;
use std::time::{Duration, SystemTime};

use comity_proto::v1;
use comity_proto::v1::federation_service_client::FederationServiceClient;
use comity_runtime::atomic_file::PRIVATE;
use comity_runtime::telemetry::CALLS_TARGET;
use comity_runtime::{Clock as _, IdentityDir, IdentityPem, KeyAndCsr, SystemClock, TlsIdentity};

use super::{PresentedIdentity, Session, call};
use crate::failure::Failure;

/// How long a command waits for the renewal that follows it.
const AUTOMATIC_LIMIT: Duration = Duration::from_secs(3);
const LOCK_FILE: &str = "renewal.lock";

impl Session {
    /// Renews the certificate that this run presented, if a context holds it and it is past two thirds of its life.
    /// The command has done its work, so a failure is only logged; the next command tries again.
    pub async fn renew_if_due(&self) {
        let Some(PresentedIdentity { directory, identity }) = self.presented.get() else { return };
        if !is_due(identity, SystemClock::new().now()) {
            return;
        }
        match tokio::time::timeout(AUTOMATIC_LIMIT, self.renew_certificate(directory)).await {
            Ok(Ok(renewed)) => tracing::info!(target: CALLS_TARGET, id = %renewed.id(), "the certificate was renewed"),
            Ok(Err(failure)) => tracing::warn!(target: CALLS_TARGET, %failure, "cannot renew the certificate yet"),
            Err(_) => {
                tracing::warn!(target: CALLS_TARGET, "cannot renew the certificate yet: no answer within {AUTOMATIC_LIMIT:?}")
            }
        }
    }

    /// Replaces key and certificate of this run's identity.
    ///
    /// # Errors
    /// [`Failure`]: no broker issued a certificate, or it cannot be stored.
    pub async fn renew_certificate(&self, directory: &IdentityDir) -> Result<TlsIdentity, Failure> {
        let _lock = lock(directory)?;
        let fresh = KeyAndCsr::generate().map_err(|error| Failure::configuration(error.to_string()))?;
        let mut client = FederationServiceClient::new(self.channel()?);
        let request =
            v1::RenewCertificateRequest { csr_der: fresh.csr.as_bytes().to_vec(), identity_proof: Vec::new() };
        let answer = call(client.renew_certificate(request)).await?;
        let pem = IdentityPem { key: fresh.key_pem, chain: answer.certificate_pem, ca: answer.ca_pem };
        directory.renew(&pem).map_err(|error| Failure::configuration(error.to_string()))
    }
}

fn is_due(identity: &TlsIdentity, now: SystemTime) -> bool {
    now >= identity.renew_at() && now < identity.not_after()
}

/// Keeps two commands from mixing their keys and certificates.
fn lock(directory: &IdentityDir) -> Result<File, Failure> {
    let path = directory.path().join(LOCK_FILE);
    let failed = |error: &dyn std::fmt::Display| Failure::configuration(format!("{}: {error}", path.display()));
    let file = OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(false)
        .mode(PRIVATE)
        .open(&path)
        .map_err(|error| failed(&error))?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(TryLockError::WouldBlock) => {
            Err(Failure::refused("wrong-state", "another command renews the certificate").remedy("try again"))
        }
        Err(TryLockError::Error(error)) => Err(failed(&error)),
    }
}

#[cfg(test)]
mod tests {
    use comity_runtime::{CertificateAuthority, SpiffeId, TrustDomain};

    use super::*;

    const LIFE: Duration = Duration::from_secs(30 * 24 * 3600);

    #[test]
    fn a_certificate_is_due_in_the_last_third_of_its_life() {
        let domain: TrustDomain = "dev.test".parse().expect("valid");
        let now = SystemTime::now();
        let authority = CertificateAuthority::create(domain.clone(), now).expect("made");
        let id = SpiffeId::user(domain, "alice".parse().expect("valid"));
        let pem = authority.new_identity(&id, &[], LIFE, now).expect("issued");
        let identity = TlsIdentity::from_pem(&pem).expect("valid");
        let after = |part: u32| is_due(&identity, now + LIFE * part / 100);
        assert_eq!([0, 60, 70, 99, 101].map(after), [false, false, true, true, false]);
    }

    #[test]
    fn two_commands_do_not_renew_at_once() {
        let home = tempfile::tempdir().expect("made");
        let directory = IdentityDir::new(home.path());
        let first = lock(&directory).expect("free");
        assert_eq!(lock(&directory).expect_err("taken").reason, "another command renews the certificate");
        drop(first);
        lock(&directory).expect("free again");
    }
}
