//! SSH signatures under commits.

use std::fmt;

use ssh_key::{Algorithm, HashAlg, PublicKey, SshSig};

use crate::commit::Commit;
use crate::signer::{KnownKey, Signer};

/// The namespace in which Git signs: a signature made for files or logins is none for a commit.
const NAMESPACE: &str = "git";
const SSH_ARMOUR: &[u8] = b"-----BEGIN SSH SIGNATURE-----";
const PGP_ARMOUR: &[u8] = b"-----BEGIN PGP SIGNATURE-----";

/// What the signature of a commit is worth.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Signature {
    /// It is by the key of a signer that the policy names.
    By(Signer),
    /// The commit has none.
    None,
    /// It is OpenPGP's, or X.509's.
    NotSsh,
    /// It cannot be read.
    Malformed,
    /// It was made for something else than a commit.
    OtherNamespace,
    /// It is by a key of another algorithm than those that the policy may name.
    OtherAlgorithm(String),
    /// It does not fit the commit.
    Wrong,
    /// It is by a key that the policy does not name.
    UnknownKey(String),
    /// It is by a key whose time is over.
    Expired(Signer),
    /// The commit begins another history, and its message has no `Replaces:` with this hash, of the bundle in force.
    NoReplaces(Signer, String),
}

impl fmt::Display for Signature {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::By(signer) => write!(f, "it is signed by {signer}"),
            Self::None => f.write_str("it is not signed"),
            Self::NotSsh => f.write_str("it is signed, but not with an SSH key (`git config gpg.format ssh`)"),
            Self::Malformed => f.write_str("its signature cannot be read"),
            Self::OtherNamespace => f.write_str("its signature was made for something else than a commit"),
            Self::OtherAlgorithm(name) => write!(f, "it is signed with a key of {name}; use Ed25519 or ECDSA"),
            Self::Wrong => f.write_str("its signature does not fit the commit"),
            Self::UnknownKey(fingerprint) => {
                write!(f, "it is signed by the key {fingerprint}, which no `commitKeys` of the policy in force lists")
            }
            Self::NoReplaces(signer, hash) => write!(
                f,
                "it is signed by {signer}, but the signature may be old: the first commit of another history must end \
                 with `Replaces: {hash}`"
            ),
            Self::Expired(signer) => write!(f, "it is signed by {signer}, with a key whose `until` is over"),
        }
    }
}

/// Checks the signature of a commit against the keys that count before it, at `now_ms`.
pub(crate) fn check(commit: &Commit, keys: &[KnownKey], now_ms: u64) -> Signature {
    let Some(armour) = &commit.signature else { return Signature::None };
    if !armour.starts_with(SSH_ARMOUR) {
        return if armour.starts_with(PGP_ARMOUR) || armour.starts_with(b"-----BEGIN SIGNED MESSAGE-----") {
            Signature::NotSsh
        } else {
            Signature::Malformed
        };
    }
    let Ok(signature) = SshSig::from_pem(armour) else { return Signature::Malformed };
    if signature.namespace() != NAMESPACE {
        return Signature::OtherNamespace;
    }
    // Before the look-up: otherwise a signature that fits nothing could carry anybody's key and name.
    let by = PublicKey::new(signature.public_key().clone(), "");
    if matches!(by.algorithm(), Algorithm::Rsa { .. } | Algorithm::Dsa) {
        return Signature::OtherAlgorithm(by.algorithm().to_string());
    }
    if by.verify(NAMESPACE, &commit.signed, &signature).is_err() {
        return Signature::Wrong;
    }
    let Some(known) = keys.iter().find(|known| known.public.key_data() == signature.public_key()) else {
        return Signature::UnknownKey(by.fingerprint(HashAlg::Sha256).to_string());
    };
    if !known.key.is_valid_at(now_ms) {
        return Signature::Expired(known.signer.clone());
    }
    Signature::By(known.signer.clone())
}

#[cfg(test)]
mod tests {
    use super::*;
    use comity_fuzz::fuzz;

    #[test]
    fn made_up_signatures() {
        let valid = include_bytes!("../tests/provenance/signature.pem").to_vec();
        fuzz!("commit_signatures", vec![valid], |bytes: &[u8]| {
            let Ok(signature) = SshSig::from_pem(bytes) else { return false };
            let by = PublicKey::new(signature.public_key().clone(), "");
            // Whether it fits matters less than that the attempt ends.
            let _ = by.verify(NAMESPACE, b"content", &signature);
            true
        });
    }
}
