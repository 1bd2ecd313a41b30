//! The commits between the one in force and the head.

use std::collections::{BTreeMap, BTreeSet};

use crate::commit::Commit;
use crate::limits::{MAX_COMMIT_OBJECT_BYTES, MAX_HISTORY, MAX_NEW_COMMITS};
use crate::object_id::ObjectId;
use crate::object_kind::ObjectKind;
use crate::object_store::{ObjectStore, StoreError, read};
use crate::verdict::Reason;

/// New commits, and the line on which the changes are judged one by one.
#[derive(Debug)]
pub(crate) struct History {
    /// Commits that the head contains and the one in force does not.
    pub(crate) new: BTreeMap<ObjectId, Commit>,
    /// From the child of the commit in force to the head: of a merge, the first parent that descends from it.
    pub(crate) line: Vec<ObjectId>,
}

/// Commits on the way from the head, and those that descend from the one in force, itself included.
struct Reachable {
    new: BTreeMap<ObjectId, Commit>,
    descending: BTreeSet<ObjectId>,
}

impl Reachable {
    fn all_descend(&self) -> bool {
        self.new.keys().all(|id| self.descending.contains(id))
    }
}

impl History {
    /// The commits from `base` to `head`, which is another one.
    pub(crate) fn between(
        store: &dyn ObjectStore,
        base: ObjectId,
        head: ObjectId,
    ) -> Result<Result<Self, Reason>, StoreError> {
        // Commits that all descend from the one in force are new: what came before it need not be read.
        let apart = BTreeSet::new();
        let mut found = Self::reachable(store, base, head, &apart)?;
        if found.as_ref().is_none_or(|found| !found.all_descend()) {
            let Some(old) = ancestors(store, base)? else {
                let what = format!("the commit in force has more than {MAX_HISTORY} before it");
                return Ok(Err(Reason::TooLong { what }));
            };
            if old.contains(&head) {
                return Ok(Err(Reason::Rollback { in_force: base }));
            }
            found = Self::reachable(store, base, head, &old)?;
        }
        let Some(Reachable { new, descending }) = found else {
            let what = format!("there are more than {MAX_NEW_COMMITS} commits since the one in force");
            return Ok(Err(Reason::TooLong { what }));
        };
        let mut line = Vec::new();
        let mut at = head;
        while at != base {
            line.push(at);
            let parents = new.get(&at).map_or(&[][..], |commit| &commit.parents);
            match parents.iter().find(|parent| descending.contains(parent)) {
                Some(parent) => at = *parent,
                None => return Ok(Err(Reason::Diverged { in_force: base })),
            }
        }
        line.reverse();
        Ok(Ok(Self { new, line }))
    }

    /// The commits from `head` back to `base` and to commits of `old`; `None` if there are too many.
    fn reachable(
        store: &dyn ObjectStore,
        base: ObjectId,
        head: ObjectId,
        old: &BTreeSet<ObjectId>,
    ) -> Result<Option<Reachable>, StoreError> {
        let mut new: BTreeMap<ObjectId, Commit> = BTreeMap::new();
        let mut children: BTreeMap<ObjectId, Vec<ObjectId>> = BTreeMap::new();
        let mut open = vec![head];
        while let Some(id) = open.pop() {
            if id == base || old.contains(&id) || new.contains_key(&id) {
                continue;
            }
            if new.len() == MAX_NEW_COMMITS {
                return Ok(None);
            }
            let commit = commit(store, id)?;
            for parent in &commit.parents {
                children.entry(*parent).or_default().push(id);
                open.push(*parent);
            }
            new.insert(id, commit);
        }
        let mut descending = BTreeSet::new();
        let mut open = vec![base];
        while let Some(id) = open.pop() {
            if descending.insert(id) {
                open.extend(children.get(&id).into_iter().flatten().copied());
            }
        }
        Ok(Some(Reachable { new, descending }))
    }

    /// The new commits that a merge on the line brings in: what its other parents contain and `mainline` does not.
    pub(crate) fn brought_in(&self, merge: &Commit, mainline: ObjectId) -> Vec<ObjectId> {
        let reachable = |from: Vec<ObjectId>| {
            let mut found = BTreeSet::new();
            let mut open = from;
            while let Some(id) = open.pop() {
                if let Some(commit) = self.new.get(&id).filter(|_| !found.contains(&id)) {
                    found.insert(id);
                    open.extend(&commit.parents);
                }
            }
            found
        };
        let others = merge.parents.iter().copied().filter(|parent| *parent != mainline).collect();
        let held = reachable(vec![mainline]);
        reachable(others).difference(&held).copied().collect()
    }
}

/// A commit object.
pub(crate) fn commit(store: &dyn ObjectStore, id: ObjectId) -> Result<Commit, StoreError> {
    let kind = ObjectKind::Commit;
    let content = read(store, id, kind, MAX_COMMIT_OBJECT_BYTES)?;
    Commit::parse(&content).map_err(|error| StoreError::Corrupt { kind, id, reason: error.to_string() })
}

/// All commits before another one; `None` if there are too many.
fn ancestors(store: &dyn ObjectStore, of: ObjectId) -> Result<Option<BTreeSet<ObjectId>>, StoreError> {
    let mut found = BTreeSet::new();
    let mut open = commit(store, of)?.parents;
    while let Some(id) = open.pop() {
        if found.insert(id) {
            if found.len() > MAX_HISTORY {
                return Ok(None);
            }
            open.extend(commit(store, id)?.parents);
        }
    }
    Ok(Some(found))
}
