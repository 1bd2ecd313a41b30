//! A key that waits for its certificate. It is on disk before the join token is spent: a broker issues the certificate
//! again to the same request, so a lost answer or a full disk loses no token.

use std::fs;
use std::path::{Path, PathBuf};

use rustls_pki_types::pem::PemObject as _;
use rustls_pki_types::{CertificateSigningRequestDer, PrivateKeyDer};
use thiserror::Error;
use zeroize::Zeroizing;

use super::JoinToken;
use crate::atomic_file::{self, FileError, PRIVATE};
use crate::ca::{CaError, CsrDer, KeyAndCsr};
use crate::secret::SecretString;

const PENDING_PREFIX: &str = "pending-";
const CSR_BEGIN: &str = "-----BEGIN CERTIFICATE REQUEST-----";
/// Characters of the hash of the token's secret in the file's name.
const NAME_DIGITS: usize = 16;
/// Bytes of the file, at most.
const MAX_BYTES: u64 = 16 << 10;
/// Room that an identity and the settings beside it need.
const ROOM_BYTES: usize = 64 << 10;

/// Why there is no key to join with. The token is not used yet.
#[derive(Debug, Error)]
pub enum PendingKeyError {
    /// The directory cannot be written.
    #[error("{0}; the join token was not sent: free the disk or make the directory writable, and repeat the command")]
    File(#[from] FileError),
    /// No key could be made.
    #[error(transparent)]
    Key(#[from] CaError),
}

/// A key and its certificate request, in a file of an identity's directory.
#[derive(Debug)]
pub struct PendingKey {
    /// The key.
    pub fresh: KeyAndCsr,
    path: PathBuf,
}

impl PendingKey {
    /// The key with which `token` is spent: that of an interrupted call, or a new one. Makes the directory, and checks
    /// that there is room for what the token yields.
    ///
    /// # Errors
    /// [`PendingKeyError`].
    pub fn open(directory: &Path, token: &JoinToken) -> Result<Self, PendingKeyError> {
        atomic_file::check_room(directory, ROOM_BYTES)?;
        let path = file(directory, token);
        // A file that cannot be parsed was never used to join: it is written in one step.
        if let Some(fresh) = atomic_file::read_bounded(&path, MAX_BYTES).ok().and_then(parse) {
            return Ok(Self { fresh, path });
        }
        let fresh = KeyAndCsr::generate()?;
        atomic_file::write(&path, text(&fresh).as_bytes(), PRIVATE)?;
        Ok(Self { fresh, path })
    }

    /// Whether an interrupted call may have spent `token` with a key in `directory`.
    #[must_use]
    pub fn exists(directory: &Path, token: &JoinToken) -> bool {
        file(directory, token).exists()
    }

    /// The file with the key.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Removes the key after the token was refused, and the directory if it is empty.
    pub fn discard(&self) {
        // What stays is harmless: no certificate was issued for it.
        let _ = fs::remove_file(&self.path);
        let _ = self.path.parent().map(fs::remove_dir);
    }

    /// Removes the key, once its certificate is stored, with those of other tokens that were never completed.
    pub fn forget(&self) {
        let entries = self.path.parent().and_then(|directory| fs::read_dir(directory).ok());
        for entry in entries.into_iter().flatten().flatten() {
            if entry.file_name().as_encoded_bytes().starts_with(PENDING_PREFIX.as_bytes()) {
                // What stays is harmless: no token admits it any more.
                let _ = fs::remove_file(entry.path());
            }
        }
    }
}

fn file(directory: &Path, token: &JoinToken) -> PathBuf {
    let hash = hex::encode(token.secret_hash());
    directory.join(format!("{PENDING_PREFIX}{}.pem", &hash[..NAME_DIGITS]))
}

fn text(fresh: &KeyAndCsr) -> Zeroizing<String> {
    use base64::Engine as _;
    let csr = base64::engine::general_purpose::STANDARD.encode(fresh.csr.as_bytes());
    let key = fresh.key_pem.expose();
    Zeroizing::new(format!("{key}{CSR_BEGIN}\n{csr}\n-----END CERTIFICATE REQUEST-----\n"))
}

fn parse(bytes: Vec<u8>) -> Option<KeyAndCsr> {
    let bytes = Zeroizing::new(bytes);
    let text = std::str::from_utf8(&bytes).ok()?;
    let (key, csr) = text.split_at(text.find(CSR_BEGIN)?);
    PrivateKeyDer::from_pem_slice(key.as_bytes()).ok()?;
    let csr = CertificateSigningRequestDer::from_pem_slice(csr.as_bytes()).ok()?;
    Some(KeyAndCsr { key_pem: SecretString::new(key.to_owned()), csr: CsrDer::new(csr.to_vec()).ok()? })
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use comity_fuzz::fuzz;

    use super::*;
    use crate::entropy::SeededEntropy;

    fn token(seed: u64) -> JoinToken {
        JoinToken::generate(
            "127.0.0.1:7443".parse().unwrap(),
            "ab".repeat(32).parse().unwrap(),
            "spiffe://dev.test/user/alice".parse().unwrap(),
            &SeededEntropy::new(seed),
        )
    }

    #[test]
    fn files_of_pending_keys() {
        let valid = text(&KeyAndCsr::generate().unwrap()).as_bytes().to_vec();
        fuzz!("pending_key", vec![valid], |bytes: &[u8]| {
            let Some(read) = parse(bytes.to_vec()) else { return false };
            let again =
                parse(text(&read).as_bytes().to_vec()).expect("a key that was read can be written, and read again");
            assert_eq!((again.key_pem.expose(), &again.csr), (read.key_pem.expose(), &read.csr), "nothing is lost");
            true
        });
    }

    #[test]
    fn one_token_has_one_key_until_it_is_forgotten() {
        let home = tempfile::tempdir().unwrap();
        let dir = home.path().join("identity");
        assert!(!PendingKey::exists(&dir, &token(1)));
        let first = PendingKey::open(&dir, &token(1)).unwrap();
        let again = PendingKey::open(&dir, &token(1)).unwrap();
        assert_eq!(again.fresh.key_pem.expose(), first.fresh.key_pem.expose());
        assert_eq!(again.fresh.csr, first.fresh.csr);
        assert_eq!(fs::metadata(first.path()).unwrap().permissions().mode() & 0o777, 0o600);
        let other = PendingKey::open(&dir, &token(2)).unwrap();
        assert_ne!(other.fresh.csr, first.fresh.csr);
        other.forget();
        assert!(!PendingKey::exists(&dir, &token(1)) && !PendingKey::exists(&dir, &token(2)));
        let fresh = PendingKey::open(&dir, &token(1)).unwrap();
        assert_ne!(fresh.fresh.csr, first.fresh.csr);
        fresh.discard();
        assert!(!dir.exists());
    }

    #[test]
    fn a_directory_that_cannot_be_written_is_named_before_the_token_is_spent() {
        let home = tempfile::tempdir().unwrap();
        fs::write(home.path().join("file"), "").unwrap();
        let error = PendingKey::open(&home.path().join("file"), &token(1)).unwrap_err().to_string();
        assert!(error.contains("/file") && error.contains("the join token was not sent"), "{error}");
        assert!(!error.contains("comity-join"), "{error}");
    }
}
