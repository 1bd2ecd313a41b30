//! The federation's certificate authority: a root whose key stays offline, and the intermediates that brokers hold.
//!
//! The broker decides the content of a certificate. A CSR contributes only its public key, after its signature proved
//! that the requester holds the private key. Authorities have no name constraints, because some TLS verifiers refuse URI
//! constraints; [`crate::tls`] checks the trust domain instead, of members and of every intermediate.

use std::fmt;
use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rcgen::{
    CertificateParams, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair, KeyUsagePurpose, PublicKeyData,
    SubjectPublicKeyInfo,
};
use rustls_pki_types::{CertificateDer, UnixTime};
use thiserror::Error;
use zeroize::Zeroize;

use crate::atomic_file::{self, FileError};
use crate::host_name::HostName;
use crate::identity::{
    AuthorityFacts, BACKDATE, IdentityError, IdentityPem, PEM_MAX_BYTES, RootHash, Roots, TlsIdentity, dropped_root,
    parse_chain, returning_roots,
};
use crate::private_files::{self, NotPrivate};
use crate::spiffe::{SpiffeId, TrustDomain};

mod authority_copy;
mod authority_files;
mod csr;
mod live_authority;
mod root_authority;
mod template;

pub use csr::{CsrDer, KeyAndCsr};
pub use live_authority::LiveAuthority;
pub use root_authority::{MAX_INTERMEDIATE_VALIDITY, PreviousRoot, RootAuthority};

/// The longest lifetime that [`CertificateAuthority::issue`] grants.
pub const MAX_VALIDITY: Duration = Duration::from_secs(90 * 24 * 3600);
/// Validity of an intermediate unless another one is asked for.
pub const DEFAULT_INTERMEDIATE_VALIDITY: Duration = Duration::from_secs(90 * 24 * 3600);
/// DNS names and addresses in one certificate, at most.
pub const MAX_NAMES: usize = 16;

/// Certificates from an intermediate up to the root, without it, at most.
const MAX_INTERMEDIATES: usize = 3;
/// An intermediate that ends sooner signs nothing more.
const SHORTEST_VALIDITY: Duration = Duration::from_secs(1);

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
    /// A replacement is the authority of another federation.
    #[error("the authority is of trust domain '{found}', and this broker's of '{expected}': install one of that")]
    OtherAuthority {
        /// Trust domain of the replacement.
        found: TrustDomain,
        /// Trust domain of the broker.
        expected: TrustDomain,
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
    /// The requested lifetime of an intermediate is out of range.
    #[error(
        "validity {}s of an intermediate is out of range: want 1 second to {} days",
        .wanted.as_secs(),
        MAX_INTERMEDIATE_VALIDITY.as_secs() / 86_400
    )]
    IntermediateValidity {
        /// The requested lifetime.
        wanted: Duration,
    },
    /// The root expires before the intermediate would.
    #[error("the root certificate expires before the intermediate would: give it fewer days, or make the next root")]
    RootEnds,
    /// The intermediate has expired.
    #[error(
        "the intermediate of this broker ended at {}: make the next one with `comity-broker ca intermediate` and \
         install it with `comity-broker ca install`",
        utc(*.not_after)
    )]
    IntermediateEnded {
        /// End of its validity.
        not_after: SystemTime,
    },
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
    /// Other users can read or change a private key.
    #[error(transparent)]
    NotPrivate(#[from] NotPrivate),
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
    /// The certificate, its intermediates, then the roots, in which a joining agent finds the pinned hash.
    pub chain_pem: String,
    /// Serial number in hex, for the audit log.
    pub serial: String,
    /// Start of the validity.
    pub not_before: SystemTime,
    /// End of the validity.
    pub not_after: SystemTime,
}

/// An intermediate with its key, and the roots that members trust. Every broker has one; the key never enters Raft.
pub struct CertificateAuthority {
    issuer: Issuer<'static, KeyPair>,
    /// The intermediate first.
    chain: Vec<CertificateDer<'static>>,
    chain_pem: String,
    root_pem: String,
    roots: Roots,
    root_sha256: RootHash,
    not_before: SystemTime,
    not_after: SystemTime,
}

