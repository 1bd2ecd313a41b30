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
    /// The new commits that do not descend from the first one of this history in force.
    pub(crate) older: BTreeSet<ObjectId>,
}

/// Commits on the way from the head, and those that descend from the one in force, itself included.
struct Reachable {
    new: BTreeMap<ObjectId, Commit>,
    children: Children,
    descending: BTreeSet<ObjectId>,
}

impl Reachable {
    fn all_descend(&self) -> bool {
        self.new.keys().all(|id| self.descending.contains(id))
    }

    /// The new commits that descend from none of these.
    fn without_ancestor(&self, in_history: BTreeSet<ObjectId>) -> BTreeSet<ObjectId> {
        let counting = descendants(&self.children, in_history);
        self.new.keys().filter(|id| !counting.contains(id)).copied().collect()
    }
}

/// The children of each commit, as far as they were read.
type Children = BTreeMap<ObjectId, Vec<ObjectId>>;

/// These commits and all that descend from them.
fn descendants(children: &Children, of: BTreeSet<ObjectId>) -> BTreeSet<ObjectId> {
    let mut found = BTreeSet::new();
    let mut open: Vec<ObjectId> = of.into_iter().collect();
    while let Some(id) = open.pop() {
        if found.insert(id) {
            open.extend(children.get(&id).into_iter().flatten().copied());
        }
    }
    found
}

impl History {
    /// The commits from `base` to `head`, which is another one, in the history that began at `began`.
    pub(crate) fn between(
        store: &dyn ObjectStore,
        base: ObjectId,
        began: Option<ObjectId>,
        head: ObjectId,
    ) -> Result<Result<Self, Reason>, StoreError> {
        // Commits that all descend from the one in force are new: what came before it need not be read.
        let mut found = Self::reachable(store, base, head, &Old::default())?;
        let mut older = BTreeSet::new();
        if found.as_ref().is_none_or(|found| !found.all_descend()) {
            let Some(old) = ancestors(store, base)? else {
                let what = format!("the commit in force has more than {MAX_HISTORY} before it");
                return Ok(Err(Reason::TooLong { what }));
            };
            if old.commits.contains(&head) {
                return Ok(Err(Reason::Rollback { in_force: base }));
            }
            found = Self::reachable(store, base, head, &old)?;
            if let (Some(found), Some(began)) = (&found, began) {
                let mut in_history = descendants(&old.children, BTreeSet::from([began]));
                in_history.insert(base);
                older = found.without_ancestor(in_history);
            }
        }
        let Some(Reachable { new, descending, .. }) = found else {
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
        Ok(Ok(Self { new, line, older }))
    }

    /// The commits from `head` back to `base` and to commits of `old`; `None` if there are too many.
    fn reachable(
        store: &dyn ObjectStore,
        base: ObjectId,
        head: ObjectId,
        old: &Old,
    ) -> Result<Option<Reachable>, StoreError> {
        let mut new: BTreeMap<ObjectId, Commit> = BTreeMap::new();
        let mut children = Children::new();
        let mut open = vec![head];
        while let Some(id) = open.pop() {
            if id == base || old.commits.contains(&id) || new.contains_key(&id) {
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
        let descending = descendants(&children, BTreeSet::from([base]));
        Ok(Some(Reachable { new, children, descending }))
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

/// The commits before the one in force.
#[derive(Default)]
struct Old {
    commits: BTreeSet<ObjectId>,
    children: Children,
}

/// All commits before another one; `None` if there are too many.
fn ancestors(store: &dyn ObjectStore, of: ObjectId) -> Result<Option<Old>, StoreError> {
    let mut found = Old::default();
    let mut open = vec![of];
    while let Some(id) = open.pop() {
        for parent in commit(store, id)?.parents {
            found.children.entry(parent).or_default().push(id);
            if found.commits.insert(parent) {
                if found.commits.len() > MAX_HISTORY {
                    return Ok(None);
                }
                open.push(parent);
            }
        }
    }
    Ok(Some(found))
}
