//! Changes that still lack signatures, and the documents accepted so far.

use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use comity_policy::Kind;

use crate::commit_signatures::CommitSignatures;
use crate::documents::{DocumentKey, DocumentSpec, Documents};
use crate::limits::{MAX_NAMED_CHANGES, MAX_TAKEN_NAMES};
use crate::object_id::ObjectId;
use crate::ownership::requirement;
use crate::signer::Signer;
use crate::taken_names::{names_given_by, names_of};
use crate::verdict::{Reason, UnsignedChange};

/// A change that lacks signatures.
struct PendingChange {
    /// The commit that made it, and that others may approve.
    commit: ObjectId,
    version: Option<Rc<DocumentSpec>>,
    signers: BTreeSet<Signer>,
    /// What the commit's own signature is worth, for people.
    signature: String,
    /// Whose signatures it lacks, for people.
    missing: String,
}

/// What came of changes that all have their signatures.
pub(crate) struct Settled {
    /// The names that stay taken.
    pub(crate) taken_names: BTreeSet<String>,
    /// Who signed the changes.
    pub(crate) signers: BTreeSet<Signer>,
}

/// The accepted documents, and the changes that are not.
pub(crate) struct Ledger {
    accepted: Documents,
    settled: Settled,
    pending: BTreeMap<DocumentKey, PendingChange>,
}

impl Ledger {
    pub(crate) fn new(in_force: Documents, taken_names: BTreeSet<String>) -> Self {
        let settled = Settled { taken_names, signers: BTreeSet::new() };
        Self { accepted: in_force, settled, pending: BTreeMap::new() }
    }

    /// The documents that all have the signatures they need.
    pub(crate) fn accepted(&self) -> &Documents {
        &self.accepted
    }

    /// Notes that `signers` approve what a commit changed.
    pub(crate) fn approve(&mut self, commit: ObjectId, signers: &BTreeSet<Signer>) {
        for change in self.pending.values_mut().filter(|change| change.commit == commit) {
            change.signers.extend(signers.iter().cloned());
        }
    }

    /// Compares the documents of a commit with the accepted ones. What goes back to its accepted version needs no
    /// signature.
    pub(crate) fn compare(&mut self, documents: &Documents, signed: &CommitSignatures) {
        self.pending.retain(|key, _| documents.get(key) != self.accepted.get(key));
        for key in documents.differences(&self.accepted) {
            let version = documents.shared(&key);
            if self.pending.get(&key).is_some_and(|change| change.version == version) {
                continue;
            }
            let signers = signed.signers(&key, self.accepted.get(&key), version.as_deref());
            let (commit, signature) = (signed.commit, signed.own.to_string());
            let change = PendingChange { commit, version, signers, signature, missing: String::new() };
            self.pending.insert(key, change);
        }
    }

    /// Accepts the changes that have their signatures. `documents` are those of the commit that was compared last.
    pub(crate) fn settle(&mut self, documents: &Documents) {
        let required = self.accepted.federation().is_none_or(|federation| federation.signatures.required);
        // All are judged by what was accepted before the commit: none vouches for another one of the same commit.
        let mut met: Vec<DocumentKey> = Vec::new();
        for (key, change) in &mut self.pending {
            let requirement = requirement(key, &self.accepted, documents, &self.settled.taken_names);
            if !required || requirement.is_met(&change.signers) {
                met.push(key.clone());
            } else {
                change.missing = requirement.show_missing(&change.signers);
            }
        }
        let is_removed = |key: &DocumentKey| key.kind == Kind::Institution && documents.get(key).is_none();
        for key in met.iter().filter(|key| is_removed(key)) {
            self.settled.taken_names.extend(names_of(&key.name, &self.accepted));
        }
        for key in met {
            let Some(change) = self.pending.remove(&key) else { continue };
            for given in change.version.iter().flat_map(|spec| names_given_by(&key, spec)) {
                self.settled.taken_names.remove(&given);
            }
            self.settled.signers.extend(change.signers);
            self.accepted.set(key, change.version);
        }
    }

    /// What came of all changes, if none is left.
    pub(crate) fn conclude(self) -> Result<Settled, (ObjectId, Reason)> {
        let mut changes = Vec::new();
        for (key, change) in &self.pending {
            let (missing, signature) = (change.missing.clone(), change.signature.clone());
            changes.push(UnsignedChange { commit: change.commit, document: key.clone(), missing, signature });
        }
        let Some(first) = changes.first() else {
            return Ok(self.settled);
        };
        let (commit, more) = (first.commit, changes.len().saturating_sub(MAX_NAMED_CHANGES));
        changes.truncate(MAX_NAMED_CHANGES);
        Err((commit, Reason::Unsigned { changes, more, replaces: None }))
    }

    /// Whether more names stay taken than are remembered.
    pub(crate) fn has_too_many_taken_names(&self) -> bool {
        self.settled.taken_names.len() > MAX_TAKEN_NAMES
    }
}
