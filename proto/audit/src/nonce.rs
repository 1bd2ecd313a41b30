//! Nonces of records: who sees a record's hash and guesses its content cannot confirm the guess.

use std::fmt;

use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

/// What goes before the key, so that no nonce is the hash of a record or node.
const NONCE: u8 = 2;
/// Bytes of a nonce.
const NONCE_BYTES: usize = 16;

/// The secret of the brokers from which all of them derive the same nonces. Each leader draws another one.
#[derive(Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub struct NonceKey([u8; NonceKey::BYTES]);

/// The text is not a key of nonces.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not a key of nonces: 64 hexadecimal digits are needed")]
pub struct NotANonceKey;

impl NonceKey {
    /// Bytes of a key.
    pub const BYTES: usize = 32;

    /// The key with these random bytes.
    #[must_use]
    pub const fn of_bytes(bytes: [u8; Self::BYTES]) -> Self {
        Self(bytes)
    }

    /// The nonce of a record, in hex: the first 16 bytes of SHA-256(2, key, index as 8 bytes, big endian).
    #[must_use]
    pub fn nonce(&self, index: u64) -> String {
        let hash = Sha256::new().chain_update([NONCE]).chain_update(self.0).chain_update(index.to_be_bytes());
        hex::encode(&hash.finalize()[..NONCE_BYTES])
    }
}

impl fmt::Debug for NonceKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("NonceKey(…)")
    }
}

impl From<NonceKey> for String {
    fn from(key: NonceKey) -> Self {
        hex::encode(key.0)
    }
}

impl TryFrom<String> for NonceKey {
    type Error = NotANonceKey;

    fn try_from(text: String) -> Result<Self, NotANonceKey> {
        let mut bytes = [0; Self::BYTES];
        hex::decode_to_slice(text, &mut bytes).map_err(|_| NotANonceKey)?;
        Ok(Self(bytes))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nonces_depend_on_key_and_number_and_the_key_is_not_shown() {
        let (key, other) = (NonceKey::of_bytes([7; 32]), NonceKey::of_bytes([8; 32]));
        assert_eq!(key.nonce(0).len(), 32);
        assert_ne!(key.nonce(0), key.nonce(1));
        assert_ne!(key.nonce(0), other.nonce(0));
        assert_eq!(format!("{key:?}"), "NonceKey(…)");
        let text = serde_json::to_string(&key).expect("JSON");
        assert_eq!(serde_json::from_str::<NonceKey>(&text).expect("a key"), key);
        assert!(serde_json::from_str::<NonceKey>("\"07\"").is_err());
    }
}
