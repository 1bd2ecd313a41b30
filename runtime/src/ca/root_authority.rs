//! The root of a federation. Its key stays offline: brokers hold intermediates, which it signs.
//!
//! A root that succeeds another one is also signed by it. Chains through this cross certificate are accepted by
//! everybody who knows the old root only, so that the federation moves to the new one without a pause.

use std::fmt;
use std::path::Path;
use std::time::{Duration, SystemTime};

use rcgen::{Issuer, KeyPair};

use super::{CaError, CertificateAuthority, DEFAULT_INTERMEDIATE_VALIDITY, template};
use crate::atomic_file::{self, PRIVATE, PUBLIC};
use crate::identity::{AuthorityFacts, IdentityError, RootHash, parse_chain};
use crate::secret::SecretString;
use crate::spiffe::TrustDomain;

/// The longest validity of an intermediate.
pub const MAX_INTERMEDIATE_VALIDITY: Duration = Duration::from_secs(365 * 24 * 3600);

const ROOT_VALIDITY: Duration = Duration::from_secs(10 * 365 * 24 * 3600);
/// How long before their issue the certificates of authorities begin: longer than clocks are apart, and longer than
/// those of members, which no broker would otherwise accept whose clock is slow.
const AUTHORITY_BACKDATE: Duration = Duration::from_secs(24 * 3600);
/// Certificates tell times to the second.
const RESOLUTION: Duration = Duration::from_secs(1);
/// A root signs its successor, which signs intermediates, which sign members.
const BELOW_ROOT: u8 = 2;
const BELOW_SUCCESSOR: u8 = 1;

const ROOT_FILE: &str = "root.pem";
const ROOT_KEY_FILE: &str = "root-key.pem";
const PREVIOUS_FILE: &str = "previous-root.pem";
const CROSS_FILE: &str = "cross.pem";

/// Whether clients that know only the previous root accept an intermediate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PreviousRoot {
    /// They do, and members trust both roots.
    Trusted,
    /// They do not, and members trust the new root alone.
    Dropped,
}

/// The root that another one succeeds.
struct Previous {
    root_pem: String,
    /// The successor's certificate, signed by the previous root.
    cross_pem: String,
}

/// A root certificate with its private key.
pub struct RootAuthority {
    issuer: Issuer<'static, KeyPair>,
    root_pem: String,
    trust_domain: TrustDomain,
    sha256: RootHash,
    not_before: SystemTime,
    not_after: SystemTime,
    previous: Option<Previous>,
}

impl RootAuthority {
    /// Creates a root that is valid for ten years.
    ///
    /// # Errors
    /// [`CaError::Encoding`] if the library cannot create the certificate.
    pub fn create(trust_domain: TrustDomain, now: SystemTime) -> Result<Self, CaError> {
        let key = KeyPair::generate().map_err(CaError::encoding)?;
        let validity = (now - AUTHORITY_BACKDATE, now + ROOT_VALIDITY);
        let params = template::authority_params(&trust_domain, "root", BELOW_ROOT, validity)?;
        let root = params.self_signed(&key).map_err(CaError::encoding)?;
        Self::assemble(root.pem(), key, None)
    }

