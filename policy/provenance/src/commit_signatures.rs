//! Who signed what a commit changes: its own signature, and those on the branches that a merge brings in.

use std::collections::BTreeSet;

use crate::documents::{DocumentKey, DocumentSpec};
use crate::object_id::ObjectId;
use crate::signature::Signature;
use crate::signer::Signer;
use crate::versions::Version;

/// The signatures that count for the changes of one commit.
pub(crate) struct CommitSignatures {
    pub(crate) commit: ObjectId,
    /// The commit's own.
    pub(crate) own: Signature,
    /// Signed changes of the branches that it merges.
    pub(crate) brought_in: Vec<BranchChange>,
}

impl CommitSignatures {
    /// Who signed the change of a document from its accepted version to the commit's.
    pub(crate) fn signers(
        &self,
        key: &DocumentKey,
        accepted: Option<&DocumentSpec>,
        version: Option<&DocumentSpec>,
    ) -> BTreeSet<Signer> {
        let mut signers = signers_on_branches(&self.brought_in, key, accepted, version);
        if let Signature::By(signer) = &self.own {
            signers.insert(signer.clone());
        }
        signers
    }
}

/// What a signed commit on a branch changed.
pub(crate) struct BranchChange {
    /// At each parent.
    pub(crate) before: Vec<Version>,
    pub(crate) after: Version,
    pub(crate) signers: BTreeSet<Signer>,
}

impl BranchChange {
    /// The changes of a document from those of its parents that have another version.
    fn of<'c>(&'c self, key: &'c DocumentKey) -> impl Iterator<Item = DocumentChange<'c>> {
        let version = |at: &'c Version| at.as_ref().as_ref().ok().map(|(_, documents)| documents.get(key));
        let after = version(&self.after);
        let before = self.before.iter().filter_map(version);
        let changes =
            before.filter_map(move |before| Some(DocumentChange { before, after: after?, signers: &self.signers }));
        changes.filter(|change| change.before != change.after)
    }
}

/// What a signed commit on a branch made of one document.
#[derive(Clone, Copy)]
struct DocumentChange<'c> {
    before: Option<&'c DocumentSpec>,
    after: Option<&'c DocumentSpec>,
    signers: &'c BTreeSet<Signer>,
}

/// Who signed on branches every change that leads from the accepted version of a document to this one. Whoever signed
/// for another version before it has not agreed to replace the accepted one.
fn signers_on_branches(
    brought_in: &[BranchChange],
    key: &DocumentKey,
    accepted: Option<&DocumentSpec>,
    version: Option<&DocumentSpec>,
) -> BTreeSet<Signer> {
    let changes: Vec<DocumentChange<'_>> = brought_in.iter().flat_map(|change| change.of(key)).collect();
    let last = changes.iter().filter(|change| change.after == version).flat_map(|change| change.signers);
    let candidates: BTreeSet<&Signer> = last.collect();
    let leads_from_accepted = |signer: &Signer| {
        let mut left: Vec<DocumentChange<'_>> =
            changes.iter().filter(|change| change.signers.contains(signer)).copied().collect();
        let mut reached = vec![version];
        while let Some(version) = reached.pop() {
            let (made, others): (Vec<_>, Vec<_>) = left.into_iter().partition(|change| change.after == version);
            if made.iter().any(|change| change.before == accepted) {
                return true;
            }
            reached.extend(made.iter().map(|change| change.before));
            left = others;
        }
        false
    };
    candidates.into_iter().filter(|signer| leads_from_accepted(signer)).cloned().collect()
}