impl CertificateAuthority {
    /// Checks that members of the federation accept what the intermediate signs: exactly as they check it.
    fn assemble(chain_pem: String, key: KeyPair, root_pem: String) -> Result<Self, CaError> {
        let fail = |reason: String| CaError::Identity(IdentityError::Certificate { reason });
        let (chain_pem, root_pem) = (ends_with_newline(chain_pem), ends_with_newline(root_pem));
        let chain = parse_chain("intermediate", &chain_pem)?;
        let intermediate = chain.first().ok_or_else(|| fail("tls.crt holds no certificate".to_owned()))?;
        if chain.len() > MAX_INTERMEDIATES {
            return Err(fail(format!("tls.crt holds {} certificates, at most {MAX_INTERMEDIATES} fit", chain.len())));
        }
        let facts = AuthorityFacts::of(intermediate)?;
        let trust_domain = facts.trust_domain.clone().ok_or_else(|| {
            let want =
                "the intermediate in tls.crt names no trust domain: want the URI spiffe://DOMAIN among its names";
            fail(want.to_owned())
        })?;
        check_key(intermediate, &key, "tls.key is not the key of the first certificate in tls.crt")?;
        let roots = Roots::from_pem(&root_pem, &trust_domain)?;
        let issuer = Issuer::from_ca_cert_der(intermediate, key).map_err(CaError::encoding)?;
        let root_sha256 = signing_root(&issuer, &chain, &roots)?;
        let AuthorityFacts { not_before, not_after, .. } = facts;
        Ok(Self { issuer, chain, chain_pem, root_pem, roots, root_sha256, not_before, not_after })
    }

    /// The trust domain of the federation.
    pub const fn trust_domain(&self) -> &TrustDomain {
        self.roots.trust_domain()
    }

    /// The trusted root certificates as PEM.
    pub fn root_pem(&self) -> &str {
        &self.root_pem
    }

    /// The trusted roots, for verifiers.
    pub const fn roots(&self) -> &Roots {
        &self.roots
    }

    /// The hash of the root above the intermediate, which join tokens pin.
    pub const fn root_sha256(&self) -> RootHash {
        self.root_sha256
    }

    /// Start of the intermediate's validity.
    #[must_use]
    pub const fn not_before(&self) -> SystemTime {
        self.not_before
    }

    /// End of the intermediate's validity. No certificate that it signs lives longer.
    #[must_use]
    pub const fn not_after(&self) -> SystemTime {
        self.not_after
    }

    /// When the next intermediate is due: after two thirds of this one's lifetime.
    #[must_use]
    pub fn renew_at(&self) -> SystemTime {
        let lifetime = self.not_after.duration_since(self.not_before).unwrap_or_default();
        self.not_before + lifetime * 2 / 3
    }

    /// Whether another authority has the same intermediate and roots.
    #[must_use]
    pub fn is_same_as(&self, other: &Self) -> bool {
        self.chain == other.chain && self.roots.hashes().eq(other.roots.hashes())
    }

    /// The newest root of another authority, if members that trust it would refuse what this one issues.
    #[must_use]
    pub fn dropped_root(&self, earlier: &Self) -> Option<RootHash> {
        dropped_root(&earlier.roots, &self.roots, &self.chain, self.not_before)
    }

    /// Roots that this authority trusts and the earlier one does not, although they begin before its newest root: trust
    /// in them would begin again.
    #[must_use]
    pub fn returning_roots(&self, earlier: &Self) -> Vec<RootHash> {
        returning_roots(&earlier.roots, &self.roots)
    }

