//! The Git commit of a policy directory.

use std::path::Path;

use tokio::process::Command;

use crate::output::note;

/// The checked-out commit, if the directory is in a work tree and has no uncommitted changes.
pub(super) async fn clean_commit(dir: &Path) -> Option<String> {
    let dir = if dir.is_file() { dir.parent()? } else { dir };
    let commit = git(dir, &["rev-parse", "--verify", "--quiet", "HEAD"]).await?;
    let commit = commit.trim();
    let changes = git(dir, &["status", "--porcelain", "--", "."]).await?;
    if !changes.is_empty() {
        note(&format!("note: {} has uncommitted changes: no commit is recorded", dir.display()));
        return None;
    }
    let hex = commit.bytes().all(|b| b.is_ascii_hexdigit());
    (hex && (40..=64).contains(&commit.len())).then(|| commit.to_owned())
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
