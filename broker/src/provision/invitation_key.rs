//! The key of a group's join tokens. Their secrets are derived from it, so that a repeated invitation gives the same
//! token on every broker, also after the authority was replaced.

use std::path::Path;

use comity_runtime::atomic_file::{self, FileError, PRIVATE};
use comity_runtime::entropy::Entropy;
use comity_runtime::private_files;
use comity_runtime::secret::Secret;
use sha2::{Digest as _, Sha256};
use zeroize::Zeroizing;

use crate::config::{ConfigError, invitation_key_file};

const KEY_BYTES: usize = 32;
/// Hexadecimal digits and a newline.
const FILE_MAX_BYTES: u64 = 2 * KEY_BYTES as u64 + 1;

/// The same on all brokers of a group; it never enters Raft.
#[derive(Debug, Clone)]
pub struct InvitationKey(Secret<[u8; KEY_BYTES]>);

impl InvitationKey {
    /// Draws the key of a new group.
    #[must_use]
    pub fn draw(entropy: &dyn Entropy) -> Self {
        let mut key = Zeroizing::new([0; KEY_BYTES]);
        entropy.fill(key.as_mut_slice());
        Self(Secret::new(*key))
    }

    /// Reads the key. Refuses one that other users can read or change: any of them could make every join token.
    ///
    /// # Errors
    /// [`ConfigError`] if the file is missing, not private, or holds no key.
    pub fn load(data: &Path) -> Result<Self, ConfigError> {
        let path = invitation_key_file(data);
        private_files::check(&path)?;
        let text = Zeroizing::new(atomic_file::read_bounded(&path, FILE_MAX_BYTES)?);
        let text = std::str::from_utf8(&text).unwrap_or_default();
        Self::from_hex(text.trim_end()).ok_or_else(|| {
            let reason = "want 64 hexadecimal digits: copy the file of another broker of the group";
            ConfigError::value("invitation-key", path.display(), reason)
        })
    }

    /// Writes the key with mode 0600.
    ///
    /// # Errors
    /// [`FileError`].
    pub fn save(&self, data: &Path) -> Result<(), FileError> {
        atomic_file::create_private_dir(data)?;
        let text = Zeroizing::new(format!("{}\n", *self.to_hex()));
        atomic_file::write(&invitation_key_file(data), text.as_bytes(), PRIVATE)
    }

    pub(super) fn to_hex(&self) -> Zeroizing<String> {
        Zeroizing::new(hex::encode(self.0.expose()))
    }

    pub(super) fn from_hex(text: &str) -> Option<Self> {
        let mut key = Zeroizing::new([0; KEY_BYTES]);
        hex::decode_to_slice(text, key.as_mut_slice()).ok()?;
        Some(Self(Secret::new(*key)))
    }

    /// A secret that only holders of this key can compute: SHA-256 over the length-prefixed purpose, key and parts.
    #[must_use]
    pub fn derive(&self, purpose: &str, parts: &[&[u8]]) -> Secret<[u8; 32]> {
        let mut hash = Sha256::new();
        for part in [purpose.as_bytes(), self.0.expose()].into_iter().chain(parts.iter().copied()) {
            hash.update(u64::try_from(part.len()).unwrap_or(u64::MAX).to_be_bytes());
            hash.update(part);
        }
        Secret::new(hash.finalize().into())
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use comity_runtime::entropy::SystemEntropy;

    use super::*;

    #[test]
    fn a_copy_derives_the_same_secrets_and_another_key_others() {
        let data = tempfile::tempdir().unwrap();
        let key = InvitationKey::draw(&SystemEntropy);
        key.save(data.path()).unwrap();
        let mode = std::fs::metadata(invitation_key_file(data.path())).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        let copy = InvitationKey::load(data.path()).unwrap();
        let secret = |key: &InvitationKey, parts: &[&[u8]]| *key.derive("purpose", parts).expose();
        assert_eq!(secret(&copy, &[b"a", b"b"]), secret(&key, &[b"a", b"b"]));
        assert_ne!(secret(&key, &[b"a", b"b"]), secret(&key, &[b"ab"]));
        assert_ne!(secret(&key, &[b"a"]), secret(&InvitationKey::draw(&SystemEntropy), &[b"a"]));
        assert!(!format!("{key:?}").contains(key.to_hex().as_str()));

        std::fs::write(invitation_key_file(data.path()), "abcd").unwrap();
        assert!(InvitationKey::load(data.path()).unwrap_err().to_string().contains("64 hexadecimal digits"));
    }

    #[test]
    fn invitation_key_is_readable_for_others() {
        let data = tempfile::tempdir().unwrap();
        InvitationKey::draw(&SystemEntropy).save(data.path()).unwrap();
        let path = invitation_key_file(data.path());
        let set = |mode| std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
        for open in [0o604, 0o602, 0o644] {
            set(open);
            let error = InvitationKey::load(data.path()).unwrap_err().to_string();
            assert!(error.ends_with(&format!("run: chmod go= {}", path.display())), "{error}");
        }
        set(0o400);
        InvitationKey::load(data.path()).unwrap();
    }
}
