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
const DIRECTORY_REMEDY: &str =
    "name the directory of a Git repository, or of policy documents, that this broker may read";

/// A repository in a directory.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct LocalRepository {
    /// The directory with the objects and branches.
    common: PathBuf,
    /// The directory with the head of the work tree, if it is a linked one.
    linked: Option<PathBuf>,
}

impl LocalRepository {
    /// The repository at a path: bare, with a work tree, or a linked work tree as git-sync makes it. `None` if there is
    /// nothing of Git.
    pub(super) fn at(path: &Path) -> Result<Option<Self>, PullError> {
        let is_repository = |dir: &Path| dir.join("objects").is_dir() && dir.join("HEAD").is_file();
        let inner = path.join(".git");
        for candidate in [&inner, &path.to_owned()] {
            if is_repository(candidate) {
                return Ok(Some(Self { common: candidate.clone(), linked: None }));
            }
        }
        let broken = || PullError::new(format!("{} is no Git repository", path.display()), DIRECTORY_REMEDY);
        match fs::metadata(&inner) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            Ok(metadata) if metadata.is_file() => {}
            _ => return Err(broken()),
        }
        let link = read(&inner)?.unwrap_or_default();
        let linked = path.join(link.trim().strip_prefix("gitdir:").ok_or_else(broken)?.trim());
        let common = linked.join(read(&linked.join("commondir"))?.ok_or_else(broken)?.trim());
        if is_repository(&common) { Ok(Some(Self { common, linked: Some(linked) })) } else { Err(broken()) }
    }

    /// Like [`at`](Self::at), where only a repository will do.
    pub(super) fn must_be_at(path: &Path) -> Result<Self, PullError> {
        let none = || PullError::new(format!("{} is no Git repository", path.display()), DIRECTORY_REMEDY);
        Self::at(path)?.ok_or_else(none)
    }

    /// The directory with the objects.
    pub(super) fn objects(&self) -> PathBuf {
        self.common.join("objects")
    }

    /// A file of the repository, which does not lead out of it.
    fn read_own(&self, name: &str) -> Result<Option<String>, PullError> {
        let path = self.common.join(name);
        match (fs::canonicalize(&path), fs::canonicalize(&self.common)) {
            (Ok(file), Ok(common)) if file.starts_with(&common) => read(&file),
            (Ok(_), Ok(_)) => {
                let reason = format!("{} is a link that leads out of the repository", path.display());
                Err(PullError::new(reason, DIRECTORY_REMEDY))
            }
            _ => read(&path),
        }
    }

    /// The head of a branch. A linked work tree of a repository without the branch has the commit that is checked out.
    pub(super) fn head(&self, branch: &Branch) -> Result<ObjectId, PullError> {
        let full = branch.full();
        if let Some(text) = self.read_own(&full)? {
            return parsed(&full, &text);
        }
        let packed = self.read_own("packed-refs")?.unwrap_or_default();
        let found = packed.lines().find_map(|line| {
            let (id, name) = line.split_once(' ')?;
            (name == full).then(|| id.parse().ok())?
        });
        if let Some(found) = found {
            return Ok(found);
        }
        match &self.linked {
            Some(linked) => match read(&linked.join("HEAD"))? {
                Some(text) if !text.starts_with("ref:") => parsed("HEAD", &text),
                _ => Err(no_branch(branch)),
            },
            None => Err(no_branch(branch)),
        }
    }
}

