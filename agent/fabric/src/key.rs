//! WireGuard key material: a private key, a public key and a pre-shared key.
//!
//! Private and pre-shared keys are wiped when dropped, compared in constant
//! time and never printed.

use std::fmt;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use subtle::ConstantTimeEq;
use x25519_dalek::{PublicKey, StaticSecret};
use zeroize::Zeroizing;

use super::FabricError;

/// Length in bytes of every WireGuard key.
pub const KEY_BYTES: usize = 32;

fn random_bytes() -> Result<Zeroizing<[u8; KEY_BYTES]>, FabricError> {
    let mut bytes = Zeroizing::new([0; KEY_BYTES]);
    getrandom::fill(bytes.as_mut_slice()).map_err(FabricError::Randomness)?;
    Ok(bytes)
}

/// The private X25519 key of one side of one peering.
#[derive(Clone)]
pub struct WireguardKey(Zeroizing<[u8; KEY_BYTES]>);

impl WireguardKey {
    /// Draws a new key from the operating system's random source.
    ///
    /// # Errors
    /// [`FabricError::Randomness`] when that source cannot be read.
    pub fn generate() -> Result<Self, FabricError> {
        Ok(Self(random_bytes()?))
    }

    /// Restores a key that [`to_bytes`](Self::to_bytes) wrote.
    #[must_use]
    pub fn from_bytes(bytes: [u8; KEY_BYTES]) -> Self {
        Self(Zeroizing::new(bytes))
    }

    /// The secret itself, for the agent's own store on disk and nothing else.
    #[must_use]
    pub fn to_bytes(&self) -> Zeroizing<[u8; KEY_BYTES]> {
        self.0.clone()
    }

    /// The public half, which the other cluster needs.
    #[must_use]
    pub fn public(&self) -> WireguardPublicKey {
        WireguardPublicKey(PublicKey::from(&self.to_secret()).to_bytes())
    }

    pub(super) fn to_secret(&self) -> StaticSecret {
        StaticSecret::from(*self.0)
    }
}

impl PartialEq for WireguardKey {
    fn eq(&self, other: &Self) -> bool {
        self.0.ct_eq(other.0.as_slice()).into()
    }
}

impl Eq for WireguardKey {}

impl fmt::Debug for WireguardKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("WireguardKey(redacted)")
    }
}

/// The symmetric key that both sides of a peering mix into the handshake. A
/// recording of the tunnel cannot be opened later by breaking X25519 alone: the
/// envelope that carries this key is sealed with ML-KEM as well.
#[derive(Clone)]
pub struct PresharedKey(Zeroizing<[u8; KEY_BYTES]>);

impl PresharedKey {
    /// Draws a new key from the operating system's random source.
    ///
    /// # Errors
    /// [`FabricError::Randomness`] when that source cannot be read.
    pub fn generate() -> Result<Self, FabricError> {
        Ok(Self(random_bytes()?))
    }

    /// Restores a key from its bytes, out of an envelope or the agent's store.
    #[must_use]
    pub fn from_bytes(bytes: [u8; KEY_BYTES]) -> Self {
        Self(Zeroizing::new(bytes))
    }

    /// The secret itself, for a sealed envelope or the agent's own store.
    #[must_use]
    pub fn to_bytes(&self) -> Zeroizing<[u8; KEY_BYTES]> {
        self.0.clone()
    }
}

impl PartialEq for PresharedKey {
    fn eq(&self, other: &Self) -> bool {
        self.0.ct_eq(other.0.as_slice()).into()
    }
}

impl Eq for PresharedKey {}

impl fmt::Debug for PresharedKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("PresharedKey(redacted)")
    }
}

/// A public X25519 key, printed in base64 as the `wg` tool prints it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct WireguardPublicKey([u8; KEY_BYTES]);

impl WireguardPublicKey {
    /// Takes a key from its bytes, as found in a key bundle.
    #[must_use]
    pub fn from_bytes(bytes: [u8; KEY_BYTES]) -> Self {
        Self(bytes)
    }

    /// The bytes, for a key bundle.
    #[must_use]
    pub fn to_bytes(self) -> [u8; KEY_BYTES] {
        self.0
    }

    pub(super) fn to_dalek(self) -> PublicKey {
        PublicKey::from(self.0)
    }
}

impl fmt::Display for WireguardPublicKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&STANDARD.encode(self.0))
    }
}

impl fmt::Debug for WireguardPublicKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "WireguardPublicKey({self})")
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    #[test]
    fn a_key_survives_the_store_and_keeps_its_public_half() {
        let key = WireguardKey::generate().unwrap();
        let restored = WireguardKey::from_bytes(*key.to_bytes());
        assert_eq!(key, restored);
        assert_eq!(key.public(), restored.public());
        assert_ne!(key, WireguardKey::generate().unwrap());
    }

    #[test]
    fn two_keys_agree_through_their_public_halves() {
        let alice = WireguardKey::generate().unwrap();
        let bob = WireguardKey::generate().unwrap();
        let one = alice.to_secret().diffie_hellman(&bob.public().to_dalek());
        let other = bob.to_secret().diffie_hellman(&alice.public().to_dalek());
        assert_eq!(one.as_bytes(), other.as_bytes());
    }

    #[test]
    fn secrets_are_not_printed() {
        let key = WireguardKey::from_bytes([0xab; KEY_BYTES]);
        let psk = PresharedKey::from_bytes([0xab; KEY_BYTES]);
        assert_eq!(format!("{key:?} {psk:?}"), "WireguardKey(redacted) PresharedKey(redacted)");
    }
}
