//! The token in the paths of reviews.

use comity_runtime::SecretString;
use sha2::{Digest as _, Sha256};

/// The token that follows from a server's key. It tells nothing about the key.
pub(super) fn token_of(key_pem: &SecretString) -> SecretString {
    SecretString::new(hex::encode(hash(&["comity webhook token", key_pem.expose()])))
}

/// The path of a registration's reviews below its own path.
pub(super) fn path_of(path: &str, token: &SecretString) -> String {
    let of_this = hash(&["comity webhook path", path, token.expose()]);
    format!("{path}/{}", hex::encode(of_this))
}

fn hash(parts: &[&str]) -> [u8; 32] {
    Sha256::digest(parts.join("\0")).into()
}
