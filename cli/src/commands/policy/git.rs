//! Reads a clone, and makes commits there, with the `git` program.

use std::path::{Path, PathBuf};
use std::process::Stdio;

use comity_broker::policy_source::ObjectDatabase;
use comity_provenance::{ObjectId, PolicyFolder};
use comity_types::{printable_line, redact_secrets};
use tokio::process::Command;

use crate::failure::Failure;
use crate::output::note;

/// The checked-out commit, if the directory is in a work tree and has no uncommitted changes; tells the caller of these.
pub(super) async fn commit_to_record(dir: &Path) -> Option<String> {
    let CheckedOut { commit, is_clean } = checked_out(dir).await?;
    if !is_clean {
        note(&format!("note: {} has uncommitted changes: no commit is recorded", dir.display()));
        return None;
    }
    Some(commit)
}

/// Like [`commit_to_record`], and tells the caller nothing.
pub(super) async fn clean_commit(dir: &Path) -> Option<String> {
    checked_out(dir).await.filter(|it| it.is_clean).map(|it| it.commit)
}

/// The commit of a work tree.
struct CheckedOut {
    commit: String,
    /// Whether the directory has no uncommitted changes.
    is_clean: bool,
}

async fn checked_out(dir: &Path) -> Option<CheckedOut> {
    let dir = if dir.is_file() { dir.parent()? } else { dir };
    let commit = git(dir, &["rev-parse", "--verify", "--quiet", "HEAD"]).await.ok()?;
    let changes = git(dir, &["status", "--porcelain", "--", "."]).await.ok()?;
    let hex = commit.bytes().all(|b| b.is_ascii_hexdigit());
    let is_commit = hex && (40..=64).contains(&commit.len());
    is_commit.then_some(CheckedOut { commit, is_clean: changes.is_empty() })
}

/// A clone of the policy's repository.
#[derive(Debug)]
pub(super) struct GitClone {
    root: PathBuf,
}

impl GitClone {
    /// The clone that has a directory.
    ///
    /// # Errors
    /// [`Failure`] if the directory is in no clone, or `git` does not run.
    pub(super) async fn around(dir: &Path) -> Result<Self, Failure> {
        let root = git(dir, &["rev-parse", "--show-toplevel"]).await.map_err(|said| {
            Failure::usage(format!("no work tree of Git: {said}"))
                .field("--repo", dir.display())
                .remedy("clone the policy's repository, and name the clone with --repo")
        })?;
        Ok(Self { root: root.into() })
    }

    /// The commit that a revision names; `field` is where the caller wrote the revision.
    ///
    /// # Errors
    /// [`Failure`] if it names none.
    pub(super) async fn commit(&self, field: &str, revision: &str) -> Result<ObjectId, Failure> {
        let unknown = |said: String| {
            Failure::usage(format!("`{}` names no commit{said}", printable_line(revision)))
                .field(field, revision)
                .remedy("name a commit, branch or tag of this clone; `git fetch` gets what it lacks")
        };
        // Git would take it for an option.
        if revision.starts_with('-') {
            return Err(unknown(String::new()));
        }
        let full = format!("{revision}^{{commit}}");
        let found = git(&self.root, &["rev-parse", "--verify", "--quiet", &full]).await;
        let id = found.map_err(|said| unknown(if said.is_empty() { said } else { format!(": {said}") }))?;
        id.parse().map_err(|error| unknown(format!(": {error}")))
    }

    /// The objects of the clone.
    ///
    /// # Errors
    /// [`Failure`] if they cannot be read.
    pub(super) async fn objects(&self) -> Result<ObjectDatabase, Failure> {
        let path = self.must(&["rev-parse", "--path-format=absolute", "--git-path", "objects"]).await?;
        ObjectDatabase::open(Path::new(&path))
            .map_err(|error| Failure::refused("unreadable-clone", error.reason).remedy(error.remedy))
    }

