//! Changes that still lack signatures, and the documents accepted so far.

use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use comity_policy::Kind;

use crate::documents::{DocumentKey, DocumentSpec, Documents};
use crate::limits::{MAX_DEPARTED, MAX_NAMED_CHANGES};
use crate::object_id::ObjectId;
use crate::ownership::requirement;
use crate::signer::Signer;
use crate::verdict::{Reason, UnsignedChange};

/// A change that lacks signatures.
struct PendingChange {
    /// The commit that made it, and that others may approve.
    commit: ObjectId,
    version: Option<Rc<DocumentSpec>>,
    signers: BTreeSet<Signer>,
    /// What the commit's own signature is worth, for people.
    signature: String,
}

/// The signatures of a commit.
pub(crate) struct Signed<'s> {
    pub(crate) commit: ObjectId,
    /// What its own signature is worth, for people.
    pub(crate) signature: String,
    /// Who signed a version of a document: the commit itself, and commits that a merge brings in.
    pub(crate) signers: &'s dyn Fn(&DocumentKey, Option<&DocumentSpec>) -> BTreeSet<Signer>,
}

/// The accepted documents, and the changes that are not.
pub(crate) struct Ledger {
    accepted: Documents,
    departed: BTreeSet<String>,
    pending: BTreeMap<DocumentKey, PendingChange>,
}

impl Ledger {
    pub(crate) fn new(in_force: Documents, departed: BTreeSet<String>) -> Self {
        Self { accepted: in_force, departed, pending: BTreeMap::new() }
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
    pub(crate) fn compare(&mut self, documents: &Documents, signed: &Signed<'_>) {
        self.pending.retain(|key, _| documents.get(key) != self.accepted.get(key));
        for key in documents.differences(&self.accepted) {
            let version = documents.shared(&key);
            if self.pending.get(&key).is_some_and(|change| change.version == version) {
                continue;
            }
            let signers = (signed.signers)(&key, version.as_deref());
            let change = PendingChange { commit: signed.commit, version, signers, signature: signed.signature.clone() };
            self.pending.insert(key, change);
        }
    }

    /// Accepts the changes that have their signatures. `documents` are those of the commit that was compared last.
    pub(crate) fn settle(&mut self, documents: &Documents) {
        let required = self.accepted.federation().is_none_or(|federation| federation.signatures.required);
        let is_met = |key: &DocumentKey, change: &PendingChange| {
            !required || requirement(key, &self.accepted, documents, &self.departed).is_met(&change.signers)
        };
        // All are judged by what was accepted before the commit: none vouches for another one of the same commit.
        let met: Vec<DocumentKey> =
            self.pending.iter().filter(|(key, change)| is_met(key, change)).map(|(key, _)| key.clone()).collect();
        for key in met {
            let Some(change) = self.pending.remove(&key) else { continue };
            if key.kind == Kind::Institution {
                match change.version {
                    None => self.departed.insert(key.name.clone()),
                    Some(_) => self.departed.remove(&key.name),
                };
            }
            self.accepted.set(key, change.version);
        }
    }

    /// The institutions that left, if all changes are accepted.
    pub(crate) fn conclude(self, documents: &Documents) -> Result<BTreeSet<String>, (ObjectId, Reason)> {
        let mut changes = Vec::new();
        for (key, change) in &self.pending {
            let missing = requirement(key, &self.accepted, documents, &self.departed).show_missing(&change.signers);
            let (commit, document, signature) = (change.commit, key.clone(), change.signature.clone());
            changes.push(UnsignedChange { commit, document, missing, signature });
        }
        let Some(first) = changes.first() else {
            return Ok(self.departed);
        };
        let (commit, more) = (first.commit, changes.len().saturating_sub(MAX_NAMED_CHANGES));
        changes.truncate(MAX_NAMED_CHANGES);
        Err((commit, Reason::Unsigned { changes, more, replaces: None }))
    }

    /// Whether more institutions left than are remembered.
    pub(crate) fn has_too_many_departures(&self) -> bool {
        self.departed.len() > MAX_DEPARTED
    }
}
