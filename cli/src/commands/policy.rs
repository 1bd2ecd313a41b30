//! `comity policy`: check, test, plan, apply and show policy bundles, and their schemas.

use std::path::PathBuf;

use clap::{Args, Subcommand};
use comity_policy::{BundleSource, Scan, scan_directory};
use comity_proto::v1;
use comity_proto::v1::policy_service_client::PolicyServiceClient;

mod apply;
mod bad_bundle;
mod bundle_to_apply;
mod commit_basis;
mod edit_in_force;
mod git;
mod history;
mod junit;
mod plan;
mod push;
mod reservations;
mod rollback;
mod save;
mod schema;
mod source;
mod source_check;
mod test;
mod why;

pub use apply::PolicyApplyArgs;
pub(crate) use apply::apply;
pub(crate) use bundle_to_apply::BundleToApply;
pub(crate) use edit_in_force::{bundle_in_force, compiled, edit_in_force, note_that_policy_stays_changed};
pub use history::PolicyHistoryArgs;
pub use plan::PolicyPlanArgs;
pub use push::PolicyPushArgs;
pub use reservations::PolicyReservationsArgs;
pub use rollback::PolicyRollbackArgs;
pub use schema::PolicySchemaArgs;
pub use source::PolicySourceCommand;
pub use test::PolicyTestArgs;
pub use why::PolicyWhyArgs;

use self::bad_bundle::{bad_bundle, unreadable};
use self::save::save;
use crate::exit::Success;
use crate::failure::Failure;
use crate::session::{Session, call};
use crate::views::{FileDetail, PolicyChecked, PolicyProblem, PolicyShown};

const CHECK_EXAMPLES: &str = "\
Examples:
  comity policy check policy/
  comity policy check policy/ -o json | jq -r '.problems[] | \"\\(.file):\\(.line): \\(.message)\"'
  comity policy check policy/ --deny-warnings

Needs no broker. Shows all problems of all files, and warnings about valid policy that is surely a
mistake, such as a tenant that no cluster lends to.
";
const POLICY_SHOW_EXAMPLES: &str = "\
Examples:
  comity policy show
  comity policy show --text
  comity policy show --out policy/            # to take it into Git
  comity policy show -o json | jq -r .hash
";

/// `comity policy`.
#[derive(Debug, Subcommand)]
#[command(
    after_help = "Examples:\n  comity policy check policy/\n  comity policy test policy/\n  comity policy plan policy/\n  \
                  comity policy apply policy/\n"
)]
pub enum PolicyCommand {
    /// Check a directory of policy documents, without a broker
    #[command(after_help = CHECK_EXAMPLES)]
    Check(PolicyCheckArgs),
    /// Run the tests beside a policy, without a broker
    Test(PolicyTestArgs),
    /// Print the JSON Schemas of the documents, for editors
    Schema(PolicySchemaArgs),
    /// Say what a directory of policy documents would change, for documents, leases, requests and capacity
    Plan(PolicyPlanArgs),
    /// Apply a directory of policy documents
    Apply(PolicyApplyArgs),
    /// Show the bundle in force
    #[command(after_help = POLICY_SHOW_EXAMPLES)]
    Show(PolicyShowArgs),
    /// List what reservations keep, now or in their next windows
    Reservations(PolicyReservationsArgs),
    /// List the bundles that came into force
    History(PolicyHistoryArgs),
    /// Push the commits of a clone to a registry, as an artifact that brokers pull
    Push(PolicyPushArgs),
    /// Make a signed commit with the policy of an older one
    Rollback(PolicyRollbackArgs),
    /// Say what was decided about a request, and the documents and lines behind it
    Why(PolicyWhyArgs),
    /// The repository or artifact that the leader pulls the policy from
    #[command(subcommand)]
    Source(PolicySourceCommand),
}

/// `comity policy check`.
#[derive(Debug, Args)]
pub struct PolicyCheckArgs {
    /// Directory with the documents
    dir: PathBuf,
    /// Fail if there are warnings
    #[arg(long)]
    deny_warnings: bool,
}