    /// A branch with its whole history, as `git bundle create` writes it.
    ///
    /// # Errors
    /// [`Failure`] if the clone has no such branch, or not its whole history.
    pub(super) async fn bundle(&self, branch: &str) -> Result<Vec<u8>, Failure> {
        if self.must(&["rev-parse", "--is-shallow-repository"]).await? != "false" {
            return Err(Failure::usage("the clone lacks a part of its history")
                .field("--repo", self.root.display())
                .remedy("run `git fetch --unshallow` there"));
        }
        let full = format!("refs/heads/{branch}");
        let making = Command::new("git")
            .arg("-C")
            .arg(&self.root)
            // With one thread the same commits make the same artifact.
            .args(["-c", "pack.threads=1", "bundle", "create", "--quiet", "-", &full])
            .kill_on_drop(true)
            .output();
        match making.await {
            Ok(output) if output.status.success() => Ok(output.stdout),
            Ok(output) => {
                let said = redact_secrets(&printable_line(String::from_utf8_lossy(&output.stderr).trim()));
                Err(Failure::usage(format!("the branch cannot be bundled: {said}"))
                    .field("--branch", branch)
                    .remedy("name a branch of the clone with commits; `git branch` lists them"))
            }
            Err(error) => Err(Failure::refused("git-failed", format!("cannot run git: {error}")).remedy("install git")),
        }
    }

    /// Whether a commit is another one's ancestor, or itself; `false` also if the clone lacks one of them.
    pub(super) async fn contains(&self, head: ObjectId, ancestor: ObjectId) -> bool {
        let (head, ancestor) = (head.to_string(), ancestor.to_string());
        git(&self.root, &["merge-base", "--is-ancestor", &ancestor, &head]).await.is_ok()
    }

    /// Whether a folder has the same content in two commits.
    ///
    /// # Errors
    /// [`Failure`] if `git` fails.
    pub(super) async fn has_same(
        &self,
        folder: &PolicyFolder,
        one: ObjectId,
        other: ObjectId,
    ) -> Result<bool, Failure> {
        let (one, other) = (one.to_string(), other.to_string());
        let differing = self.must(&["diff", "--name-only", &one, &other, "--", &pathspec(folder)]).await?;
        Ok(differing.is_empty())
    }

    /// What is under way in the clone, as in "merge".
    pub(super) async fn under_way(&self) -> Option<&'static str> {
        for (file, what) in [
            ("rebase-merge", "rebase"),
            ("rebase-apply", "rebase"),
            ("MERGE_HEAD", "merge"),
            ("CHERRY_PICK_HEAD", "cherry-pick"),
            ("REVERT_HEAD", "revert"),
        ] {
            let path = git(&self.root, &["rev-parse", "--path-format=absolute", "--git-path", file]).await;
            if path.is_ok_and(|path| Path::new(&path).exists()) {
                return Some(what);
            }
        }
        None
    }

    /// Makes a signed commit on `head`, which is checked out, in which a folder has the content that it had at `then`, and
    /// checks it out. If anything fails, branch and files are as before.
    ///
    /// # Errors
    /// [`Failure`] if the commit cannot be signed, or would overwrite files that are not committed.
    pub(super) async fn commit_as_of(
        &self,
        folder: &PolicyFolder,
        (head, then): (ObjectId, ObjectId),
        message: &str,
    ) -> Result<ObjectId, Failure> {
        let tree = self.tree_as_of(folder, head, then).await?;
        let commit = self.sign_commit(&tree, head, message).await?;
        let plainly = ["--ff-only", "--no-squash", "--no-verify-signatures", "--no-overwrite-ignore", "--quiet"];
        self.must(&[&["merge"], &plainly[..], &[commit.as_str()]].concat()).await?;
        let made = self.commit("HEAD", "HEAD").await?;
        if made.to_string() == commit {
            return Ok(made);
        }
        let reason = format!("`git merge` did not check out {commit}, the signed commit");
        Err(Failure::refused("git-failed", reason).remedy(format!("look at `git status`, and `git merge {commit}`")))
    }

    /// The tree of `head`, with a folder as it was at `then`. Made in an index of its own.
    async fn tree_as_of(&self, folder: &PolicyFolder, head: ObjectId, then: ObjectId) -> Result<String, Failure> {
        if folder.as_str().is_empty() {
            return self.must(&["rev-parse", "--verify", &format!("{then}^{{tree}}")]).await;
        }
        let index = self.must(&["rev-parse", "--path-format=absolute", "--git-path", "comity-rollback"]).await?;
        let (prefix, older) = (format!("--prefix={folder}/"), format!("{then}:{folder}"));
        let head = head.to_string();
        let made = async {
            let path = pathspec(folder);
            for args in [
                &["read-tree", head.as_str()][..],
                &["rm", "-r", "--cached", "--sparse", "--quiet", "--ignore-unmatch", "--", path.as_str()],
                &["read-tree", prefix.as_str(), older.as_str()],
            ] {
                self.must_with(Some(&index), args).await?;
            }
            self.must_with(Some(&index), &["write-tree"]).await
        };
        let tree = made.await;
        // What is left of it would only take a little room.
        let _ = std::fs::remove_file(&index);
        tree
    }

    /// The key may need a passphrase or a touch: `git` keeps the terminal.
    async fn sign_commit(&self, tree: &str, parent: ObjectId, message: &str) -> Result<String, Failure> {
        let committed = Command::new("git")
            .arg("-C")
            .arg(&self.root)
            .args(["commit-tree", "-S", "-p", &parent.to_string(), "-m", message, tree])
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn();
        let output = match committed {
            Ok(child) => child.wait_with_output().await,
            Err(error) => Err(error),
        };
        match output {
            Ok(output) if output.status.success() => Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned()),
            _ => {
                let reason = "git made no signed commit; the clone is as before";
                let remedy = "see what git says above; signing needs `git config gpg.format ssh` and `git config \
                              user.signingKey FILE`";
                Err(Failure::refused("not-committed", reason).remedy(remedy))
            }
        }
    }

    async fn must(&self, args: &[&str]) -> Result<String, Failure> {
        self.must_with(None, args).await
    }

    async fn must_with(&self, index: Option<&str>, args: &[&str]) -> Result<String, Failure> {
        git_with(&self.root, index, args).await.map_err(|said| {
            let command = args.first().copied().unwrap_or_default();
            let reason = format!("`git {command}` failed in {}: {said}", self.root.display());
            let remedy = "commit or move away what git names, or take a clone with the whole history";
            Failure::refused("git-failed", reason).remedy(remedy)
        })
    }
}

