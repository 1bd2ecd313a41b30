//! Public keys to which envelopes are sealed.

use std::fmt;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use comity_runtime::sealing;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// A public X-Wing key: ML-KEM-768's 1184 bytes, then X25519's 32. Base64 on disk.
///
/// It keeps the bytes: a parsed key is six times as large, and is needed only to seal.
#[derive(Clone, PartialEq, Eq)]
pub struct HpkePublicKey(Box<[u8; Self::BYTES]>);

impl HpkePublicKey {
    /// Length of the key.
    pub const BYTES: usize = 1216;

    /// Parses a key. `None` if the length is wrong, or if a coefficient of the ML-KEM key is out of range.
    #[must_use]
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        if !sealing::is_public_key(bytes) {
            return None;
        }
        Some(Self(Box::new(bytes.try_into().ok()?)))
    }

    /// The bytes, as they are in a key bundle.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8; Self::BYTES] {
        &self.0
    }
}

impl fmt::Debug for HpkePublicKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&STANDARD.encode(self.0.as_slice()))
    }
}

impl Serialize for HpkePublicKey {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&STANDARD.encode(self.0.as_slice()))
    }
}

impl<'de> Deserialize<'de> for HpkePublicKey {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let bytes = STANDARD.decode(String::deserialize(deserializer)?).unwrap_or_default();
        Self::from_bytes(&bytes)
            .ok_or_else(|| serde::de::Error::custom("an HPKE public key is not base64 of a valid X-Wing key"))
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    #[test]
    fn a_key_survives_the_disk_and_a_wrong_one_is_refused() {
        let key = HpkePublicKey::from_bytes(&[4; HpkePublicKey::BYTES]).unwrap();
        let text = serde_json::to_string(&key).unwrap();
        assert_eq!(serde_json::from_str::<HpkePublicKey>(&text).unwrap(), key);
        assert!(serde_json::from_str::<HpkePublicKey>("\"BAQE\"").is_err());
        for length in [0, 32, HpkePublicKey::BYTES - 1, HpkePublicKey::BYTES + 1] {
            assert_eq!(HpkePublicKey::from_bytes(&vec![4; length]), None);
        }
        // A coefficient of 0xfff is more than ML-KEM's modulus of 3329.
        assert_eq!(HpkePublicKey::from_bytes(&[0xff; HpkePublicKey::BYTES]), None);
    }
}
