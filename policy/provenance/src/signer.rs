//! Who signs commits, and with which keys.

use std::collections::BTreeSet;
use std::fmt;

use comity_policy::{CommitKey, Federation, Kind};
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
    pub(crate) public: PublicKey,
    /// As the policy has it.
    pub(crate) key: CommitKey,
    pub(crate) signer: Signer,
}

/// The keys of all signers that documents name.
pub(crate) fn known_keys(documents: &Documents) -> Vec<KnownKey> {
    let mut found = Vec::new();
    let mut note = |key: &CommitKey, signer: Signer| {
        if let Ok(public) = PublicKey::from_openssh(&key.key) {
            found.push(KnownKey { public, key: key.clone(), signer });
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

/// Names who would have too few valid keys after a change; `None` if nobody would.
pub(crate) fn locked_out(before: &Documents, after: &Documents, now_ms: u64) -> Option<String> {
    let federation = after.federation().filter(|federation| federation.signatures.required)?;
    let counting = known_keys(after).into_iter().filter(|known| known.key.is_valid_at(now_ms));
    let counting: BTreeSet<Signer> = counting.map(|known| known.signer).collect();
    let maintainers = counting.iter().filter(|signer| matches!(signer, Signer::Maintainer(_))).count();
    let rules = |it: &Federation| (it.commit_keys.clone(), it.maintainers.clone(), it.signatures);
    if maintainers < federation.signatures.maintainers_needed as usize
        && before.federation().map(rules) != Some(rules(federation))
    {
        let needed = federation.signatures.maintainers_needed;
        return Some(format!(
            "{maintainers} of {needed} needed maintainers would have a key whose `until` is not over"
        ));
    }
    after.iter().find_map(|(key, spec)| {
        let DocumentSpec::Institution(institution) = spec else { return None };
        let is_new = before.institution(&key.name).is_none_or(|held| held.commit_keys != institution.commit_keys);
        let is_locked =
            is_new && !institution.commit_keys.is_empty() && !counting.contains(&Signer::Institution(key.name.clone()));
        is_locked.then(|| format!("institution `{}` would have no key whose `until` is not over", key.name))
    })
}
