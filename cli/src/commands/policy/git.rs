//! The Git commit of a policy directory.

use std::path::Path;

use tokio::process::Command;

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
    let commit = git(dir, &["rev-parse", "--verify", "--quiet", "HEAD"]).await?;
    let commit = commit.trim();
    let changes = git(dir, &["status", "--porcelain", "--", "."]).await?;
    let hex = commit.bytes().all(|b| b.is_ascii_hexdigit());
    let is_commit = hex && (40..=64).contains(&commit.len());
    is_commit.then(|| CheckedOut { commit: commit.to_owned(), is_clean: changes.is_empty() })
}

async fn git(dir: &Path, args: &[&str]) -> Option<String> {
    let output = Command::new("git").arg("-C").arg(dir).args(args).kill_on_drop(true).output().await.ok()?;
    output.status.success().then(|| String::from_utf8_lossy(&output.stdout).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn run(dir: &Path, args: &[&str]) {
        let identity = ["-c", "user.name=t", "-c", "user.email=t@t.test", "-c", "commit.gpgsign=false"];
        assert!(git(dir, &[&identity[..], args].concat()).await.is_some(), "git {args:?}");
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
