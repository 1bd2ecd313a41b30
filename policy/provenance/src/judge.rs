//! Whether the head of a branch may come into force.

use std::collections::{BTreeMap, BTreeSet};

use comity_policy::Bundle;

use crate::commit::Commit;
use crate::commit_signatures::{BranchChange, CommitSignatures};
use crate::documents::Documents;
use crate::history::{self, History};
use crate::limits::MAX_COMPILED_BYTES;
use crate::object_id::ObjectId;
use crate::object_store::{ObjectStore, StoreError};
use crate::pending::{Ledger, Settled};
use crate::policy_folder::PolicyFolder;
use crate::signature::{self, Signature};
use crate::signer::{KnownKey, Signer, known_keys, locked_out};
use crate::verdict::{Accepted, Reason, Refused, Verdict};
use crate::versions::Versions;

/// What is in force.
#[derive(Clone, Debug)]
pub struct InForce<'b> {
    /// The bundle, whose keys count at first.
    pub bundle: &'b Bundle,
    /// Its commit. Without one the head is compared with the bundle, as if the bundle were its parent.
    pub commit: Option<ObjectId>,
    /// The first commit of this history that came into force. On branches that a merge brings in, only signatures of
    /// commits that descend from it count: an older one was signed for a history that is no longer in force. `None`
    /// counts all.
    pub began: Option<ObjectId>,
    /// Names that stay taken, as `Cluster/ncc-main`: those of institutions that left the federation.
    pub taken_names: &'b BTreeSet<String>,
}

/// Judges the head of a branch. `now_ms` decides which keys still count; the dates that commits carry do not matter.
///
/// # Errors
/// [`StoreError`] if the objects cannot be had, which says nothing about the head.
pub fn judge(
    store: &dyn ObjectStore,
    folder: &PolicyFolder,
    in_force: &InForce<'_>,
    head: ObjectId,
    now_ms: u64,
) -> Result<Verdict, StoreError> {
    let verdict = judge_within(store, folder, in_force, head, now_ms, MAX_COMPILED_BYTES)?;
    if let Verdict::Accepted(accepted) = &verdict
        && let Some(who) = locked_out(&Documents::of(in_force.bundle), &Documents::of(&accepted.bundle), now_ms)
    {
        return Ok(Verdict::Refused(Refused { commit: head, reason: Reason::LockedOut { who } }));
    }
    Ok(verdict)
}

/// Like [`judge`], for agents: with a smaller limit on the bytes of policy that it compiles and holds, and without
/// [`Reason::LockedOut`], because keys may have ended since the brokers accepted them.
///
/// # Errors
/// As [`judge`].
pub fn judge_within(
    store: &dyn ObjectStore,
    folder: &PolicyFolder,
    in_force: &InForce<'_>,
    head: ObjectId,
    now_ms: u64,
    max_bytes: usize,
) -> Result<Verdict, StoreError> {
    if in_force.commit == Some(head) {
        return Ok(Verdict::Unchanged);
    }
    let refused = |commit: ObjectId, reason: Reason| Ok(Verdict::Refused(Refused { commit, reason }));
    let history = match in_force.commit {
        Some(base) => match History::between(store, base, in_force.began, head)? {
            Ok(history) => history,
            Err(reason) => return refused(head, reason),
        },
        None => {
            let commit = history::commit(store, head)?;
            History { new: BTreeMap::from([(head, commit)]), line: vec![head], older: BTreeSet::new() }
        }
    };
    let versions = Versions::new(store, folder);
    let ledger = Ledger::new(Documents::of(in_force.bundle), in_force.taken_names.clone());
    // Otherwise a maintainer could bring back an owner's older terms, which the owner signed at that time.
    let replaced = in_force.commit.is_none().then(|| in_force.bundle.hash.clone());
    let walk = Walk { versions, history: &history, ledger, now_ms, max_bytes, replaced };
    match walk.up_to(in_force.commit, head)? {
        Ok((bundle, Settled { taken_names, signers })) => {
            let commits = history.new.len();
            Ok(Verdict::Accepted(Box::new(Accepted { commit: head, bundle, signers, taken_names, commits })))
        }
        Err((commit, reason)) => refused(commit, reason),
    }
}

/// The policy at a commit, whoever signed it: for a commit that is trusted by its id.
///
/// # Errors
/// [`StoreError`] if the objects cannot be had.
pub fn policy_at(
    store: &dyn ObjectStore,
    folder: &PolicyFolder,
    commit: ObjectId,
) -> Result<Result<Bundle, Refused>, StoreError> {
    Ok(match Versions::new(store, folder).at_id(commit)?.as_ref() {
        Ok((bundle, _)) => Ok(bundle.clone()),
        Err(reason) => Err(Refused { commit, reason: reason.clone() }),
    })
}

