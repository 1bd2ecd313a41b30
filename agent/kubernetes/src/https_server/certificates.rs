//! Certificates for the API server: a CA whose key is discarded as soon as it has signed one server certificate.

use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use comity_runtime::SecretString;
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair, KeyUsagePurpose,
};
use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::ServerCertVerifier as _;
use rustls::server::danger::ClientCertVerifier;
use rustls_pki_types::pem::PemObject as _;
use rustls_pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use x509_parser::prelude::{FromDer as _, X509Certificate};

/// How long certificates are valid that the agent makes for itself.
pub const LIFE: Duration = Duration::from_secs(90 * 86_400);
/// Clocks of hosts may differ.
const SKEW: Duration = Duration::from_secs(24 * 3_600);
/// CA certificates that are published: the current one and the previous one.
const PUBLISHED_CAS: usize = 2;

/// A server's certificate and key, and the CA certificates that verify it.
pub struct Certificates {
    /// CA certificates that others trust, PEM.
    pub ca_pem: String,
    /// The server's certificate chain, PEM.
    pub chain_pem: String,
    /// Its private key, PEM.
    pub key_pem: SecretString,
}

/// Makes a CA, which is published together with the previous one, and a certificate for `host`, both for `life`.
pub fn make(host: &str, old_ca: &str, now: SystemTime, life: Duration) -> Result<Certificates, rcgen::Error> {
    let validity = |params: &mut CertificateParams| {
        (params.not_before, params.not_after) = ((now - SKEW).into(), (now + life).into());
    };
    let mut ca = CertificateParams::default();
    // Two CAs of one name would be confused with each other.
    let made = now.duration_since(UNIX_EPOCH).unwrap_or_default().as_millis();
    ca.distinguished_name.push(DnType::CommonName, format!("comity-agent {made}"));
    ca.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    ca.key_usages = vec![KeyUsagePurpose::KeyCertSign];
    validity(&mut ca);
    let ca_key = KeyPair::generate()?;
    let ca_pem = ca.self_signed(&ca_key)?.pem();
    let issuer = Issuer::new(ca, ca_key);

    let key = KeyPair::generate()?;
    let mut leaf = CertificateParams::new(vec![host.to_owned()])?;
    leaf.distinguished_name.push(DnType::CommonName, "comity-agent");
    leaf.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    leaf.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
    validity(&mut leaf);
    let chain_pem = leaf.signed_by(&key, &issuer)?.pem();
    let begin = "-----BEGIN CERTIFICATE-----";
    let published =
        old_ca.split_inclusive("-----END CERTIFICATE-----").filter(|pem| pem.contains(begin)).take(PUBLISHED_CAS - 1);
    let ca_pem = published.fold(ca_pem, |all, pem| format!("{all}{}\n", pem.trim()));
    Ok(Certificates { ca_pem, chain_pem, key_pem: SecretString::new(key.serialize_pem()) })
}

/// Checks, as a client that trusts `ca_pem` does, that a chain is for `host` and valid at a time.
///
/// # Errors
/// The reason for which the client would refuse it.
pub fn verify(chain_pem: &str, ca_pem: &str, host: &str, at: SystemTime) -> Result<(), String> {
    let certificates = |pem: &str| {
        let all: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem.as_bytes()).collect();
        all.map_err(|error| format!("a certificate cannot be read: {error}"))
    };
    let chain = certificates(chain_pem)?;
    let [server, intermediates @ ..] = &chain[..] else { return Err("there is no certificate".to_owned()) };
    let mut roots = rustls::RootCertStore::empty();
    roots.add_parsable_certificates(certificates(ca_pem)?);
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let verifier = WebPkiServerVerifier::builder_with_provider(Arc::new(roots), provider)
        .build()
        .map_err(|error| format!("the CA certificates cannot be used: {error}"))?;
    let name = ServerName::try_from(host).map_err(|_| format!("{host:?} is no host name"))?;
    let at = UnixTime::since_unix_epoch(at.duration_since(UNIX_EPOCH).unwrap_or_default());
    verifier.verify_server_cert(server, intermediates, &name, &[], at).map(drop).map_err(|error| error.to_string())
}