/// Shows nothing of the text: whoever writes the repository must not learn what a link leads to.
fn parsed(name: &str, text: &str) -> Result<ObjectId, PullError> {
    let no_id = |_| PullError::new(format!("{name} does not have the full id of a commit"), DIRECTORY_REMEDY);
    text.trim().parse().map_err(no_id)
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
        assert_eq!(LocalRepository::at(home.path()).unwrap(), None);
        let dir = home.path();
        fs::create_dir_all(dir.join("objects")).unwrap();
        fs::create_dir_all(dir.join("refs/heads")).unwrap();
        fs::write(dir.join("HEAD"), "ref: refs/heads/main\n").unwrap();
        let repository = LocalRepository::must_be_at(dir).unwrap();
        let head = |branch| repository.head(branch).map(|id| id.to_string());
        assert!(head(&branch).unwrap_err().reason.contains("no branch `main`"));
        fs::write(dir.join("packed-refs"), format!("# pack-refs\n{} refs/heads/main\n^{}\n", ids[0], ids[1])).unwrap();
        assert_eq!(head(&branch).unwrap(), ids[0]);
        let loose = dir.join("refs/heads/main");
        fs::write(&loose, format!("{}\n", ids[1])).unwrap();
        assert_eq!(head(&branch).unwrap(), ids[1]);
        fs::write(&loose, "ref: refs/heads/other\n").unwrap();
        assert!(head(&branch).is_err());
        fs::remove_file(&loose).unwrap();
        assert!(std::process::Command::new("mkfifo").arg(&loose).status().unwrap().success());
        assert!(head(&branch).unwrap_err().reason.contains("is no file"));
    }

    #[test]
    fn a_branch_leads_to_no_other_file_and_shows_none() {
        let home = tempfile::tempdir().unwrap();
        let (dir, secret) = (home.path().join("repository"), home.path().join("secret"));
        fs::create_dir_all(dir.join("objects")).unwrap();
        fs::create_dir_all(dir.join("refs/heads")).unwrap();
        fs::write(dir.join("HEAD"), "ref: refs/heads/main\n").unwrap();
        fs::write(&secret, "3".repeat(40)).unwrap();
        let (loose, packed) = (dir.join("refs/heads/main"), dir.join("packed-refs"));
        let head = || {
            let repository = LocalRepository::must_be_at(&dir).unwrap();
            repository.head(&Branch::parse("main").unwrap()).map(|id| id.to_string())
        };
        for place in [&loose, &packed] {
            std::os::unix::fs::symlink(&secret, place).unwrap();
            let refused = head().unwrap_err().to_string();
            assert!(refused.contains("out of the repository") && !refused.contains("33"), "{refused}");
            fs::remove_file(place).unwrap();
        }
        fs::write(&loose, "b14bad8bbb18245055be799378107e74c397d646c\n").unwrap();
        let refused = head().unwrap_err().to_string();
        assert!(refused.contains("refs/heads/main does not have") && !refused.contains("b14bad"), "{refused}");
    }

    #[test]
    fn a_linked_work_tree_has_the_commit_that_is_checked_out() {
        let home = tempfile::tempdir().unwrap();
        let (root, tree) = (home.path().join("root"), home.path().join("tree"));
        let git = |args: &[&str]| {
            let settings = ["-c", "user.name=A", "-c", "user.email=a@x", "-c", "commit.gpgsign=false", "-C"];
            let output = std::process::Command::new("git").args(settings).arg(&root).args(args).output().unwrap();
            assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
            String::from_utf8(output.stdout).unwrap().trim().to_owned()
        };
        fs::create_dir(&root).unwrap();
        git(&["init", "--quiet", "--initial-branch", "local"]);
        git(&["commit", "--quiet", "--allow-empty", "-m", "one"]);
        git(&["worktree", "add", "--quiet", "--detach", tree.to_str().unwrap()]);
        git(&["commit", "--quiet", "--allow-empty", "-m", "two"]);
        let linked = LocalRepository::must_be_at(&tree).unwrap();
        let head = |branch: &str| linked.head(&Branch::parse(branch).unwrap()).unwrap().to_string();
        assert_eq!((head("main"), head("local")), (git(&["rev-parse", "HEAD~"]), git(&["rev-parse", "HEAD"])));
        assert!(linked.objects().is_dir());
        fs::write(tree.join(".git"), "gitdir: /nowhere\n").unwrap();
        assert!(LocalRepository::at(&tree).unwrap_err().reason.contains("is no Git repository"));
    }
}
