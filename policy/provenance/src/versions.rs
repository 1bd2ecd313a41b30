//! The policies of the commits that are judged.

use std::collections::BTreeMap;
use std::rc::Rc;

use comity_policy::{Bundle, BundleSource};

use crate::commit::Commit;
use crate::documents::Documents;
use crate::history;
use crate::object_id::ObjectId;
use crate::object_store::{ObjectStore, StoreError};
use crate::policy_folder::{PolicyFolder, folder_tree, policy_files};
use crate::verdict::Reason;

/// The policy of a commit, or why it has none.
pub(crate) type Version = Rc<Result<(Bundle, Documents), Reason>>;

/// The policy at each commit, compiled once for each content of the folder.
pub(crate) struct Versions<'w> {
    store: &'w dyn ObjectStore,
    folder: &'w PolicyFolder,
    seen: BTreeMap<ObjectId, Version>,
    bytes: usize,
}

impl<'w> Versions<'w> {
    pub(crate) fn new(store: &'w dyn ObjectStore, folder: &'w PolicyFolder) -> Self {
        Self { store, folder, seen: BTreeMap::new(), bytes: 0 }
    }

    pub(crate) fn folder(&self) -> &'w PolicyFolder {
        self.folder
    }

    /// The bytes of policy that were compiled.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// The policy at the commit with this id.
    pub(crate) fn at_id(&mut self, id: ObjectId) -> Result<Version, StoreError> {
        let commit = history::commit(self.store, id)?;
        self.at(&commit)
    }

    pub(crate) fn at(&mut self, commit: &Commit) -> Result<Version, StoreError> {
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
