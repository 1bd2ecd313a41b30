//! Branches of a repository in a directory.

use std::fs;
use std::io::Read as _;
use std::path::{Path, PathBuf};

use comity_provenance::ObjectId;

use crate::policy_source::pull_error::PullError;
use crate::policy_source::repository::Branch;
use crate::policy_source::upload_pack::no_branch;

/// Bytes of `packed-refs`: some thousand branches and tags.
const MAX_REFS_BYTES: u64 = 1024 * 1024;
const DIRECTORY_REMEDY: &str = "name the directory of a Git repository that this broker may read";

/// The directory with the objects and references: the repository itself if it is bare, or `.git` in it.
pub(super) fn git_dir(repository: &Path) -> Result<PathBuf, PullError> {
    let inner = repository.join(".git");
    for candidate in [&inner, &repository.to_owned()] {
        if candidate.join("objects").is_dir() && candidate.join("HEAD").is_file() {
            return Ok(candidate.clone());
        }
    }
    Err(PullError::new(format!("{} is no Git repository", repository.display()), DIRECTORY_REMEDY))
}

/// The head of a branch.
pub(super) fn head(git_dir: &Path, branch: &Branch) -> Result<ObjectId, PullError> {
    let full = branch.full();
    if let Some(text) = read(&git_dir.join(&full))? {
        return text
            .trim()
            .parse()
            .map_err(|error| PullError::saying("the branch cannot be read", &error, DIRECTORY_REMEDY));
    }
    let packed = read(&git_dir.join("packed-refs"))?.unwrap_or_default();
    let found = packed.lines().find_map(|line| {
        let (id, name) = line.split_once(' ')?;
        (name == full).then(|| id.parse().ok())?
    });
    found.ok_or_else(|| no_branch(branch))
}

/// A small file; `None` if there is none. Opens nothing that could block, such as a named pipe.
fn read(path: &Path) -> Result<Option<String>, PullError> {
    let failed =
        |error: std::io::Error| PullError::saying(&format!("cannot read {}", path.display()), &error, DIRECTORY_REMEDY);
    match fs::metadata(path) {
        Ok(metadata) if metadata.is_file() => {}
        Ok(metadata) if metadata.is_dir() => return Ok(None),
        Ok(_) => return Err(PullError::new(format!("{} is no file", path.display()), DIRECTORY_REMEDY)),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(failed(error)),
    }
    let mut text = String::new();
    fs::File::open(path).and_then(|file| file.take(MAX_REFS_BYTES).read_to_string(&mut text)).map_err(failed)?;
    Ok(Some(text))
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    #[test]
    fn a_branch_is_loose_or_packed_and_no_pipe_blocks() {
        let home = tempfile::tempdir().unwrap();
        let branch = Branch::parse("main").unwrap();
        let ids = ["1".repeat(40), "2".repeat(40)];
        assert!(git_dir(home.path()).unwrap_err().reason.contains("is no Git repository"));
        fs::create_dir_all(home.path().join("objects")).unwrap();
        fs::create_dir_all(home.path().join("refs/heads")).unwrap();
        fs::write(home.path().join("HEAD"), "ref: refs/heads/main\n").unwrap();
        let dir = git_dir(home.path()).unwrap();
        assert!(head(&dir, &branch).unwrap_err().reason.contains("no branch `main`"));
        fs::write(dir.join("packed-refs"), format!("# pack-refs\n{} refs/heads/main\n^{}\n", ids[0], ids[1])).unwrap();
        assert_eq!(head(&dir, &branch).unwrap().to_string(), ids[0]);
        let loose = dir.join("refs/heads/main");
        fs::write(&loose, format!("{}\n", ids[1])).unwrap();
        assert_eq!(head(&dir, &branch).unwrap().to_string(), ids[1]);
        fs::write(&loose, "ref: refs/heads/other\n").unwrap();
        assert!(head(&dir, &branch).is_err());
        fs::remove_file(&loose).unwrap();
        assert!(std::process::Command::new("mkfifo").arg(&loose).status().unwrap().success());
        assert!(head(&dir, &branch).unwrap_err().reason.contains("is no file"));
    }
}
