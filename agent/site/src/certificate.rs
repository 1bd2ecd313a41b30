//! The site API's CA, kept over restarts so that credentials stay valid, and a server certificate made at each start.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use comity_runtime::atomic_file::{self, FileError};
use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair, KeyUsagePurpose};
use rustls_pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};

/// Name in the server's certificate; the tunnel leads to the address.
pub(super) const SERVER_NAME: &str = "site.comity.internal";
const KEY_FILE: &str = "ca.key";
const CA_FILE: &str = "ca.pem";
const MAX_PEM_BYTES: u64 = 64 << 10;
/// The CA is valid for ten years: only this host's agent uses it.
const CA_LIFE: Duration = Duration::from_secs(10 * 365 * 24 * 3_600);
/// Clocks of the two clusters may differ.
const SKEW: Duration = Duration::from_secs(24 * 3_600);

/// The CA and the TLS configuration of the server.
pub(super) struct SiteIdentity {
    pub(super) ca_pem: String,
    pub(super) tls: Arc<rustls::ServerConfig>,
}

/// Why the identity cannot be opened.
#[derive(Debug, thiserror::Error)]
pub(super) enum CertificateError {
    /// A file cannot be read or written.
    #[error(transparent)]
    File(#[from] FileError),
    /// A file is damaged, or a certificate cannot be made.
    #[error("the site API's certificate cannot be made: {0}; remove its folder to make a new CA")]
    Certificate(#[from] rcgen::Error),
    /// TLS refuses it.
    #[error("the site API's certificate cannot be used: {0}")]
    Tls(#[from] rustls::Error),
}

/// Opens or makes the CA in `dir` and issues the server's certificate.
pub(super) fn open(dir: &Path, now: SystemTime) -> Result<SiteIdentity, CertificateError> {
    let key = match atomic_file::read_bounded(&dir.join(KEY_FILE), MAX_PEM_BYTES) {
        Ok(pem) => KeyPair::from_pem(&String::from_utf8_lossy(&pem))?,
        Err(error) if error.is_not_found() => {
            let key = KeyPair::generate()?;
            atomic_file::write(&dir.join(KEY_FILE), key.serialize_pem().as_bytes(), atomic_file::PRIVATE)?;
            key
        }
        Err(error) => return Err(error.into()),
    };
    let ca_pem = match atomic_file::read_bounded(&dir.join(CA_FILE), MAX_PEM_BYTES) {
        Ok(pem) => String::from_utf8_lossy(&pem).into_owned(),
        Err(error) if error.is_not_found() => {
            let mut parameters = CertificateParams::default();
            parameters.distinguished_name.push(DnType::CommonName, "Comity site API");
            parameters.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
            parameters.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::DigitalSignature];
            (parameters.not_before, parameters.not_after) = ((now - SKEW).into(), (now + CA_LIFE).into());
            let pem = parameters.self_signed(&key)?.pem();
            atomic_file::write(&dir.join(CA_FILE), pem.as_bytes(), atomic_file::PUBLIC)?;
            pem
        }
        Err(error) => return Err(error.into()),
    };
    let issuer = Issuer::from_ca_cert_pem(&ca_pem, key)?;
    let server_key = KeyPair::generate()?;
    let mut parameters = CertificateParams::new(vec![SERVER_NAME.to_owned()])?;
    parameters.distinguished_name.push(DnType::CommonName, SERVER_NAME);
    (parameters.not_before, parameters.not_after) = ((now - SKEW).into(), (now + CA_LIFE).into());
    let certificate = parameters.signed_by(&server_key, &issuer)?;
    let private = PrivateKeyDer::from(PrivatePkcs8KeyDer::from(server_key.serialize_der()));
    let tls = rustls::ServerConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
        .with_safe_default_protocol_versions()?
        .with_no_client_auth()
        .with_single_cert(vec![certificate.der().clone()], private)?;
    Ok(SiteIdentity { ca_pem, tls: Arc::new(tls) })
}