/// When the server's certificate ends, in seconds since 1970; `None` if it cannot be read.
#[must_use]
pub fn end_of(chain_pem: &str) -> Option<u64> {
    let server = CertificateDer::pem_slice_iter(chain_pem.as_bytes()).next()?.ok()?;
    let (_, server) = X509Certificate::from_der(&server).ok()?;
    u64::try_from(server.validity().not_after.timestamp()).ok()
}

/// TLS with `certificates`; with a `verifier`, clients must show a certificate.
///
/// # Errors
/// The part that cannot be used, and why.
pub fn server_config(
    certificates: &Certificates,
    verifier: Option<Arc<dyn ClientCertVerifier>>,
) -> Result<Arc<rustls::ServerConfig>, String> {
    let chain: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(certificates.chain_pem.as_bytes()).collect();
    let chain = chain.map_err(|error| format!("the certificate cannot be used: {error}"))?;
    // The cause is dropped, because it may quote the key.
    let key = PrivateKeyDer::from_pem_slice(certificates.key_pem.expose().as_bytes())
        .map_err(|_| "the private key cannot be used".to_owned())?;
    let config = rustls::ServerConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(|error| error.to_string())?;
    let config = match verifier {
        Some(verifier) => config.with_client_cert_verifier(verifier),
        None => config.with_no_client_auth(),
    };
    let config = config
        .with_single_cert(chain, key)
        .map_err(|_| "the certificate and the private key cannot be used together".to_owned())?;
    Ok(Arc::new(config))
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    #[test]
    fn a_new_ca_is_published_with_the_previous_one_only() {
        let now = SystemTime::now();
        let count = |pem: &str| pem.matches("BEGIN CERTIFICATE").count();
        let first = make("agent.comity-system.svc", "", now, LIFE).unwrap();
        let second = make("agent.comity-system.svc", &first.ca_pem, now + LIFE / 2, LIFE).unwrap();
        let third = make("agent.comity-system.svc", &second.ca_pem, now + LIFE, LIFE).unwrap();
        assert_eq!([count(&first.ca_pem), count(&second.ca_pem), count(&third.ca_pem)], [1, 2, 2]);
        assert!(second.ca_pem.contains(first.ca_pem.trim()) && !third.ca_pem.contains(first.ca_pem.trim()));
    }

    #[test]
    fn a_chain_is_verified_as_clients_do() {
        let now = SystemTime::now();
        let [own, others] = [(); 2].map(|()| make("10.0.0.1", "", now, LIFE).unwrap());
        assert_eq!(verify(&own.chain_pem, &own.ca_pem, "10.0.0.1", now), Ok(()));
        for (ca_pem, host, at) in [
            (&others.ca_pem, "10.0.0.1", now),
            (&own.ca_pem, "10.0.0.2", now),
            (&own.ca_pem, "10.0.0.1", now + LIFE + SKEW),
            (&String::new(), "10.0.0.1", now),
        ] {
            assert!(verify(&own.chain_pem, ca_pem, host, at).is_err(), "{host}");
        }
    }

    #[test]
    fn the_end_is_that_of_the_server_s_certificate() {
        let now = SystemTime::now();
        let made = make("10.0.0.1", "", now, LIFE).unwrap();
        let wanted = (now + LIFE).duration_since(UNIX_EPOCH).unwrap().as_secs();
        assert_eq!(end_of(&format!("{}{}", made.chain_pem, made.ca_pem)), Some(wanted));
        assert_eq!((end_of(""), end_of("nonsense")), (None, None));
    }

    #[test]
    fn a_key_that_is_not_the_certificate_s_is_refused() {
        let now = SystemTime::now();
        let good = make("agent.comity-system.svc", "", now, LIFE).unwrap();
        let other = make("agent.comity-system.svc", "", now, LIFE).unwrap();
        assert!(server_config(&good, None).is_ok());
        let mixed = Certificates { key_pem: other.key_pem, ..good };
        assert!(server_config(&mixed, None).unwrap_err().contains("together"));
        let nonsense = Certificates { key_pem: SecretString::new("nonsense".to_owned()), ..mixed };
        assert!(server_config(&nonsense, None).unwrap_err().contains("private key"));
    }
}