    /// Creates a root that takes over from this one. It begins later, whatever the clock says: members know by that
    /// which of two roots is the newest.
    ///
    /// # Errors
    /// Like [`create`](Self::create).
    pub fn successor(&self, now: SystemTime) -> Result<Self, CaError> {
        let key = KeyPair::generate().map_err(CaError::encoding)?;
        let begin = (now - AUTHORITY_BACKDATE).max(self.not_before + RESOLUTION);
        let end = now + ROOT_VALIDITY;
        let mut params = template::authority_params(&self.trust_domain, "root", BELOW_ROOT, (begin, end))?;
        let root = params.self_signed(&key).map_err(CaError::encoding)?;
        params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Constrained(BELOW_SUCCESSOR));
        params.serial_number = Some(template::serial_of(0));
        template::set_validity(&mut params, begin, end.min(self.not_after));
        let cross = params.signed_by(&key, &self.issuer).map_err(CaError::encoding)?;
        let previous = Previous { root_pem: self.root_pem.clone(), cross_pem: cross.pem() };
        Self::assemble(root.pem(), key, Some(previous))
    }

    /// Signs an intermediate with a new key.
    ///
    /// # Errors
    /// [`CaError::IntermediateValidity`] or [`CaError::RootEnds`] if `validity` is out of range.
    pub fn intermediate(
        &self,
        validity: Duration,
        previous_root: PreviousRoot,
        now: SystemTime,
    ) -> Result<CertificateAuthority, CaError> {
        if validity < Duration::from_secs(1) || validity > MAX_INTERMEDIATE_VALIDITY {
            return Err(CaError::IntermediateValidity { wanted: validity });
        }
        if now + validity > self.not_after {
            return Err(CaError::RootEnds);
        }
        let key = KeyPair::generate().map_err(CaError::encoding)?;
        let validity = (now - AUTHORITY_BACKDATE, now + validity);
        let params = template::authority_params(&self.trust_domain, "intermediate", 0, validity)?;
        let certificate = params.signed_by(&key, &self.issuer).map_err(CaError::encoding)?;
        let (mut chain_pem, mut root_pem) = (certificate.pem(), self.root_pem.clone());
        if let (Some(previous), PreviousRoot::Trusted) = (&self.previous, previous_root) {
            chain_pem.push_str(&previous.cross_pem);
            root_pem.push_str(&previous.root_pem);
        }
        CertificateAuthority::assemble(chain_pem, key, root_pem)
    }

    /// Reads a root from its directory.
    ///
    /// # Errors
    /// [`CaError`] if a file is missing, or they do not belong together.
    pub fn load(dir: &Path) -> Result<Self, CaError> {
        let root_pem = super::read_text(&dir.join(ROOT_FILE))?;
        let key = super::read_key(&dir.join(ROOT_KEY_FILE))?;
        let previous = if dir.join(PREVIOUS_FILE).exists() {
            let root_pem = super::read_text(&dir.join(PREVIOUS_FILE))?;
            Some(Previous { root_pem, cross_pem: super::read_text(&dir.join(CROSS_FILE))? })
        } else {
            None
        };
        Self::assemble(root_pem, key, previous)
    }

    /// Writes the root into a directory (mode 0700, the key 0600).
    ///
    /// # Errors
    /// [`CaError::File`]. Never replaces an existing root, because all certificates of its federation depend on it.
    pub fn save(&self, dir: &Path) -> Result<(), CaError> {
        atomic_file::create_private_dir(dir)?;
        let key = SecretString::new(self.issuer.key().serialize_pem());
        // The key comes last: a crash in between leaves files without a key, which are of no use and may be replaced.
        if !Self::exists(dir) {
            if let Some(previous) = &self.previous {
                atomic_file::write(&dir.join(CROSS_FILE), previous.cross_pem.as_bytes(), PUBLIC)?;
                atomic_file::write(&dir.join(PREVIOUS_FILE), previous.root_pem.as_bytes(), PUBLIC)?;
            }
            atomic_file::write(&dir.join(ROOT_FILE), self.root_pem.as_bytes(), PUBLIC)?;
        }
        atomic_file::write_new(&dir.join(ROOT_KEY_FILE), key.expose().as_bytes(), PRIVATE)?;
        Ok(())
    }

    /// Whether the directory has a root with its key.
    #[must_use]
    pub fn exists(dir: &Path) -> bool {
        dir.join(ROOT_KEY_FILE).exists()
    }

    fn assemble(root_pem: String, key: KeyPair, previous: Option<Previous>) -> Result<Self, CaError> {
        let fail = |reason: &str| IdentityError::Certificate { reason: reason.to_owned() };
        let certificates = parse_chain("root certificate", &root_pem)?;
        let [certificate] = certificates.as_slice() else {
            return Err(fail("root.pem must hold exactly one certificate").into());
        };
        let facts = AuthorityFacts::of(certificate)?;
        let trust_domain = facts.trust_domain.ok_or_else(|| fail("root.pem names no trust domain"))?;
        super::check_key(certificate, &key, "root-key.pem is not the key of root.pem")?;
        let issuer = Issuer::from_ca_cert_pem(&root_pem, key).map_err(CaError::encoding)?;
        let sha256 = RootHash::of(certificate);
        let (not_before, not_after) = (facts.not_before, facts.not_after);
        Ok(Self { issuer, root_pem, trust_domain, sha256, not_before, not_after, previous })
    }

    /// The trust domain of the federation.
    #[must_use]
    pub const fn trust_domain(&self) -> &TrustDomain {
        &self.trust_domain
    }

    /// The hash of the root certificate.
    #[must_use]
    pub const fn sha256(&self) -> RootHash {
        self.sha256
    }

    /// End of the root's validity.
    #[must_use]
    pub const fn not_after(&self) -> SystemTime {
        self.not_after
    }
}

impl CertificateAuthority {
    /// A root with one intermediate. The root's key is discarded, so that the authority cannot be renewed: for
    /// federations that end with their process.
    ///
    /// # Errors
    /// [`CaError::Encoding`] if the library cannot create the certificates.
    pub fn create(trust_domain: TrustDomain, now: SystemTime) -> Result<Self, CaError> {
        RootAuthority::create(trust_domain, now)?.intermediate(
            DEFAULT_INTERMEDIATE_VALIDITY,
            PreviousRoot::Trusted,
            now,
        )
    }
}

impl fmt::Debug for RootAuthority {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RootAuthority").field("trust_domain", &self.trust_domain).finish_non_exhaustive()
    }
}
