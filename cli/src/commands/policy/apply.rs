//! `comity policy apply`: says what a bundle changes, asks, and applies it.

use std::path::PathBuf;

use clap::Args;
use comity_policy::read_directory;
use comity_proto::v1;
use comity_proto::v1::policy_service_client::PolicyServiceClient;
use comity_runtime::BrokerChannel;

use super::bad_bundle::{bad_bundle, unreadable};
use super::bundle_to_apply::BundleToApply;
use super::git;
use super::plan::plan;
use crate::confirm::ConfirmArgs;
use crate::failure::Failure;
use crate::output::{Format, Page, write_stderr};
use crate::session::{Session, call, idempotency_key};
use crate::views::{PolicyApplied, PolicyPlan, PolicyProblem};

const APPLY_EXAMPLES: &str = "\
Examples:
  comity policy apply policy/
  comity policy apply policy/ --yes             in a pipeline: do not ask
  comity policy apply policy/ --commit 4f5e6d7
  comity policy apply policy/ --yes --expected-hash \"$HASH\"

The directory is one bundle, applied as a whole or not at all. In a Git work
tree without changes, the broker records the commit. The command names leases
that end or cannot be renewed, waiting requests that become possible or
impossible, and clusters that lend more or less, and asks if there are any.
'comity policy plan' shows the same in full and applies nothing. The command
fails if another bundle comes into force meanwhile (policy-changed).
";

/// `comity policy apply`.
#[derive(Debug, Args)]
#[command(after_help = APPLY_EXAMPLES)]
pub struct PolicyApplyArgs {
    /// Directory with the documents
    dir: PathBuf,
    /// Git commit to record [default: the directory's, in a work tree without changes]
    #[arg(long, value_name = "SHA")]
    commit: Option<String>,
    /// Apply it only if the bundle in force has this hash; '' only if there is none [default: when you see the plan]
    #[arg(long, value_name = "HASH", hide_short_help = true)]
    expected_hash: Option<String>,
    /// Apply it even if nobody, or not you, can apply another bundle after that
    #[arg(long)]
    force: bool,
    #[command(flatten)]
    confirm: ConfirmArgs,
    /// Key that makes a repeated call safe: the same key has no second effect [default: random]
    #[arg(long, value_name = "KEY")]
    idempotency_key: Option<String>,
}

/// Code of the refusal to replace another bundle than the expected one.
pub(super) const POLICY_CHANGED: &str = "policy-changed";

impl PolicyApplyArgs {
    pub(super) async fn run(&self, session: &Session) -> Result<(), Failure> {
        let files = read_directory(&self.dir).map_err(|error| unreadable(&self.dir, &error))?;
        let commit = match &self.commit {
            Some(commit) => Some(commit.clone()),
            None => git::commit_to_record(&self.dir).await,
        };
        let bundle = BundleToApply { files, commit, force: self.force, expected_hash: self.expected_hash.clone() };
        let mut client = PolicyServiceClient::new(session.channel()?);
        let planned = plan(&mut client, bundle.clone()).await?;
        if !planned.ok {
            session.print(&planned)?;
            return Err(bad_bundle(planned.problems.len()));
        }
        if planned.replaces {
            ask_about(&planned.plan, &self.confirm, session.format)?;
        }
        let key = idempotency_key(self.idempotency_key.as_deref());
        // What was confirmed is what happens.
        let bundle = BundleToApply { expected_hash: bundle.expected_hash.or(Some(planned.in_force_hash)), ..bundle };
        let applied = apply(&mut client, bundle, key).await.map_err(|failure| self.changed_meanwhile(failure))?;
        let applied = PolicyApplied { plan: Some(planned.plan), ..applied };
        session.print(&applied)?;
        if applied.ok { Ok(()) } else { Err(bad_bundle(applied.problems.len())) }
    }

    /// Names the cause of a refusal that the caller could not foresee.
    fn changed_meanwhile(&self, failure: Failure) -> Failure {
        if failure.code != POLICY_CHANGED || self.expected_hash.is_some() {
            return failure;
        }
        let reason = format!("the policy changed after the bundle was planned: {}", failure.reason);
        Failure::refused(POLICY_CHANGED, reason).remedy("run the command again, to see the plan now")
    }
}

/// Shows what a bundle takes away, and asks unless it is nothing.
///
/// # Errors
/// [`Failure`]: the caller declines, or nobody can answer.
pub(super) fn ask_about(plan: &PolicyPlan, confirm: &ConfirmArgs, format: Format) -> Result<(), Failure> {
    let asks = confirm.asks() && !plan.is_harmless();
    // Scripts get the plan with the answer.
    if asks || !format.is_for_scripts() {
        write_stderr(&plan.short_sheet().render(Page::stderr()));
    }
    if asks { confirm.ask("The bundle takes effect at once.") } else { Ok(()) }
}

/// Applies a bundle; the answer lists its problems.
///
/// # Errors
/// [`Failure`] of the call.
pub(crate) async fn apply(
    client: &mut PolicyServiceClient<BrokerChannel>,
    bundle: BundleToApply,
    idempotency_key: String,
) -> Result<PolicyApplied, Failure> {
    let (message, commit, force, expected_hash) = bundle.into_message();
    let request = v1::ApplyPolicyRequest { bundle: Some(message), idempotency_key, force, expected_hash };
    let response = call(client.apply_policy(request)).await?;
    Ok(PolicyApplied {
        ok: response.problems.is_empty(),
        changed: response.changed,
        problems: response.problems.into_iter().map(PolicyProblem::from).collect(),
        hash: Some(response.hash).filter(|hash| !hash.is_empty()),
        documents: response.documents,
        commit,
        plan: None,
    })
}