/// A walk from the commit in force to the head.
struct Walk<'w> {
    versions: Versions<'w>,
    history: &'w History,
    ledger: Ledger,
    now_ms: u64,
    max_bytes: usize,
    /// In another history: the hash of the bundle that its head has to name.
    replaced: Option<String>,
}

/// The bundle of the head and what came of its changes, or the commit and the reason of a refusal.
type Outcome = Result<(Bundle, Settled), (ObjectId, Reason)>;

impl Walk<'_> {
    fn up_to(mut self, base: Option<ObjectId>, head: ObjectId) -> Result<Outcome, StoreError> {
        let mut mainline = base;
        let mut at_head = Err((head, Reason::NoFolder(self.versions.folder().clone())));
        for id in &self.history.line {
            let Some(commit) = self.history.new.get(id) else { continue };
            let keys = known_keys(self.ledger.accepted());
            let own = match (signature::check(commit, &keys, self.now_ms), &self.replaced) {
                (Signature::By(signer), Some(hash)) if !commit.replaces.contains(hash) => {
                    Signature::NoReplaces(signer, hash.clone())
                }
                (own, _) => own,
            };
            if let Signature::By(signer) = &own {
                let signers = BTreeSet::from([signer.clone()]);
                for approved in &commit.approves {
                    self.ledger.approve(*approved, &signers);
                }
            }
            let version = self.versions.at(commit)?;
            if self.versions.bytes() > self.max_bytes {
                let what = format!("the versions of the policy since then have more than {} bytes", self.max_bytes);
                return Ok(Err((*id, Reason::TooLong { what })));
            }
            // What a broken commit changes counts as changed by the next one that compiles.
            if let Ok((_, documents)) = version.as_ref() {
                let brought_in = match mainline {
                    Some(parent) if commit.is_merge() => self.signed_on_branches(commit, parent, &keys)?,
                    _ => Vec::new(),
                };
                self.ledger.compare(documents, &CommitSignatures { commit: *id, own, brought_in });
                self.ledger.settle(documents);
                if self.ledger.has_too_many_taken_names() {
                    return Ok(Err((*id, Reason::TooManyTakenNames)));
                }
            }
            at_head = match version.as_ref() {
                Err(reason) => Err((*id, reason.clone())),
                Ok((bundle, _)) => Ok(bundle.clone()),
            };
            mainline = Some(*id);
        }
        let replaced = self.replaced;
        Ok(at_head.and_then(|bundle| match self.ledger.conclude() {
            Ok(settled) => Ok((bundle, settled)),
            Err((commit, Reason::Unsigned { changes, more, .. })) => {
                Err((commit, Reason::Unsigned { changes, more, replaces: replaced }))
            }
            Err(refused) => Err(refused),
        }))
    }

    /// What signed commits changed on the branches that a merge brings in. Their keys are judged by what is accepted
    /// where they join: a key that was removed meanwhile signs nothing any more.
    fn signed_on_branches(
        &mut self,
        merge: &Commit,
        mainline: ObjectId,
        keys: &[KnownKey],
    ) -> Result<Vec<BranchChange>, StoreError> {
        let brought_in = self.history.brought_in(merge, mainline);
        let mut signers: BTreeMap<ObjectId, BTreeSet<Signer>> = BTreeMap::new();
        let counting = brought_in.iter().filter(|id| !self.history.older.contains(id));
        for (id, commit) in counting.filter_map(|id| Some((id, self.history.new.get(id)?))) {
            if let Signature::By(signer) = signature::check(commit, keys, self.now_ms) {
                for signed in commit.approves.iter().chain([id]) {
                    signers.entry(*signed).or_default().insert(signer.clone());
                }
            }
        }
        let mut changes = Vec::new();
        for id in brought_in {
            let (Some(signers), Some(commit)) = (signers.remove(&id), self.history.new.get(&id)) else { continue };
            let after = self.versions.at(commit)?;
            let mut before = Vec::new();
            for parent in &commit.parents {
                before.push(match self.history.new.get(parent) {
                    Some(parent) => self.versions.at(parent)?,
                    None => self.versions.at_id(*parent)?,
                });
            }
            changes.push(BranchChange { before, after, signers });
        }
        Ok(changes)
    }
}
