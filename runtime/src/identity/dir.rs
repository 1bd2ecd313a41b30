//! An identity on disk: `key.pem` (0600), `cert.pem`, `ca.pem`.
//!
//! A save writes the new key and certificate as `key.next.pem` and `cert.next.pem`, then renames them, key first. A
//! load that finds the new key with the old certificate finishes the second rename. All calls block on the disk.

use std::path::{Path, PathBuf};
use std::{fs, io};

use super::{IdentityError, IdentityPem, IdentitySource, PEM_MAX_BYTES, Roots, TlsIdentity, succession};
use crate::atomic_file::{self, FileError, PRIVATE, PUBLIC};
use crate::secret::SecretString;

/// A directory with one identity. Only one process may write it.
#[derive(Debug, Clone)]
pub struct IdentityDir {
    path: PathBuf,
}

impl IdentityDir {
    /// Names the directory without reading it.
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self { path: path.into() }
    }

    /// The path of the directory.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The path of the private key.
    #[must_use]
    pub fn key_file(&self) -> PathBuf {
        self.file("key.pem")
    }

    /// Whether the directory has an identity.
    pub fn exists(&self) -> bool {
        self.file("ca.pem").exists() && self.file("cert.pem").exists() && self.file("key.pem").exists()
    }

    /// Reads the federation's root certificates.
    ///
    /// # Errors
    /// Like [`load`](Self::load).
    pub fn roots(&self) -> Result<Roots, IdentityError> {
        Ok(self.load()?.1.roots().clone())
    }

    /// Reads and validates the identity. Finishes a save that a crash interrupted.
    ///
    /// # Errors
    /// [`IdentityError`] if a file is missing, unreadable, or does not belong to the others.
    pub fn load(&self) -> Result<(IdentityPem, TlsIdentity), IdentityError> {
        let pem = IdentityPem {
            key: SecretString::new(self.read_text("key.pem")?),
            chain: self.read_text("cert.pem")?,
            ca: self.read_text("ca.pem")?,
        };
        self.check_files(&pem)?;
        match TlsIdentity::from_pem(&pem) {
            Ok(identity) => Ok((pem, identity)),
            Err(mismatch @ IdentityError::KeyMismatch { .. }) => {
                let Ok(chain) = self.read_text("cert.next.pem") else {
                    return Err(mismatch);
                };
                // The roots were renamed before the certificate.
                let next = self.read_text("ca.next.pem").ok();
                let is_left = next.is_some();
                let pem = IdentityPem { chain, ca: next.unwrap_or(pem.ca), ..pem };
                let identity = TlsIdentity::from_pem(&pem)?;
                if is_left {
                    self.rename_durably("ca.next.pem", "ca.pem")?;
                }
                self.rename_durably("cert.next.pem", "cert.pem")?;
                Ok((pem, identity))
            }
            Err(error) => Err(error),
        }
    }

    /// Names the file that is empty or damaged, if one is.
    fn check_files(&self, pem: &IdentityPem) -> Result<(), IdentityError> {
        let damaged = |name| move |error| IdentityError::Damaged { path: self.file(name), source: Box::new(error) };
        pem.private_key().map_err(damaged("key.pem"))?;
        let (_, facts) = pem.leaf().map_err(damaged("cert.pem"))?;
        match Roots::from_pem(&pem.ca, facts.id.trust_domain()) {
            // It says which two files do not belong together.
            Ok(_) | Err(IdentityError::OtherTrustDomain { .. }) => Ok(()),
            Err(error) => Err(damaged("ca.pem")(error)),
        }
    }

    /// Loads the identity for servers and clients, with the federation's roots.
    ///
    /// # Errors
    /// Like [`load`](Self::load).
    pub fn open(&self) -> Result<(IdentitySource, Roots), IdentityError> {
        let (_, identity) = self.load()?;
        let roots = identity.roots().clone();
        Ok((IdentitySource::new(identity), roots))
    }

    /// Validates and stores an identity. The old one stays usable until the new one is complete.
    ///
    /// # Errors
    /// [`IdentityError`] if its parts do not belong together or cannot be written.
    pub fn save(&self, pem: &IdentityPem) -> Result<TlsIdentity, IdentityError> {
        let identity = TlsIdentity::from_pem(pem)?;
        atomic_file::create_private_dir(&self.path)?;
        // Whatever cannot be written, the three old files still belong together.
        atomic_file::write(&self.file("ca.next.pem"), pem.ca.as_bytes(), PUBLIC)?;
        atomic_file::write(&self.file("key.next.pem"), pem.key.expose().as_bytes(), PRIVATE)?;
        atomic_file::write(&self.file("cert.next.pem"), pem.chain.as_bytes(), PUBLIC)?;
        self.rename_durably("key.next.pem", "key.pem")?;
        self.rename_durably("ca.next.pem", "ca.pem")?;
        self.rename_durably("cert.next.pem", "cert.pem")?;
        Ok(identity)
    }

    /// Stores what a broker answered to a renewal, if it is the same member's and brings no root of a stranger.
    ///
    /// # Errors
    /// [`IdentityError`]; the identity then stays as it is.
    pub fn renew(&self, pem: &IdentityPem) -> Result<TlsIdentity, IdentityError> {
        let (_, current) = self.load()?;
        succession::check(&current, &TlsIdentity::from_pem(pem)?)?;
        self.save(pem)
    }

    fn file(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }

    fn rename_durably(&self, from: &str, to: &str) -> Result<(), IdentityError> {
        let target = self.file(to);
        let rename = || {
            fs::rename(self.file(from), &target)?;
            fs::File::open(&self.path)?.sync_all()
        };
        rename().map_err(|source| FileError { operation: "write", path: target.clone(), source }.into())
    }

    fn read_text(&self, name: &str) -> Result<String, IdentityError> {
        let path = self.file(name);
        let bytes = atomic_file::read_bounded(&path, PEM_MAX_BYTES)?;
        String::from_utf8(bytes).map_err(|_| {
            let source = io::Error::new(io::ErrorKind::InvalidData, "it is not text");
            FileError { operation: "read", path, source }.into()
        })
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use std::os::unix::fs::PermissionsExt;
    use std::time::{Duration, SystemTime};

    use super::*;
    use crate::ca::{CertificateAuthority, PreviousRoot, RootAuthority};
    use crate::spiffe::{SpiffeId, TrustDomain};

    const HOUR: Duration = Duration::from_secs(3600);

    fn two_identities() -> (IdentityPem, IdentityPem) {
        let domain = TrustDomain::new("dev.test").unwrap();
        let now = SystemTime::now();
        let ca = CertificateAuthority::create(domain.clone(), now).unwrap();
        let make = || ca.new_identity(&SpiffeId::broker(domain.clone(), 1), &[], HOUR, now).unwrap();
        (make(), make())
    }

    #[test]
    fn saves_and_loads_with_a_private_key_file() {
        let home = tempfile::tempdir().unwrap();
        let dir = IdentityDir::new(home.path().join("identity"));
        assert!(!dir.exists());
        assert!(dir.load().unwrap_err().to_string().contains("identity/key.pem"));
        let (pem, _) = two_identities();
        dir.save(&pem).unwrap();
        assert!(dir.exists());
        let (loaded, identity) = dir.load().unwrap();
        assert_eq!(loaded.key.expose(), pem.key.expose());
        assert_eq!(identity.id().to_string(), "spiffe://dev.test/broker/1");
        let (source, roots) = dir.open().unwrap();
        assert_eq!(source.current().id().trust_domain(), roots.trust_domain());
        let mode = fs::metadata(dir.path().join("key.pem")).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        assert!(!format!("{loaded:?} {identity:?}").contains("PRIVATE KEY"));
    }

    #[test]
    fn a_damaged_file_is_named_with_the_remedy() {
        let home = tempfile::tempdir().unwrap();
        let dir = IdentityDir::new(home.path());
        let (pem, _) = two_identities();
        for name in ["key.pem", "cert.pem", "ca.pem"] {
            for content in ["", "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n", "garbage"] {
                dir.save(&pem).unwrap();
                fs::write(dir.file(name), content).unwrap();
                let error = dir.load().unwrap_err().to_string();
                assert!(error.starts_with(&format!("{}: ", dir.file(name).display())), "{error}");
                assert!(error.contains("restore the directory") && error.contains("joins again"), "{error}");
            }
        }
    }

    #[test]
    fn a_load_finishes_a_save_that_crashed_between_the_renames() {
        let home = tempfile::tempdir().unwrap();
        let dir = IdentityDir::new(home.path());
        let (old, new) = two_identities();
        dir.save(&old).unwrap();
        // The state after a crash between the renames.
        atomic_file::write(&dir.file("key.pem"), new.key.expose().as_bytes(), PRIVATE).unwrap();
        assert!(matches!(dir.load(), Err(IdentityError::KeyMismatch { .. })));
        atomic_file::write(&dir.file("cert.next.pem"), new.chain.as_bytes(), PUBLIC).unwrap();
        assert_eq!(dir.load().unwrap().0.chain, new.chain);
        assert_eq!(dir.load().unwrap().0.chain, new.chain);
        assert!(!dir.file("cert.next.pem").exists());
    }

    #[test]
    fn a_save_that_cannot_be_written_leaves_the_old_identity_whole() {
        // Each has its own authority, as when a federation was founded again.
        let ((old, _), (new, _)) = (two_identities(), two_identities());
        for blocked in ["ca.next.pem", "key.next.pem", "cert.next.pem"] {
            let home = tempfile::tempdir().unwrap();
            let dir = IdentityDir::new(home.path());
            dir.save(&old).unwrap();
            fs::create_dir_all(dir.file(blocked).join("in the way")).unwrap();
            dir.save(&new).unwrap_err();
            let (pem, _) = dir.load().unwrap();
            assert_eq!((pem.chain, pem.ca), (old.chain.clone(), old.ca.clone()), "{blocked}");
        }
    }

    #[test]
    fn a_load_finishes_a_save_with_other_roots() {
        let ((old, _), (new, _)) = (two_identities(), two_identities());
        for roots_are_renamed in [false, true] {
            let home = tempfile::tempdir().unwrap();
            let dir = IdentityDir::new(home.path());
            dir.save(&old).unwrap();
            atomic_file::write(&dir.file("key.pem"), new.key.expose().as_bytes(), PRIVATE).unwrap();
            let roots = if roots_are_renamed { "ca.pem" } else { "ca.next.pem" };
            atomic_file::write(&dir.file(roots), new.ca.as_bytes(), PUBLIC).unwrap();
            atomic_file::write(&dir.file("cert.next.pem"), new.chain.as_bytes(), PUBLIC).unwrap();
            for _ in 0..2 {
                let (pem, _) = dir.load().unwrap();
                assert_eq!((pem.chain, pem.ca), (new.chain.clone(), new.ca.clone()));
            }
            assert!(!dir.file("ca.next.pem").exists());
        }
    }

    /// A root with the subject of a certificate.
    fn root_named_like(pem: &str, key: &rcgen::KeyPair) -> String {
        let der = crate::identity::parse_chain("certificate", pem).unwrap().remove(0);
        let (_, certificate) = x509_parser::parse_x509_certificate(&der).unwrap();
        let name = certificate.subject().iter_common_name().next().unwrap().as_str().unwrap().to_owned();
        let mut params = rcgen::CertificateParams::default();
        params.distinguished_name.push(rcgen::DnType::CommonName, name);
        params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
        params.self_signed(key).unwrap().pem()
    }

    #[test]
    fn broker_plants_a_root_by_renewal() {
        let (home, now) = (tempfile::tempdir().unwrap(), SystemTime::now());
        let dir = IdentityDir::new(home.path());
        let domain = TrustDomain::new("dev.test").unwrap();
        let id = SpiffeId::broker(domain.clone(), 1);
        let root = RootAuthority::create(domain.clone(), now).unwrap();
        let stolen = root.intermediate(HOUR * 2, PreviousRoot::Trusted, now).unwrap();
        let make = |ca: &CertificateAuthority| ca.new_identity(&id, &[], HOUR, now).unwrap();
        let first = make(&stolen);
        dir.save(&first).unwrap();
        let stays = |pem: &IdentityPem| {
            let error = dir.renew(pem).unwrap_err();
            assert_eq!(dir.load().unwrap().0.chain, first.chain);
            error
        };

        // A root of its own: alone, beside the true one, and as issuer of the certificate.
        let own = RootAuthority::create(domain.clone(), now).unwrap();
        let evil = own.intermediate(HOUR * 2, PreviousRoot::Trusted, now).unwrap();
        assert!(matches!(stays(&make(&evil)), IdentityError::NewRoot { .. }));
        let both = format!("{}{}", stolen.root_pem(), evil.root_pem());
        assert!(matches!(stays(&IdentityPem { ca: both, ..make(&stolen) }), IdentityError::NewRoot { .. }));
        let alone = IdentityPem { ca: evil.root_pem().to_owned(), ..make(&stolen) };
        assert!(matches!(stays(&alone), IdentityError::Certificate { .. }));
        // The stolen key as a root, with the intermediate itself as the certificate that introduces it.
        let key = rcgen::KeyPair::from_pem(stolen.key_pem().expose()).unwrap();
        let planted = format!("{}{}", stolen.root_pem(), root_named_like(stolen.chain_pem(), &key));
        assert!(matches!(stays(&IdentityPem { ca: planted, ..make(&stolen) }), IdentityError::NewRoot { .. }));

        // The true successor, which the old root signed; then the old one goes.
        let successor = root.successor(now).unwrap();
        let next = make(&successor.intermediate(HOUR * 2, PreviousRoot::Trusted, now).unwrap());
        assert_eq!(dir.renew(&next).unwrap().roots().hashes().count(), 2);
        let last = make(&successor.intermediate(HOUR * 2, PreviousRoot::Dropped, now).unwrap());
        assert_eq!(dir.renew(&last).unwrap().roots().hashes().count(), 1);
        assert!(matches!(dir.renew(&first), Err(IdentityError::NewRoot { .. })));
    }

    #[test]
    fn broker_takes_the_next_root_away() {
        let (home, now) = (tempfile::tempdir().unwrap(), SystemTime::now());
        let dir = IdentityDir::new(home.path());
        let domain = TrustDomain::new("dev.test").unwrap();
        let id = SpiffeId::broker(domain.clone(), 1);
        let make = |ca: &CertificateAuthority| ca.new_identity(&id, &[], HOUR, now).unwrap();
        let next = |root: &RootAuthority, previous| root.intermediate(HOUR * 2, previous, now).unwrap();
        let (trusted, dropped) = (PreviousRoot::Trusted, PreviousRoot::Dropped);
        let root = RootAuthority::create(domain.clone(), now).unwrap();
        // Made within the same second.
        let successor = root.successor(now).unwrap();
        let stolen = next(&root, trusted);
        dir.save(&make(&stolen)).unwrap();
        let both = next(&successor, trusted);
        dir.renew(&make(&both)).unwrap();

        // The earlier root alone, whatever the chain shows beside it.
        let first = make(&stolen);
        let shown = IdentityPem { chain: format!("{}{}", first.chain, both.chain_pem()), ..first.clone() };
        for pem in [first, shown] {
            let Err(IdentityError::DroppedRoot { sha256 }) = dir.renew(&pem) else { panic!("the next root is gone") };
            assert_eq!(sha256, successor.sha256());
        }
        // A second successor of the earlier root does not replace the first one.
        let second = make(&next(&root.successor(now).unwrap(), trusted));
        assert!(matches!(dir.renew(&second), Err(IdentityError::DroppedRoot { .. })));
        // In another order, and as an intermediate of the earlier root issues it once it names both.
        let reversed = IdentityPem {
            ca: format!("{}{}", stolen.root_pem(), next(&successor, dropped).root_pem()),
            ..make(&stolen)
        };
        dir.renew(&reversed).unwrap();
        assert!(matches!(dir.renew(&make(&stolen)), Err(IdentityError::DroppedRoot { .. })));

        // The next root's successor takes over from both.
        let third = successor.successor(now).unwrap();
        let last = dir.renew(&make(&next(&third, trusted))).unwrap();
        assert_eq!(last.roots().hashes().collect::<Vec<_>>(), [third.sha256(), successor.sha256()]);
        dir.renew(&make(&next(&third, dropped))).unwrap();
    }

    #[test]
    fn broker_renews_for_another_member() {
        let (home, now) = (tempfile::tempdir().unwrap(), SystemTime::now());
        let dir = IdentityDir::new(home.path());
        let domain = TrustDomain::new("dev.test").unwrap();
        let ca = CertificateAuthority::create(domain.clone(), now).unwrap();
        let make = |number| ca.new_identity(&SpiffeId::broker(domain.clone(), number), &[], HOUR, now).unwrap();
        dir.save(&make(1)).unwrap();
        assert!(matches!(dir.renew(&make(2)), Err(IdentityError::OtherId { .. })));
        dir.renew(&make(1)).unwrap();
    }

    #[test]
    fn files_of_two_federations_are_refused() {
        let home = tempfile::tempdir().unwrap();
        let dir = IdentityDir::new(home.path());
        let (mut pem, _) = two_identities();
        let other = TrustDomain::new("other.test").unwrap();
        pem.ca = CertificateAuthority::create(other, SystemTime::now()).unwrap().root_pem().to_owned();
        let error = dir.save(&pem).unwrap_err().to_string();
        assert!(error.contains("'dev.test'") && error.contains("'other.test'"), "{error}");
        assert!(!dir.exists());
    }
}
