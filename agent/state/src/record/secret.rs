//! Secrets in memory and on disk: wiped when dropped, never printed.

use std::fmt;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use zeroize::{Zeroize, Zeroizing};

/// 32 secret bytes: wiped when dropped, never printed, base64 on disk.
#[derive(Clone, PartialEq, Eq)]
pub struct SecretKey(Zeroizing<[u8; 32]>);

impl SecretKey {
    /// Takes bytes into custody.
    #[must_use]
    pub fn new(bytes: [u8; 32]) -> Self {
        Self(Zeroizing::new(bytes))
    }

    /// The bytes. Each call is a place where they may leak.
    #[must_use]
    pub fn expose(&self) -> &[u8; 32] {
        &self.0
    }
}

impl fmt::Debug for SecretKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("[redacted]")
    }
}

impl Serialize for SecretKey {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&Zeroizing::new(STANDARD.encode(self.0.as_slice())))
    }
}

impl<'de> Deserialize<'de> for SecretKey {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = Zeroizing::new(String::deserialize(deserializer)?);
        let bytes = Zeroizing::new(STANDARD.decode(text.as_bytes()).unwrap_or_default());
        let bytes: [u8; 32] =
            bytes.as_slice().try_into().map_err(|_| serde::de::Error::custom("a key is not base64 of 32 bytes"))?;
        Ok(Self::new(bytes))
    }
}

/// Bytes of any length that may hold a secret: as [`SecretKey`].
#[derive(Clone, PartialEq, Eq)]
pub struct SecretBlob(Zeroizing<Vec<u8>>);

impl SecretBlob {
    /// Takes bytes into custody.
    #[must_use]
    pub fn new(bytes: Vec<u8>) -> Self {
        Self(Zeroizing::new(bytes))
    }

    /// The bytes. Each call is a place where they may leak.
    #[must_use]
    pub fn expose(&self) -> &[u8] {
        &self.0
    }
}

impl fmt::Debug for SecretBlob {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("[redacted]")
    }
}

impl Serialize for SecretBlob {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&Zeroizing::new(STANDARD.encode(self.0.as_slice())))
    }
}

impl<'de> Deserialize<'de> for SecretBlob {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let mut text = String::deserialize(deserializer)?;
        let bytes = STANDARD.decode(text.as_bytes()).map_err(|_| serde::de::Error::custom("a blob is not base64"));
        text.zeroize();
        Ok(Self::new(bytes?))
    }
}