fn pathspec(folder: &PolicyFolder) -> String {
    format!(":(top,literal){}", folder.as_str())
}

/// Runs git. Returns its standard output, trimmed; on failure its standard error, in one line.
async fn git(dir: &Path, args: &[&str]) -> Result<String, String> {
    git_with(dir, None, args).await
}

async fn git_with(dir: &Path, index: Option<&str>, args: &[&str]) -> Result<String, String> {
    let mut command = Command::new("git");
    if let Some(index) = index {
        command.env("GIT_INDEX_FILE", index);
    }
    match command.arg("-C").arg(dir).args(args).kill_on_drop(true).output().await {
        Ok(output) if output.status.success() => Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned()),
        Ok(output) => {
            let said = String::from_utf8_lossy(&output.stderr);
            Err(redact_secrets(&printable_line(said.trim())))
        }
        Err(error) => Err(format!("cannot run git: {error}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn run(dir: &Path, args: &[&str]) {
        let identity = ["-c", "user.name=t", "-c", "user.email=t@t.test", "-c", "commit.gpgsign=false"];
        assert!(git(dir, &[&identity[..], args].concat()).await.is_ok(), "git {args:?}");
    }

    #[tokio::test]
    async fn only_a_clean_work_tree_has_a_commit() {
        let dir = tempfile::tempdir().expect("made");
        assert_eq!(clean_commit(dir.path()).await, None);
        run(dir.path(), &["init", "-q"]).await;
        assert_eq!(clean_commit(dir.path()).await, None);
        std::fs::write(dir.path().join("a.yaml"), "a: 1\n").expect("written");
        run(dir.path(), &["add", "."]).await;
        run(dir.path(), &["commit", "-q", "-m", "a"]).await;
        assert_eq!(clean_commit(dir.path()).await.map(|commit| commit.len()), Some(40));
        std::fs::write(dir.path().join("a.yaml"), "a: 2\n").expect("written");
        assert_eq!(clean_commit(dir.path()).await, None);
    }
}
