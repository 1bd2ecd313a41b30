//! Whether the head of a branch may come into force.

use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use comity_policy::{Bundle, BundleSource};

use crate::commit::Commit;
use crate::documents::{DocumentKey, DocumentSpec, Documents};
use crate::history::{self, History};
use crate::limits::MAX_COMPILED_BYTES;
use crate::object_id::ObjectId;
use crate::object_store::{ObjectStore, StoreError};
use crate::pending::{Ledger, Signed};
use crate::policy_folder::{PolicyFolder, folder_tree, policy_files};
use crate::signature::{self, Signature};
use crate::signer::{KnownKey, Signer, known_keys, locked_out};
use crate::verdict::{Accepted, Reason, Refused, Verdict};

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
    let versions = Versions { store, folder, seen: BTreeMap::new(), bytes: 0 };
    let ledger = Ledger::new(Documents::of(in_force.bundle), in_force.taken_names.clone());
    // Otherwise a maintainer could bring back an owner's older terms, which the owner signed at that time.
    let replaced = in_force.commit.is_none().then(|| in_force.bundle.hash.clone());
    let walk = Walk { versions, history: &history, ledger, now_ms, max_bytes, replaced };
    match walk.up_to(in_force.commit, head)? {
        Ok((bundle, taken_names)) => {
            let commits = history.new.len();
            Ok(Verdict::Accepted(Box::new(Accepted { commit: head, bundle, taken_names, commits })))
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
    let read = history::commit(store, commit)?;
    let mut versions = Versions { store, folder, seen: BTreeMap::new(), bytes: 0 };
    Ok(match versions.at(&read)?.as_ref() {
        Ok((bundle, _)) => Ok(bundle.clone()),
        Err(reason) => Err(Refused { commit, reason: reason.clone() }),
    })
}

/// The policy of a commit, or why it has none.
type Version = Rc<Result<(Bundle, Documents), Reason>>;

/// The policy at each commit, compiled once for each content of the folder.
struct Versions<'w> {
    store: &'w dyn ObjectStore,
    folder: &'w PolicyFolder,
    seen: BTreeMap<ObjectId, Version>,
    bytes: usize,
}

impl Versions<'_> {
    fn at(&mut self, commit: &Commit) -> Result<Version, StoreError> {
        let Some(tree) = folder_tree(self.store, commit.tree, self.folder)? else {
            return Ok(Rc::new(Err(Reason::NoFolder(self.folder.clone()))));
        };
        if let Some(seen) = self.seen.get(&tree) {
            return Ok(Rc::clone(seen));
        }
        let version = Rc::new(match policy_files(self.store, tree)? {
            Err(reason) => Err(Reason::NoBundle(reason)),
            Ok(files) => {
                self.bytes += files.iter().map(|file| file.text.len()).sum::<usize>();
                match Bundle::compile(&BundleSource::of_files(files)) {
                    Ok(bundle) => {
                        let documents = Documents::of(&bundle);
                        Ok((bundle, documents))
                    }
                    Err(problems) => Err(Reason::Problems(problems)),
                }
            }
        });
        self.seen.insert(tree, Rc::clone(&version));
        Ok(version)
    }
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

/// The bundle of the head and the names that stay taken, or the commit and the reason of a refusal.
type Outcome = Result<(Bundle, BTreeSet<String>), (ObjectId, Reason)>;

impl Walk<'_> {
    fn up_to(mut self, base: Option<ObjectId>, head: ObjectId) -> Result<Outcome, StoreError> {
        let mut mainline = base;
        let mut at_head = Err((head, Reason::NoFolder(self.versions.folder.clone())));
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
            if self.versions.bytes > self.max_bytes {
                let what = format!("the versions of the policy since then have more than {} bytes", self.max_bytes);
                return Ok(Err((*id, Reason::TooLong { what })));
            }
            // What a broken commit changes counts as changed by the next one that compiles.
            if let Ok((_, documents)) = version.as_ref() {
                let brought_in = match mainline {
                    Some(parent) if commit.is_merge() => self.signed_on_branches(commit, parent, &keys)?,
                    _ => Vec::new(),
                };
                let signers = |key: &DocumentKey, accepted: Option<&DocumentSpec>, version: Option<&DocumentSpec>| {
                    let mut signers = signers_since(&brought_in, key, accepted, version);
                    if let Signature::By(signer) = &own {
                        signers.insert(signer.clone());
                    }
                    signers
                };
                self.ledger.compare(documents, &Signed { commit: *id, signature: own.to_string(), signers: &signers });
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
            Ok(taken_names) => Ok((bundle, taken_names)),
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
                    None => self.versions.at(&history::commit(self.versions.store, *parent)?)?,
                });
            }
            changes.push(BranchChange { before, after, signers });
        }
        Ok(changes)
    }
}

/// What a signed commit on a branch changed.
struct BranchChange {
    /// At each parent.
    before: Vec<Version>,
    after: Version,
    signers: BTreeSet<Signer>,
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
fn signers_since(
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
