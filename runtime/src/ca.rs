//! The federation's certificate authority.
//!
//! The broker decides the content of a certificate. A CSR contributes only its public key, after its signature proved
//! that the requester holds the private key. The root has no name constraints, because some TLS verifiers refuse URI
//! constraints; [`crate::tls`] checks the trust domain instead.

use std::fmt;
use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose, PublicKeyData, SanType, SerialNumber, SubjectPublicKeyInfo,
};
use sha2::{Digest as _, Sha256};
use thiserror::Error;
use zeroize::Zeroize;

use crate::atomic_file::{self, FileError, PRIVATE, PUBLIC};
use crate::entropy::{Entropy, SystemEntropy};
use crate::host_name::HostName;
use crate::identity::{BACKDATE, IdentityError, IdentityPem, PEM_MAX_BYTES, RootHash, Roots, serial_prefix};
use crate::secret::{Secret, SecretString};
use crate::spiffe::{SpiffeId, SpiffeKind, TrustDomain};

mod authority_copy;
mod csr;

pub use csr::{CsrDer, KeyAndCsr};

/// The longest lifetime that [`CertificateAuthority::issue`] grants.
pub const MAX_VALIDITY: Duration = Duration::from_secs(90 * 24 * 3600);
/// DNS names and addresses in one certificate, at most.
pub const MAX_NAMES: usize = 16;

const ROOT_VALIDITY: Duration = Duration::from_secs(10 * 365 * 24 * 3600);
const ROOT_FILE: &str = "ca.pem";
const KEY_FILE: &str = "ca-key.pem";
/// Characters of a common name, at most (X.520).
const COMMON_NAME_MAX_CHARS: usize = 64;

