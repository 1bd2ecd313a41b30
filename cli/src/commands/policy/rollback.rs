//! `comity policy rollback`: a new signed commit with the policy of an older one.

use std::path::PathBuf;

use clap::Args;
use comity_provenance::Verdict;

use super::commit_basis::{CommitBasis, policy_of};
use super::git::GitClone;
use crate::failure::Failure;
use crate::output::note;
use crate::session::Session;
use crate::views::{CommitJudged, RollbackPlanned};

const ROLLBACK_EXAMPLES: &str = "\
Examples:
  comity policy history
  comity policy rollback 8d1c0f1f6c0e --dry-run
  comity policy rollback 8d1c0f1f6c0e --repo ~/policy && git -C ~/policy push

Makes a commit in the clone, signed with your key, in which the policy's folder is as it was
in REVISION. A history only goes forward: brokers and agents refuse an older head. The commit
counts like any other: the owners of all documents that it changes must sign, and the answer
says who is missing. Nothing is pushed.
";

/// `comity policy rollback`.
#[derive(Debug, Args)]
#[command(after_help = ROLLBACK_EXAMPLES)]
pub struct PolicyRollbackArgs {
    /// Commit whose policy comes back
    revision: String,
    /// Directory of the clone
    #[arg(long, value_name = "DIR", default_value = ".")]
    repo: PathBuf,
    /// Message of the commit [default: Roll back the policy to COMMIT]
    #[arg(long, short, value_name = "TEXT")]
    message: Option<String>,
    /// Show what would change, and commit nothing
    #[arg(long)]
    dry_run: bool,
}

impl PolicyRollbackArgs {
    pub(super) async fn run(&self, session: &Session) -> Result<(), Failure> {
        let basis = CommitBasis::in_force(session, None).await?;
        let Some(in_force) = basis.commit else {
            let (reason, remedy) = if basis.has_source {
                let reason =
                    "no commit is in force: the policy is pulled from documents without Git, or not pulled yet";
                (reason, "see 'comity policy source show'; bring the older documents back at their source")
            } else {
                let reason = "the policy has no source, so that nobody would pull the commit";
                (
                    reason,
                    "name the repository with 'comity policy source set', or apply the older directory with 'comity policy apply'",
                )
            };
            return Err(Failure::refused("wrong-state", reason).remedy(remedy));
        };
        let clone = GitClone::around(&self.repo).await?;
        if let Some(what) = clone.under_way().await {
            let reason = format!("a {what} is under way in the clone");
            let remedy = format!("end it, or `git {what} --abort`");
            return Err(Failure::refused("wrong-state", reason).field("--repo", self.repo.display()).remedy(remedy));
        }
        let head = clone.commit("HEAD", "HEAD").await?;
        if !clone.contains(head, in_force).await {
            let reason = format!("the clone's HEAD does not contain {in_force}, which is in force");
            let remedy = format!("check out branch {} and `git pull`", basis.branch);
            return Err(Failure::refused("wrong-state", reason).field("--repo", self.repo.display()).remedy(remedy));
        }
        let then = clone.commit("<REVISION>", &self.revision).await?;
        if !clone.contains(head, then).await {
            let reason = format!("commit {then} is not in the history of HEAD, so nobody vouches for it");
            return Err(Failure::usage(reason)
                .field("<REVISION>", &self.revision)
                .remedy("'comity policy history' lists the commits that were in force"));
        }
        let objects = clone.objects().await?;
        let older = policy_of(&objects, &basis.folder, "<REVISION>", then)?;
        if clone.has_same(&basis.folder, head, then).await? {
            let reason = format!("the policy of HEAD is that of commit {then}");
            return Err(Failure::refused("wrong-state", reason).remedy("push HEAD, or name another commit"));
        }
        if self.dry_run {
            return session.print(&RollbackPlanned::new(then, &basis.bundle, &older));
        }
        // Fails now if the clone lacks objects, and not after the commit.
        basis.judge(&objects, head)?;
        let short: String = then.to_string().chars().take(12).collect();
        let message = self.message.clone().unwrap_or_else(|| format!("Roll back the policy to {short}"));
        let made = clone.commit_as_of(&basis.folder, (head, then), &message).await?;
        // The new objects are not in the database that is open.
        let verdict = basis.judge(&clone.objects().await?, made)?;
        session.print(&CommitJudged::new(made, basis.commit, &basis.bundle, &verdict))?;
        match verdict {
            Verdict::Unchanged | Verdict::Accepted(_) => {
                note(&format!("note: push it to branch {}; it comes into force at the next pull", basis.branch));
            }
            Verdict::Refused(_) => note("note: the commit cannot come into force yet: see the remedy above"),
        }
        Ok(())
    }
}
