//! Writes the bundle in force into a directory, to take it into Git.

use std::os::unix::ffi::OsStrExt as _;
use std::path::{Component, Path};
use std::{fs, io};

use comity_proto::v1;

use crate::failure::Failure;

/// Writes the files into `directory`, which must be empty or new. Paths that lead out of it are refused before
/// anything is written.
pub(super) fn save(files: &[v1::PolicyFile], directory: &Path) -> Result<(), Failure> {
    // A hidden file could act on the tools that read the directory: `.git/hooks`, for example.
    let is_plain = |part: Component<'_>| matches!(part, Component::Normal(name) if !name.as_bytes().starts_with(b"."));
    let leads_out = |path: &str| !Path::new(path).components().all(is_plain);
    if let Some(file) = files.iter().find(|file| file.path.is_empty() || leads_out(&file.path)) {
        return Err(Failure::refused(
            "bad-policy",
            format!("the broker names a file {:?} that is hidden or outside the bundle", file.path),
        )
        .remedy("nothing was written; ask who runs the broker"));
    }
    let cannot =
        |path: &Path, error: io::Error| Failure::configuration(format!("cannot write {}: {error}", path.display()));
    fs::create_dir_all(directory).map_err(|error| cannot(directory, error))?;
    if fs::read_dir(directory).map_err(|error| cannot(directory, error))?.next().is_some() {
        return Err(Failure::configuration(format!("{} is not empty", directory.display()))
            .field("--out", directory.display())
            .remedy("name an empty or new directory; then compare and copy"));
    }
    for file in files {
        let path = directory.join(&file.path);
        if let Some(parent) = path.parent() {
            fs::create_dir_all(parent).map_err(|error| cannot(parent, error))?;
        }
        fs::write(&path, &file.text).map_err(|error| cannot(&path, error))?;
    }
    Ok(())
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    fn file(path: &str) -> v1::PolicyFile {
        v1::PolicyFile { path: path.to_owned(), text: format!("# {path}\n") }
    }

    #[test]
    fn a_bundle_is_written_into_an_empty_directory_and_nowhere_else() {
        let home = tempfile::tempdir().unwrap();
        let directory = home.path().join("policy");
        save(&[file("federation.yaml"), file("tenants/lab.yaml")], &directory).unwrap();
        assert_eq!(fs::read_to_string(directory.join("tenants/lab.yaml")).unwrap(), "# tenants/lab.yaml\n");
        let again = save(&[file("federation.yaml")], &directory).unwrap_err();
        assert!(again.to_string().contains("is not empty"), "{again}");
        for path in ["../out.yaml", "/etc/out.yaml", "a/../../out.yaml", "", ".git/hooks/pre-commit", "a/.b"] {
            let other = home.path().join("other");
            assert!(save(&[file("good.yaml"), file(path)], &other).is_err(), "{path}");
            assert!(!other.exists() && !home.path().join("out.yaml").exists());
        }
    }
}