/// Why the authority issued no certificate, or could not be loaded or saved.
#[derive(Debug, Error)]
pub enum CaError {
    /// The CSR is larger than [`CsrDer::MAX_BYTES`].
    #[error("csr has {bytes} bytes; at most {} are allowed", CsrDer::MAX_BYTES)]
    CsrTooLarge {
        /// Size of the CSR.
        bytes: usize,
    },
    /// The CSR is not DER of a PKCS #10 request.
    #[error("csr is not a PKCS #10 certificate signing request in DER: {reason}")]
    CsrMalformed {
        /// The error.
        reason: String,
    },
    /// The CSR is not signed by the key in it.
    #[error("csr is not signed by the key it carries: sign it with the private key of that public key")]
    CsrSignature,
    /// The key of the CSR has an unsupported algorithm.
    #[error("csr has a key of an unsupported algorithm: use ECDSA P-256, P-384 or Ed25519")]
    KeyAlgorithm,
    /// The id belongs to another federation.
    #[error("cannot issue a certificate for '{id}': this authority is of trust domain '{trust_domain}'")]
    OtherTrustDomain {
        /// The requested id.
        id: SpiffeId,
        /// Trust domain of the authority.
        trust_domain: TrustDomain,
    },
    /// The requested lifetime is out of range.
    #[error(
        "validity {}s is out of range: want 1 second to {} days",
        .wanted.as_secs(),
        MAX_VALIDITY.as_secs() / 86_400
    )]
    Validity {
        /// The requested lifetime.
        wanted: Duration,
    },
    /// The root expires before the certificate would.
    #[error("the federation's root certificate expires too soon: create a new authority and join again")]
    RootEnds,
    /// Too many host names.
    #[error("host names are refused: {reason}")]
    Names {
        /// The error.
        reason: String,
    },
    /// Key and root do not belong together, or one is unreadable.
    #[error(transparent)]
    Identity(#[from] IdentityError),
    /// A file could not be read or written.
    #[error(transparent)]
    File(#[from] FileError),
    /// The certificate library failed.
    #[error("cannot make the certificate: {reason}")]
    Encoding {
        /// Error of the library.
        reason: String,
    },
}

impl CaError {
    fn encoding(error: impl fmt::Display) -> Self {
        Self::Encoding { reason: error.to_string() }
    }
}

/// A newly issued certificate.
#[derive(Debug, Clone)]
pub struct IssuedCertificate {
    /// The certificate, then the root, in which a joining agent finds the pinned hash.
    pub chain_pem: String,
    /// Serial number in hex, for the audit log.
    pub serial: String,
    /// Start of the validity.
    pub not_before: SystemTime,
    /// End of the validity.
    pub not_after: SystemTime,
}

/// A root certificate and its key. Every broker has a copy; the key never enters Raft.
pub struct CertificateAuthority {
    issuer: Issuer<'static, KeyPair>,
    root_pem: String,
    roots: Roots,
    root_not_after: SystemTime,
}

impl CertificateAuthority {
    /// The path of the authority's key in its directory.
    #[must_use]
    pub fn key_file(dir: &Path) -> std::path::PathBuf {
        dir.join(KEY_FILE)
    }

    /// Creates an authority that is valid for ten years.
    ///
    /// # Errors
    /// [`CaError::Encoding`] if the library cannot create the certificate.
    pub fn create(trust_domain: TrustDomain, now: SystemTime) -> Result<Self, CaError> {
        let key = KeyPair::generate().map_err(CaError::encoding)?;
        let mut params = CertificateParams::default();
        params.distinguished_name = common_name(&format!("comity {trust_domain}"));
        params.subject_alt_names = vec![uri_name(&format!("spiffe://{trust_domain}"))?];
        params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        params.serial_number = Some(serial_of(0));
        set_validity(&mut params, now - BACKDATE, now + ROOT_VALIDITY);
        let root = params.self_signed(&key).map_err(CaError::encoding)?;
        Self::assemble(root.pem(), key)
    }

    /// Reads an authority from `ca.pem` and `ca-key.pem`.
    ///
    /// # Errors
    /// [`CaError`] if a file is missing, or they do not belong together.
    pub fn load(dir: &Path) -> Result<Self, CaError> {
        let root_pem = read_text(&dir.join(ROOT_FILE))?;
        let mut key_pem = read_text(&dir.join(KEY_FILE))?;
        let key = KeyPair::from_pem(&key_pem);
        key_pem.zeroize();
        // Drops the library's message, which may quote the key.
        let key = key.map_err(|_| IdentityError::Pem {
            label: "private key",
            reason: format!("{}: want a PKCS #8 'PRIVATE KEY' block", dir.join(KEY_FILE).display()),
        })?;
        Self::assemble(root_pem, key)
    }

    /// Writes `ca.pem` and `ca-key.pem` (mode 0600).
    ///
    /// # Errors
    /// [`CaError::File`]. Never replaces an existing authority, because all certificates of its federation depend on
    /// it.
    pub fn save(&self, dir: &Path) -> Result<(), CaError> {
        atomic_file::create_private_dir(dir)?;
        let key = SecretString::new(self.issuer.key().serialize_pem());
        // The key comes last. A crash in between leaves a root without key, which is useless and may be replaced.
        if !dir.join(KEY_FILE).exists() {
            atomic_file::write(&dir.join(ROOT_FILE), self.root_pem.as_bytes(), PUBLIC)?;
        }
        atomic_file::write_new(&dir.join(KEY_FILE), key.expose().as_bytes(), PRIVATE)?;
        Ok(())
    }

    /// Whether the directory has an authority.
    pub fn exists(dir: &Path) -> bool {
        dir.join(KEY_FILE).exists()
    }

    fn assemble(root_pem: String, key: KeyPair) -> Result<Self, CaError> {
        let roots = Roots::from_pem(&root_pem)?;
        let (spki, root_not_after) = csr::root_key_and_expiry(&root_pem)?;
        if spki != key.subject_public_key_info() {
            let reason = "ca-key.pem is not the key of ca.pem".to_owned();
            return Err(IdentityError::Certificate { reason }.into());
        }
        let issuer = Issuer::from_ca_cert_pem(&root_pem, key).map_err(CaError::encoding)?;
        Ok(Self { issuer, root_pem, roots, root_not_after })
    }

    /// The trust domain of the federation.
    pub const fn trust_domain(&self) -> &TrustDomain {
        self.roots.trust_domain()
    }

    /// The root certificate as PEM.
    pub fn root_pem(&self) -> &str {
        &self.root_pem
    }

    /// The root, for verifiers.
    pub const fn roots(&self) -> &Roots {
        &self.roots
    }

    /// The hash that join tokens pin.
    pub fn root_sha256(&self) -> RootHash {
        self.roots.sha256()
    }

    /// Issues a certificate for the public key of a CSR and for `id`. Ignores the names in the CSR. The certificate
    /// carries `generation`, the number of revocations before it, in its serial number: a later revocation of `id`
    /// voids it.
    ///
    /// # Errors
    /// [`CaError`] if the CSR does not prove possession of its key, or another argument is out of bounds.
    pub fn issue(
        &self,
        csr: &CsrDer,
        id: &SpiffeId,
        hosts: &[HostName],
        validity: Duration,
        now: SystemTime,
        generation: u64,
    ) -> Result<IssuedCertificate, CaError> {
        let key = csr.verified_key()?;
        let (params, issued) = self.leaf_params(id, hosts, validity, now, generation)?;
        self.sign(&params, &key, issued)
    }

    /// Creates a key and issues its certificate in generation 0: for brokers, whose certificates no revocation voids,
    /// and for users who were never revoked.
    ///
    /// # Errors
    /// Like [`issue`](Self::issue).
    pub fn new_identity(
        &self,
        id: &SpiffeId,
        hosts: &[HostName],
        validity: Duration,
        now: SystemTime,
    ) -> Result<IdentityPem, CaError> {
        let request = KeyAndCsr::generate()?;
        let issued = self.issue(&request.csr, id, hosts, validity, now, 0)?;
        Ok(IdentityPem { key: request.key_pem, chain: issued.chain_pem, ca: self.root_pem.clone() })
    }

    /// A secret that only holders of the authority's key can compute, equal on every broker: SHA-256 over the
    /// length-prefixed purpose, key and parts.
    pub fn derive_secret(&self, purpose: &str, parts: &[&[u8]]) -> Secret<[u8; 32]> {
        let mut key = self.issuer.key().serialize_der();
        let mut hash = Sha256::new();
        for part in [purpose.as_bytes(), &key].into_iter().chain(parts.iter().copied()) {
            hash.update(u64::try_from(part.len()).unwrap_or(u64::MAX).to_be_bytes());
            hash.update(part);
        }
        key.zeroize();
        Secret::new(hash.finalize().into())
    }

    fn leaf_params(
        &self,
        id: &SpiffeId,
        hosts: &[HostName],
        validity: Duration,
        now: SystemTime,
        generation: u64,
    ) -> Result<(CertificateParams, IssuedCertificate), CaError> {
        if id.trust_domain() != self.trust_domain() {
            let trust_domain = self.trust_domain().clone();
            return Err(CaError::OtherTrustDomain { id: id.clone(), trust_domain });
        }
        if validity < Duration::from_secs(1) || validity > MAX_VALIDITY {
            return Err(CaError::Validity { wanted: validity });
        }
        let (not_before, not_after) = (now - BACKDATE, now + validity);
        if not_after > self.root_not_after {
            return Err(CaError::RootEnds);
        }
        let serial = serial_of(generation);
        let issued = IssuedCertificate {
            chain_pem: String::new(),
            serial: hex::encode(serial.to_bytes()),
            not_before,
            not_after,
        };
        let mut params = CertificateParams::default();
        params.distinguished_name = common_name(&subject(id.kind()));
        params.subject_alt_names = host_names(hosts)?;
        params.subject_alt_names.push(uri_name(&id.to_string())?);
        params.is_ca = IsCa::ExplicitNoCa;
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth, ExtendedKeyUsagePurpose::ServerAuth];
        params.serial_number = Some(serial);
        params.use_authority_key_identifier_extension = true;
        set_validity(&mut params, not_before, not_after);
        Ok((params, issued))
    }

    fn sign(
        &self,
        params: &CertificateParams,
        key: &SubjectPublicKeyInfo,
        issued: IssuedCertificate,
    ) -> Result<IssuedCertificate, CaError> {
        let leaf = params.signed_by(key, &self.issuer).map_err(CaError::encoding)?;
        let chain_pem = format!("{}{}", leaf.pem(), self.root_pem);
        Ok(IssuedCertificate { chain_pem, ..issued })
    }
}

