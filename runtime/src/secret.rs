//! Secret values. Their type keeps them out of logs.

use std::fmt;

use serde::{Deserialize, Deserializer};
use subtle::ConstantTimeEq;
use zeroize::Zeroize;

/// A secret. Dropping it erases it from memory, formatting shows `[redacted]`, and only [`expose`](Secret::expose)
/// reads it. It cannot be serialised.
#[derive(Clone, Default)]
pub struct Secret<T: Zeroize>(T);

/// A secret text, such as a token or a PEM private key.
pub type SecretString = Secret<String>;

/// Secret bytes, such as a pre-shared key.
pub type SecretBytes = Secret<Vec<u8>>;

impl<T: Zeroize> Secret<T> {
    /// Wraps a value.
    pub const fn new(value: T) -> Self {
        Self(value)
    }

    /// The value. Each call may leak the secret: keep calls few.
    pub const fn expose(&self) -> &T {
        &self.0
    }
}

impl<T: Zeroize + AsRef<[u8]>> Secret<T> {
    /// Compares in time that depends on the lengths only.
    pub fn ct_eq(&self, other: &[u8]) -> bool {
        self.0.as_ref().ct_eq(other).into()
    }
}

impl<T: Zeroize> Drop for Secret<T> {
    fn drop(&mut self) {
        self.0.zeroize();
    }
}

impl<T: Zeroize> fmt::Debug for Secret<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("[redacted]")
    }
}

impl<T: Zeroize> fmt::Display for Secret<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("[redacted]")
    }
}

impl<T: Zeroize> From<T> for Secret<T> {
    fn from(value: T) -> Self {
        Self(value)
    }
}

impl<'de, T: Zeroize + Deserialize<'de>> Deserialize<'de> for Secret<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        T::deserialize(deserializer).map(Self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn debug_and_display_show_nothing() {
        let secret = SecretString::new("hunter2".to_owned());
        assert_eq!(format!("{secret} {secret:?}"), "[redacted] [redacted]");
        let nested = Some(vec![SecretBytes::new(b"hunter2".to_vec())]);
        assert!(!format!("{nested:#?}").contains("104"));
        assert_eq!(secret.expose(), "hunter2");
    }

    #[test]
    fn compares_by_value() {
        let secret = SecretBytes::new(vec![1, 2, 3]);
        assert!(secret.ct_eq(&[1, 2, 3]));
        assert!(!secret.ct_eq(&[1, 2, 4]));
        assert!(!secret.ct_eq(&[1, 2]));
    }
}
