//! The import graph of a crate.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use crate::cycles::cycles;
use crate::modules::{Module, Modules};

/// Imports between the files of one crate. A file is named by its module: `["scheduler", "plan"]`; the crate's root is
/// empty.
///
/// A file imports another one if it names an item that the other declares; re-exports are followed to the declaration.
/// Code that only tests compile does not count. Neither does a module's use of its own submodules: a file and the files
/// below it are one thing to the rest of the crate.
#[derive(Debug)]
pub struct Graph {
    imports: BTreeMap<Module, BTreeSet<Module>>,
}

impl Graph {
    /// Reads the crate whose root is the file `root`, such as `policy/src/lib.rs`.
    ///
    /// # Errors
    /// A file that cannot be read or parsed.
    pub fn of_crate(root: &Path) -> Result<Self, String> {
        let modules = Modules::read(root)?;
        let mut imports: BTreeMap<Module, BTreeSet<Module>> = BTreeMap::new();
        for (module, path) in &modules.paths {
            let from = modules.file_of(module);
            let Some(to) = modules.declares(module, path) else { continue };
            if !to.starts_with(&from) {
                imports.entry(from).or_default().insert(to);
            }
        }
        Ok(Self { imports })
    }

    /// Each import: the file that imports, and the one it imports from.
    pub fn imports(&self) -> impl Iterator<Item = (&Module, &Module)> {
        self.imports.iter().flat_map(|(from, to)| to.iter().map(move |to| (from, to)))
    }

    /// Sets of files that import one another in a circle, each set sorted.
    #[must_use]
    pub fn cycles(&self) -> Vec<Vec<Module>> {
        cycles(&self.imports)
    }
}