impl fmt::Debug for CertificateAuthority {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CertificateAuthority")
            .field("trust_domain", self.trust_domain())
            .field("root_sha256", &self.root_sha256())
            .finish_non_exhaustive()
    }
}

fn read_text(path: &Path) -> Result<String, CaError> {
    let bytes = atomic_file::read_bounded(path, PEM_MAX_BYTES)?;
    String::from_utf8(bytes).map_err(|_| {
        let source = std::io::Error::new(std::io::ErrorKind::InvalidData, "it is not text");
        FileError { operation: "read", path: path.to_owned(), source }.into()
    })
}

fn subject(kind: &SpiffeKind) -> String {
    match kind {
        SpiffeKind::Broker(node) => format!("broker {node}"),
        SpiffeKind::Cluster(cluster) => format!("cluster {cluster}"),
        SpiffeKind::User(user) => format!("user {user}"),
    }
}

fn common_name(text: &str) -> DistinguishedName {
    let mut name = DistinguishedName::new();
    name.push(DnType::CommonName, text.chars().take(COMMON_NAME_MAX_CHARS).collect::<String>());
    name
}

fn uri_name(uri: &str) -> Result<SanType, CaError> {
    uri.try_into().map(SanType::URI).map_err(CaError::encoding)
}

fn host_names(hosts: &[HostName]) -> Result<Vec<SanType>, CaError> {
    if hosts.len() > MAX_NAMES {
        let reason = format!("{} given, at most {MAX_NAMES} are allowed", hosts.len());
        return Err(CaError::Names { reason });
    }
    let name = |host: &HostName| match host.ip() {
        Some(ip) => Ok(SanType::IpAddress(ip)),
        None => host.dns().unwrap_or_default().try_into().map(SanType::DnsName).map_err(CaError::encoding),
    };
    hosts.iter().map(name).collect()
}

/// A serial number: positive, as X.509 requires; the generation and 64 random bits make it unique.
fn serial_of(generation: u64) -> SerialNumber {
    let mut random = [0; 8];
    SystemEntropy.fill(&mut random);
    SerialNumber::from_slice(&[serial_prefix(generation), random].concat())
}

fn set_validity(params: &mut CertificateParams, from: SystemTime, until: SystemTime) {
    let epoch = rcgen::date_time_ymd(1970, 1, 1);
    let since_epoch = |t: SystemTime| t.duration_since(UNIX_EPOCH).unwrap_or_default();
    params.not_before = epoch + since_epoch(from);
    params.not_after = epoch + since_epoch(until);
}

#[cfg(test)]
mod authority_tests;
