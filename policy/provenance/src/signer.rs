//! Who signs commits, and with which keys.

use std::fmt;

use comity_policy::{CommitKey, Kind};
use ssh_key::PublicKey;

use crate::documents::{DocumentSpec, Documents};

/// Whose key signed a commit.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Signer {
    /// A maintainer, by user id.
    Maintainer(String),
    /// An institution, by name.
    Institution(String),
}

impl fmt::Display for Signer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Maintainer(user) => write!(f, "maintainer {}", user.rsplit('/').next().unwrap_or(user)),
            Self::Institution(name) => write!(f, "institution `{name}`"),
        }
    }
}

/// A key that the policy names.
pub(crate) struct KnownKey {
    pub(crate) key: PublicKey,
    pub(crate) signer: Signer,
    pub(crate) until_ms: Option<u64>,
}

/// The keys of all signers that documents name.
pub(crate) fn known_keys(documents: &Documents) -> Vec<KnownKey> {
    let mut found = Vec::new();
    let mut note = |key: &CommitKey, signer: Signer| {
        if let Ok(public) = PublicKey::from_openssh(&key.key) {
            found.push(KnownKey { key: public, signer, until_ms: key.until_ms });
        }
    };
    for (key, spec) in documents.iter() {
        match spec {
            DocumentSpec::Federation(federation) => {
                for entry in &federation.commit_keys {
                    // The key of a former maintainer signs nothing.
                    if federation.maintainers.contains(&entry.maintainer) {
                        note(&entry.key, Signer::Maintainer(entry.maintainer.clone()));
                    }
                }
            }
            DocumentSpec::Institution(institution) if key.kind == Kind::Institution => {
                for entry in &institution.commit_keys {
                    note(entry, Signer::Institution(key.name.clone()));
                }
            }
            _ => {}
        }
    }
    found
}