    /// Whether this authority issued an identity, with the intermediates and roots that it has now.
    #[must_use]
    pub fn has_issued(&self, identity: &TlsIdentity) -> bool {
        identity.intermediates_and_roots().starts_with(&self.chain) && identity.roots().hashes().eq(self.roots.hashes())
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
        if validity < SHORTEST_VALIDITY || validity > MAX_VALIDITY {
            return Err(CaError::Validity { wanted: validity });
        }
        if now + SHORTEST_VALIDITY > self.not_after {
            return Err(CaError::IntermediateEnded { not_after: self.not_after });
        }
        let (not_before, not_after) = (now - BACKDATE, (now + validity).min(self.not_after));
        let serial = template::serial_of(generation);
        let issued = IssuedCertificate {
            chain_pem: String::new(),
            serial: hex::encode(serial.to_bytes()),
            not_before,
            not_after,
        };
        let mut params = CertificateParams::default();
        params.distinguished_name = template::common_name(&template::subject(id.kind()));
        params.subject_alt_names = template::host_names(hosts)?;
        params.subject_alt_names.push(template::uri_name(&id.to_string())?);
        params.is_ca = IsCa::ExplicitNoCa;
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth, ExtendedKeyUsagePurpose::ServerAuth];
        params.serial_number = Some(serial);
        params.use_authority_key_identifier_extension = true;
        template::set_validity(&mut params, not_before, not_after);
        Ok((params, issued))
    }

    fn sign(
        &self,
        params: &CertificateParams,
        key: &SubjectPublicKeyInfo,
        issued: IssuedCertificate,
    ) -> Result<IssuedCertificate, CaError> {
        let leaf = params.signed_by(key, &self.issuer).map_err(CaError::encoding)?;
        let chain_pem = format!("{}{}{}", leaf.pem(), self.chain_pem, self.root_pem);
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

/// The hash of the first root that accepts what the issuer signs.
fn signing_root(
    issuer: &Issuer<'static, KeyPair>,
    chain: &[CertificateDer<'static>],
    roots: &Roots,
) -> Result<RootHash, CaError> {
    let begins = |certificate| AuthorityFacts::of(certificate).map(|facts| facts.not_before);
    let mut at = UNIX_EPOCH;
    for certificate in chain {
        at = at.max(begins(certificate)?);
    }
    let mut params = CertificateParams::default();
    params.subject_alt_names =
        vec![template::uri_name(&SpiffeId::broker(roots.trust_domain().clone(), 1).to_string())?];
    params.serial_number = Some(template::serial_of(0));
    template::set_validity(&mut params, at, at + Duration::from_secs(60));
    let signed = params.signed_by(issuer.key(), issuer).map_err(CaError::encoding)?;
    let at = UnixTime::since_unix_epoch(at.duration_since(UNIX_EPOCH).unwrap_or_default());
    let mut refused = String::new();
    for (root, sha256) in roots.each().zip(roots.hashes()) {
        match root.verify_server(signed.der(), &roots.authorities(chain), at) {
            Ok(()) => return Ok(sha256),
            Err(error) => refused = error.to_string(),
        }
    }
    let reason = format!(
        "tls.crt does not lead to a root in ca.crt ({refused}): put the authority that signed the intermediate into \
         ca.crt; certificates between them must name spiffe://{} too",
        roots.trust_domain()
    );
    Err(IdentityError::Certificate { reason }.into())
}

fn check_key(certificate: &CertificateDer<'_>, key: &KeyPair, mismatch: &str) -> Result<(), CaError> {
    if csr::public_key(certificate)? == key.subject_public_key_info() {
        return Ok(());
    }
    Err(IdentityError::Certificate { reason: mismatch.to_owned() }.into())
}

fn read_text(path: &Path) -> Result<String, CaError> {
    let bytes = atomic_file::read_bounded(path, PEM_MAX_BYTES)?;
    String::from_utf8(bytes).map_err(|_| {
        let source = std::io::Error::new(std::io::ErrorKind::InvalidData, "it is not text");
        FileError { operation: "read", path: path.to_owned(), source }.into()
    })
}

/// Reads a private key. Refuses one that other users can read or change: any of them could issue every identity.
fn read_key(path: &Path) -> Result<KeyPair, CaError> {
    private_files::check(path)?;
    let mut pem = read_text(path)?;
    let key = parse_key(&pem, &path.display().to_string());
    pem.zeroize();
    key
}

/// Parses a private key. `place` names it in errors, which never quote it.
fn parse_key(pem: &str, place: &str) -> Result<KeyPair, CaError> {
    let reason = format!("{place}: want a PKCS #8 'PRIVATE KEY' block of an ECDSA, Ed25519 or RSA key");
    KeyPair::from_pem(pem).map_err(|_| IdentityError::Pem { label: "private key", reason }.into())
}

fn ends_with_newline(mut pem: String) -> String {
    if !pem.ends_with('\n') {
        pem.push('\n');
    }
    pem
}

/// A time to the second: "2026-11-22 18:40:07 UTC".
fn utc(time: SystemTime) -> String {
    let time = jiff::Timestamp::try_from(time).unwrap_or(jiff::Timestamp::MAX);
    time.strftime("%F %T UTC").to_string()
}

#[cfg(test)]
mod authority_tests;