/// `comity policy show`.
#[derive(Debug, Args)]
pub struct PolicyShowArgs {
    /// Show the text of all files
    #[arg(long)]
    text: bool,
    /// Write the files into this directory, which must be empty or new
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
}

impl PolicyCommand {
    /// Whether every error has the exit code 1.
    #[must_use]
    pub const fn has_detailed_exitcode(&self) -> bool {
        matches!(self, Self::Plan(args) if args.has_detailed_exitcode())
    }

    /// Runs the subcommand.
    ///
    /// # Errors
    /// [`Failure`] of the call, or if standard output cannot be written.
    pub async fn run(&self, session: &Session) -> Result<Success, Failure> {
        let done = match self {
            Self::Plan(args) => return args.run(session).await,
            Self::Check(args) => {
                let scan = scan_directory(&args.dir).map_err(|error| unreadable(&args.dir, &error))?;
                let checked = check(scan, args.warnings());
                session.print(&checked)?;
                check_outcome(&checked)
            }
            Self::Test(args) => args.run(session),
            Self::Schema(args) => args.run(session),
            Self::Apply(args) => args.run(session).await,
            Self::Reservations(args) => args.run(session).await,
            Self::History(args) => args.run(session).await,
            Self::Push(args) => args.run(session).await,
            Self::Rollback(args) => args.run(session).await,
            Self::Why(args) => args.run(session).await,
            Self::Source(command) => command.run(session).await,
            Self::Show(args) => {
                let mut client = PolicyServiceClient::new(session.channel()?);
                let request = v1::GetPolicyRequest { consistency: session.consistency() };
                let detail = if args.text { FileDetail::Text } else { FileDetail::Paths };
                let answer = call(client.get_policy(request)).await?;
                if let Some(directory) = &args.out {
                    save(answer.bundle.as_ref().map_or(&[], |bundle| bundle.files.as_slice()), directory)?;
                }
                session.print(&PolicyShown::new(answer, detail))
            }
        };
        done.map(|()| Success::Done)
    }
}

/// Whether warnings fail a check.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Warnings {
    Allowed,
    Denied,
}

impl PolicyCheckArgs {
    const fn warnings(&self) -> Warnings {
        if self.deny_warnings { Warnings::Denied } else { Warnings::Allowed }
    }
}

/// Compiles the scanned files and reports all problems, or the warnings if there are none.
fn check(scan: Scan, on_warnings: Warnings) -> PolicyChecked {
    let (count, mut problems) = (scan.files.len(), scan.problems);
    match comity_policy::Bundle::compile(&BundleSource::of_files(scan.files)) {
        Ok(bundle) if problems.is_empty() => {
            let warnings: Vec<PolicyProblem> = bundle.warnings().iter().map(PolicyProblem::from).collect();
            return PolicyChecked {
                ok: on_warnings == Warnings::Allowed || warnings.is_empty(),
                problems: Vec::new(),
                warnings,
                hash: Some(bundle.hash.clone()),
                documents: Some(u32::try_from(bundle.document_count()).unwrap_or(u32::MAX)),
                files: count,
            };
        }
        Ok(_) => {}
        Err(found) => problems.extend(found),
    }
    problems.sort();
    PolicyChecked {
        ok: false,
        problems: problems.iter().map(PolicyProblem::from).collect(),
        warnings: Vec::new(),
        hash: None,
        documents: None,
        files: count,
    }
}

/// The result of `policy check`: a failure unless the bundle is accepted.
fn check_outcome(checked: &PolicyChecked) -> Result<(), Failure> {
    if checked.ok {
        return Ok(());
    }
    if !checked.problems.is_empty() {
        return Err(bad_bundle(checked.problems.len()));
    }
    let found = checked.warnings.len();
    Err(Failure::refused("policy-warnings", format!("--deny-warnings refuses the bundle; warnings found: {found}"))
        .remedy("fix the warnings listed, or leave out --deny-warnings"))
}
