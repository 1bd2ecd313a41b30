//! Names that stand for two things in one crate.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};

use syn::Item;

/// File names that may occur in each folder.
const SHARED_FILE_NAMES: [&str; 4] = ["tests.rs", "lib.rs", "main.rs", "build.rs"];

/// Kind of a named thing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Named {
    /// A type at the top level of a file.
    Type,
    /// A constant or static at the top level of a file.
    Constant,
    /// A source file.
    File,
}

/// A name that two files of one crate use for different things.
#[derive(Debug, PartialEq, Eq)]
pub struct Duplicate {
    named: Named,
    name: String,
    /// The files, from the crate's `src`.
    files: BTreeSet<PathBuf>,
}

impl fmt::Display for Duplicate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = match self.named {
            Named::Type => "type",
            Named::Constant => "constant",
            Named::File => "file",
        };
        let files: Vec<String> = self.files.iter().map(|file| file.display().to_string()).collect();
        write!(f, "{kind} {} is in {}", self.name, files.join(", "))
    }
}

/// Types, constants and files below the folder `src` that share a name. Each program in `src/bin` is a crate of its
/// own.
///
/// Only the top level of files counts: two inline modules of a file may use the same name. So may two alternatives
/// that `cfg` chooses from.
///
/// # Errors
/// A file that cannot be read or parsed.
pub fn duplicates(src: &Path) -> Result<Vec<Duplicate>, String> {
    let mut sources = BTreeMap::new();
    read(src, &PathBuf::new(), &mut sources)?;
    duplicates_in(&sources)
}

/// Adds the text of each source file below the folder `below` of `src`.
fn read(src: &Path, below: &Path, sources: &mut BTreeMap<PathBuf, String>) -> Result<(), String> {
    let folder = src.join(below);
    let failed = |error| format!("{}: {error}", folder.display());
    for entry in fs::read_dir(&folder).map_err(failed)? {
        let path = below.join(entry.map_err(failed)?.file_name());
        let full = src.join(&path);
        if full.is_dir() {
            read(src, &path, sources)?;
        } else if path.extension().is_some_and(|kind| kind == "rs") {
            let text = fs::read_to_string(&full).map_err(|error| format!("{}: {error}", full.display()))?;
            sources.insert(path, text);
        }
    }
    Ok(())
}

/// The same for files that were read. Their paths begin at `src`.
fn duplicates_in(sources: &BTreeMap<PathBuf, String>) -> Result<Vec<Duplicate>, String> {
    let mut found: BTreeMap<(Option<&Path>, Named, String), BTreeSet<PathBuf>> = BTreeMap::new();
    for (path, text) in sources {
        let parsed = syn::parse_file(text).map_err(|error| format!("{}: {error}", path.display()))?;
        let file = path.file_name().map(|name| (Named::File, name.to_string_lossy().into_owned()));
        let file = file.filter(|(_, name)| !SHARED_FILE_NAMES.contains(&name.as_str()));
        for (named, name) in parsed.items.iter().filter_map(named).chain(file) {
            found.entry((program(path), named, name)).or_default().insert(path.clone());
        }
    }
    let twice = found.into_iter().filter(|(_, files)| files.len() > 1);
    Ok(twice.map(|((_, named, name), files)| Duplicate { named, name, files }).collect())
}

/// The file or folder in `bin` that a path belongs to; `None` for a path of the crate itself.
fn program(path: &Path) -> Option<&Path> {
    let below = path.strip_prefix("bin").ok()?;
    below.iter().next().map(Path::new)
}

/// The name of a type or constant.
fn named(item: &Item) -> Option<(Named, String)> {
    let (named, name) = match item {
        Item::Struct(item) => (Named::Type, &item.ident),
        Item::Enum(item) => (Named::Type, &item.ident),
        Item::Union(item) => (Named::Type, &item.ident),
        Item::Trait(item) => (Named::Type, &item.ident),
        Item::Type(item) => (Named::Type, &item.ident),
        Item::Const(item) => (Named::Constant, &item.ident),
        Item::Static(item) => (Named::Constant, &item.ident),
        _ => return None,
    };
    (name != "_").then(|| (named, name.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Duplicates in a made-up tree, as they are printed.
    fn found(files: &[(&str, &str)]) -> Vec<String> {
        let sources = files.iter().map(|(path, text)| (PathBuf::from(path), (*text).to_owned())).collect();
        duplicates_in(&sources).expect("a tree that parses").iter().map(ToString::to_string).collect()
    }

    #[test]
    fn each_kind_of_duplicate_is_found() {
        let types =
            ["struct Line;", "enum Line {}", "union Line { a: u8 }", "pub trait Line {}", "pub(crate) type Line = u8;"];
        for text in types {
            let line = found(&[("a.rs", "pub struct Line;"), ("b/c.rs", text)]);
            assert_eq!(line, ["type Line is in a.rs, b/c.rs"], "{text}");
        }
        for text in ["const LIMIT: u8 = 1;", "pub static LIMIT: u8 = 1;"] {
            let limit = found(&[("a.rs", "pub(super) const LIMIT: u8 = 2;"), ("a/tests.rs", text)]);
            assert_eq!(limit, ["constant LIMIT is in a/tests.rs, a.rs"], "{text}");
        }
        let all = found(&[
            ("a/plan.rs", "struct Plan;"),
            ("b/plan.rs", "struct Plan; const C: u8 = 1;"),
            ("b.rs", "static C: u8 = 1;"),
        ]);
        assert_eq!(
            all,
            [
                "type Plan is in a/plan.rs, b/plan.rs",
                "constant C is in b/plan.rs, b.rs",
                "file plan.rs is in a/plan.rs, b/plan.rs",
            ]
        );
    }

    #[test]
    fn allowed_duplicates_are_not_reported() {
        let files = [
            // Files that each folder may have, and a type and a constant of one name.
            ("lib.rs", "struct A;"),
            ("main.rs", "const A: u8 = 1;"),
            ("a/tests.rs", ""),
            ("b/tests.rs", ""),
            // Constants without a name.
            ("a.rs", "const _: () = ();"),
            ("b.rs", "const _: () = ();"),
            // Below the top level, and alternatives in one file.
            ("c.rs", "mod tests { struct A; } fn f() { const A: u8 = 1; } impl B { const A: u8 = 1; }"),
            ("d.rs", "#[cfg(unix)] const D: u8 = 1; #[cfg(not(unix))] const D: u8 = 2;"),
            // Programs are crates of their own.
            ("bin/one.rs", "struct A;"),
            ("bin/two/main.rs", "struct A;"),
            ("bin/two/a.rs", ""),
        ];
        assert_eq!(found(&files), [""; 0]);
        let program = found(&[("bin/two/main.rs", "struct A;"), ("bin/two/a.rs", "struct A;")]);
        assert_eq!(program, ["type A is in bin/two/a.rs, bin/two/main.rs"]);
    }
}
