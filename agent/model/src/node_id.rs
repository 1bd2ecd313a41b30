//! Names of nodes that leave the institution: salted hashes.
//!
//! The salt stays in the agent's state folder. Without it nobody can find a host name from its id, not even by trying
//! names. With it ids stay the same over restarts, which leases need.

use std::fmt;
use std::path::Path;

use comity_runtime::atomic_file::{self, FileError};
use comity_runtime::entropy::Entropy;
use sha2::{Digest, Sha256};

/// File in the state folder.
const SALT_FILE: &str = "node-id.salt";
const SALT_BYTES: usize = 32;
/// Bytes of the hash that make an id: 16 hex digits. Among 10,000 nodes two ids are equal by chance once in 10¹¹
/// clusters.
const ID_BYTES: usize = 8;

/// The secret that makes node ids unguessable.
#[derive(Clone, PartialEq, Eq)]
pub struct NodeSalt([u8; SALT_BYTES]);

impl NodeSalt {
    /// A salt from its bytes.
    #[must_use]
    pub const fn new(bytes: [u8; SALT_BYTES]) -> Self {
        Self(bytes)
    }

    /// The salt of this state folder; drawn and stored the first time. Blocks.
    ///
    /// # Errors
    /// [`NodeSaltError`] when the file cannot be read, is damaged, or cannot be written.
    pub fn load_or_create(state_dir: &Path, entropy: &dyn Entropy) -> Result<Self, NodeSaltError> {
        let path = state_dir.join(SALT_FILE);
        match atomic_file::read_bounded(&path, SALT_BYTES as u64) {
            Ok(bytes) => {
                let length = bytes.len();
                bytes.try_into().map(Self).map_err(|_| NodeSaltError::Damaged { path, length })
            }
            Err(error) if error.is_not_found() => {
                let mut salt = [0; SALT_BYTES];
                entropy.fill(&mut salt);
                atomic_file::write(&path, &salt, atomic_file::PRIVATE)?;
                Ok(Self(salt))
            }
            Err(error) => Err(error.into()),
        }
    }

    /// The id of a node: 16 lower-case hex digits.
    #[must_use]
    pub fn node_id(&self, name: &str) -> String {
        self.id(b"comity-node-v1", name)
    }

    /// The id of a clique of devices that NVLink joins, of the same length.
    #[must_use]
    pub fn clique_id(&self, name: &str) -> String {
        self.id(b"comity-clique-v1", name)
    }

    fn id(&self, of: &[u8], name: &str) -> String {
        let hash = Sha256::new().chain_update(of).chain_update(self.0).chain_update(name).finalize();
        hex::encode(&hash[..ID_BYTES])
    }
}

impl fmt::Debug for NodeSalt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("NodeSalt([redacted])")
    }
}

/// Why there is no salt.
#[derive(Debug, thiserror::Error)]
pub enum NodeSaltError {
    /// The file cannot be read or written.
    #[error(transparent)]
    File(#[from] FileError),
    /// The file has another length.
    #[error("{} has {length} bytes instead of {SALT_BYTES}; restore it from a backup, or remove it: nodes then get new \
        ids, which running leases do not know", path.display())]
    Damaged {
        /// The file.
        path: std::path::PathBuf,
        /// Its length.
        length: usize,
    },
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use comity_runtime::SeededEntropy;

    use super::*;

    #[test]
    fn ids_are_stable_over_restarts_and_differ_between_clusters() {
        let dir = tempfile::tempdir().unwrap();
        let salt = NodeSalt::load_or_create(dir.path(), &SeededEntropy::new(1)).unwrap();
        let again = NodeSalt::load_or_create(dir.path(), &SeededEntropy::new(2)).unwrap();
        let id = salt.node_id("gpu-1.example");
        assert_eq!(id, again.node_id("gpu-1.example"));
        assert!(
            id.len() == 16 && id.bytes().all(|byte| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte)),
            "{id}"
        );
        assert_ne!(id, NodeSalt::new([7; 32]).node_id("gpu-1.example"));
        assert_ne!(id, salt.node_id("gpu-2.example"));
    }

    #[test]
    fn a_damaged_salt_is_not_replaced_silently() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join(SALT_FILE), b"short").unwrap();
        let error = NodeSalt::load_or_create(dir.path(), &SeededEntropy::new(1)).unwrap_err().to_string();
        assert!(error.contains("5 bytes instead of 32") && error.contains("node-id.salt"), "{error}");
    }
}
