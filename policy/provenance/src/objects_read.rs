//! The objects that judging a head reads, for who shows them to somebody else.

use std::cell::RefCell;
use std::collections::BTreeSet;

use crate::history::{self, History};
use crate::object_id::ObjectId;
use crate::object_kind::ObjectKind;
use crate::object_store::{ObjectStore, StoreError};
use crate::policy_folder::{PolicyFolder, folder_tree, policy_files};

/// Takes one object; an error ends the visit.
pub type Visit<'v> = &'v mut dyn FnMut(ObjectKind, &[u8]) -> Result<(), StoreError>;

/// Passes on what is read from a store, each object once.
struct Shown<'s, 'v> {
    store: &'s dyn ObjectStore,
    visited: RefCell<(BTreeSet<ObjectId>, Visit<'v>)>,
}

impl ObjectStore for Shown<'_, '_> {
    fn object(&self, id: ObjectId, kind: ObjectKind, limit: usize) -> Result<Vec<u8>, StoreError> {
        let content = self.store.object(id, kind, limit)?;
        let (seen, visit) = &mut *self.visited.borrow_mut();
        if seen.insert(id) {
            visit(kind, &content)?;
        }
        Ok(content)
    }
}

/// Visits each object that [`judge`](crate::judge) reads between two commits, and the policy at both: at the earlier one
/// for who has only its id.
///
/// # Errors
/// [`StoreError`] of the store or of `visit`.
pub fn visit_objects(
    store: &dyn ObjectStore,
    folder: &PolicyFolder,
    from: Option<ObjectId>,
    to: ObjectId,
    visit: Visit<'_>,
) -> Result<(), StoreError> {
    let shown = Shown { store, visited: RefCell::new((BTreeSet::new(), visit)) };
    let mut commits = BTreeSet::from([to]);
    if let Some(base) = from.filter(|base| *base != to) {
        commits.insert(base);
        // A head that does not descend has no new commits, and what was read shows that.
        if let Ok(history) = History::between(&shown, base, None, to)? {
            commits.extend(history.new.keys());
            // What a branch changed is compared with where it began.
            commits.extend(history.new.values().flat_map(|commit| &commit.parents));
        }
    }
    for id in commits {
        let commit = history::commit(&shown, id)?;
        if let Some(tree) = folder_tree(&shown, commit.tree, folder)? {
            // Files that are no policy are shown all the same: the reader finds out by itself.
            let _ = policy_files(&shown, tree)?;
        }
    }
    Ok(())
}
