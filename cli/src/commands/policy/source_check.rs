//! `comity policy source check`: judges commits of a clone as the leader of the brokers would.

use std::path::PathBuf;

use clap::Args;
use comity_provenance::{PolicyFolder, Verdict};

use super::commit_basis::CommitBasis;
use super::git::GitClone;
use crate::failure::Failure;
use crate::output::note;
use crate::session::Session;
use crate::views::CommitJudged;

pub(super) const SOURCE_CHECK_EXAMPLES: &str = "\
Examples:
  comity policy source check                                  HEAD of the clone in this directory
  comity policy source check my-branch --repo ~/policy
  comity policy source check --base refs/remotes/origin/main       in a pipeline, without a broker

Judges the commits between the one in force and REVISION: whether the owners of all changed
documents signed. With --base it trusts the policy of that commit instead of asking a broker,
and cannot tell a merged branch from before `policy source set --new-history`: the broker can.
Nothing changes. A server's squash or rebase makes other commits, which are judged on their own.

Exit code 1 if the head could not come into force.
";

/// `comity policy source check`.
#[derive(Debug, Args)]
pub struct PolicySourceCheckArgs {
    /// Commit, branch or tag to judge
    #[arg(default_value = "HEAD")]
    revision: String,
    /// Directory of the clone
    #[arg(long, value_name = "DIR", default_value = ".")]
    repo: PathBuf,
    /// Trust the policy of this commit, and ask no broker
    #[arg(long, value_name = "REVISION")]
    base: Option<String>,
    /// Folder with the policy [default: that of the source; with --base the whole repository]
    #[arg(long, value_name = "PATH", value_parser = parse_folder)]
    folder: Option<PolicyFolder>,
}

impl PolicySourceCheckArgs {
    pub(super) async fn run(&self, session: &Session) -> Result<(), Failure> {
        let clone = GitClone::around(&self.repo).await?;
        let head = clone.commit("<REVISION>", &self.revision).await?;
        let basis = match &self.base {
            Some(base) => CommitBasis::trusted(&clone, base, self.folder.clone().unwrap_or_default()).await?,
            None => CommitBasis::in_force(session, self.folder.clone()).await?,
        };
        if self.base.is_none() && !basis.has_source {
            note(
                "note: the policy has no source: the commits are compared with the documents in force, as those of a new source are",
            );
        }
        let verdict = basis.judge(&clone.objects().await?, head)?;
        session.print(&CommitJudged::new(head, basis.commit, &basis.bundle, &verdict))?;
        match verdict {
            Verdict::Unchanged | Verdict::Accepted(_) => Ok(()),
            Verdict::Refused(refused) => {
                let reason = format!("commit {head} cannot come into force: {}", refused.reason.code());
                // The table above shows the remedy.
                let shown = "do what the answer says, and check again".to_owned();
                let remedy = if session.format.is_for_scripts() { refused.remedy() } else { shown };
                Err(Failure::refused("commit-refused", reason).remedy(remedy))
            }
        }
    }
}

fn parse_folder(text: &str) -> Result<PolicyFolder, String> {
    text.parse().map_err(|error: comity_provenance::InvalidFolder| error.to_string())
}
