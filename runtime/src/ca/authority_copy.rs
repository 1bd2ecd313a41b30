//! Copies of an authority: every broker of a group has one.

use rcgen::KeyPair;

use super::{CaError, CertificateAuthority};
use crate::identity::IdentityError;
use crate::secret::SecretString;

impl CertificateAuthority {
    /// The private key as PEM (PKCS #8), for another broker of the group. Whoever has it can issue any identity.
    #[must_use]
    pub fn key_pem(&self) -> SecretString {
        SecretString::new(self.issuer.key().serialize_pem())
    }

    /// An authority from its root certificate and private key.
    ///
    /// # Errors
    /// [`CaError`] if one is unreadable, or they do not belong together.
    pub fn from_pem(root_pem: &str, key_pem: &SecretString) -> Result<Self, CaError> {
        // Drops the library's message, which may quote the key.
        let key = KeyPair::from_pem(key_pem.expose()).map_err(|_| IdentityError::Pem {
            label: "private key",
            reason: "want a PKCS #8 'PRIVATE KEY' block".to_owned(),
        })?;
        Self::assemble(root_pem.to_owned(), key)
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use std::time::SystemTime;

    use super::*;
    use crate::spiffe::TrustDomain;

    #[test]
    fn a_copy_is_the_same_authority_and_needs_the_right_key() {
        let make = || CertificateAuthority::create(TrustDomain::new("dev.test").unwrap(), SystemTime::now()).unwrap();
        let (one, other) = (make(), make());
        let copy = CertificateAuthority::from_pem(one.root_pem(), &one.key_pem()).unwrap();
        assert_eq!(copy.root_sha256(), one.root_sha256());
        assert_eq!(copy.key_pem().expose(), one.key_pem().expose());
        assert!(CertificateAuthority::from_pem(one.root_pem(), &other.key_pem()).is_err());
        let damaged = SecretString::new("secret".to_owned());
        let error = CertificateAuthority::from_pem(one.root_pem(), &damaged).unwrap_err();
        assert!(!format!("{error} {error:?}").contains("secret"), "{error:?}");
    }
}
