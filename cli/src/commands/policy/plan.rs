//! `comity policy plan`: says what a bundle would change, and applies nothing.

use std::path::PathBuf;

use clap::Args;
use comity_policy::read_directory;
use comity_proto::v1;
use comity_proto::v1::policy_service_client::PolicyServiceClient;
use comity_runtime::BrokerChannel;

use super::bad_bundle::{bad_bundle, unreadable};
use super::bundle_to_apply::BundleToApply;
use super::git;
use crate::exit::Success;
use crate::failure::Failure;
use crate::session::{Session, call};
use crate::views::PolicyPlanned;

const PLAN_EXAMPLES: &str = "\
Examples:
  comity policy plan policy/
  comity policy plan policy/ -o markdown > plan.md        a comment for a merge request
  comity policy plan policy/ -o json | jq '.plan.leases[] | {lease, treatment, untilMs}'
  comity policy plan policy/ --detailed-exitcode          in a pipeline

Compares the directory with the bundle in force: the documents that are added,
changed and removed, and what follows for the federation as it is now. The
broker applies the bundle to a copy of its state, and its scheduler plans there:
  - leases that would end, with their last moment, or could not be renewed
  - waiting requests that would become possible or impossible, and why
  - what tenants could borrow from whom, or no longer
  - what clusters, institutions and cohorts would lend, and could borrow
  - who would be served next

Nothing changes. Maintainers and planners may plan: a plan names all leases.

Exit codes with --detailed-exitcode:
    0  no changes
    1  any error
    2  the bundle would change a document
";

/// `comity policy plan`.
#[derive(Debug, Args)]
#[command(after_help = PLAN_EXAMPLES)]
pub struct PolicyPlanArgs {
    /// Directory with the documents
    dir: PathBuf,
    /// Exit with code 2 if there are changes, and with code 1 for every error
    #[arg(long)]
    detailed_exitcode: bool,
    /// Plan it even if nobody, or not you, could apply another bundle after that
    #[arg(long)]
    force: bool,
}

impl PolicyPlanArgs {
    /// Whether every error has the exit code 1.
    pub(crate) const fn has_detailed_exitcode(&self) -> bool {
        self.detailed_exitcode
    }

    pub(super) async fn run(&self, session: &Session) -> Result<Success, Failure> {
        let files = read_directory(&self.dir).map_err(|error| unreadable(&self.dir, &error))?;
        let commit = git::clean_commit(&self.dir).await;
        let bundle = BundleToApply { files, commit, force: self.force, expected_hash: None };
        let planned = plan(&mut PolicyServiceClient::new(session.channel()?), bundle).await?;
        session.print(&planned)?;
        if !planned.ok {
            return Err(bad_bundle(planned.problems.len()));
        }
        let changes = self.detailed_exitcode && planned.plan.has_changes();
        Ok(if changes { Success::Changes } else { Success::Done })
    }
}

/// Plans a bundle; the answer lists its problems.
///
/// # Errors
/// [`Failure`] of the call.
pub(super) async fn plan(
    client: &mut PolicyServiceClient<BrokerChannel>,
    bundle: BundleToApply,
) -> Result<PolicyPlanned, Failure> {
    let (message, _, force, expected_hash) = bundle.into_message();
    let request = v1::PlanPolicyRequest { bundle: Some(message), force, expected_hash };
    Ok(call(client.plan_policy(request)).await?.into())
}
