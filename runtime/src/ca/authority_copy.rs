//! Copies of an authority: the brokers of a group have the same one, unless each is given its own.

use super::{CaError, CertificateAuthority};
use crate::secret::SecretString;

impl CertificateAuthority {
    /// The private key of the intermediate as PEM (PKCS #8), for another broker of the group. Whoever has it can issue
    /// any identity until the intermediate ends.
    #[must_use]
    pub fn key_pem(&self) -> SecretString {
        SecretString::new(self.issuer.key().serialize_pem())
    }

    /// The intermediate as PEM, with what lies between it and the root.
    #[must_use]
    pub fn chain_pem(&self) -> &str {
        &self.chain_pem
    }

    /// An authority from its intermediate, the private key of that, and the trusted roots.
    ///
    /// # Errors
    /// [`CaError`] if one is unreadable, or they do not belong together.
    pub fn from_pem(chain_pem: &str, key_pem: &SecretString, root_pem: &str) -> Result<Self, CaError> {
        let key = super::parse_key(key_pem.expose(), "the intermediate's key")?;
        Self::assemble(chain_pem.to_owned(), key, root_pem.to_owned())
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
        let copy = CertificateAuthority::from_pem(one.chain_pem(), &one.key_pem(), one.root_pem()).unwrap();
        assert_eq!(copy.root_sha256(), one.root_sha256());
        assert_eq!(copy.key_pem().expose(), one.key_pem().expose());
        assert!(CertificateAuthority::from_pem(one.chain_pem(), &one.key_pem(), other.root_pem()).is_err());
        assert!(CertificateAuthority::from_pem(one.chain_pem(), &other.key_pem(), one.root_pem()).is_err());
        let damaged = SecretString::new("secret".to_owned());
        let error = CertificateAuthority::from_pem(one.chain_pem(), &damaged, one.root_pem()).unwrap_err();
        assert!(!format!("{error} {error:?}").contains("secret"), "{error:?}");
    }
}
