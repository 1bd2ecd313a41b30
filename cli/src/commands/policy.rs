//! `comity policy`: check, apply and show policy bundles.

use std::path::{Path, PathBuf};

use clap::{Args, Subcommand};
use comity_policy::{BundleSource, ReadError, Scan, SourceFile, read_directory, scan_directory};
use comity_proto::v1;
use comity_proto::v1::policy_service_client::PolicyServiceClient;

mod git;

use crate::failure::Failure;
use crate::session::{Session, call, idempotency_key};
use crate::views::{FileDetail, PolicyApplied, PolicyChecked, PolicyProblem, PolicyShown};

const CHECK_EXAMPLES: &str = "\
Examples:
  comity policy check policy/
  comity policy check policy/ -o json | jq -r '.problems[] | \"\\(.file):\\(.line): \\(.message)\"'
  comity policy check policy/ --deny-warnings

Needs no broker. Shows all problems of all files, and warnings about valid policy that is surely a
mistake, such as a tenant that no cluster lends to.
";
const APPLY_EXAMPLES: &str = "\
Examples:
  comity policy apply policy/
  comity policy apply policy/ --commit 4f5e6d7

The directory is one bundle, applied as a whole or not at all. In a Git work tree without changes,
the broker records the commit with it.
";
const POLICY_SHOW_EXAMPLES: &str = "\
Examples:
  comity policy show
  comity policy show --text
  comity policy show -o json | jq -r .hash
";

/// `comity policy`.
#[derive(Debug, Subcommand)]
#[command(after_help = "Examples:\n  comity policy check policy/\n  comity policy apply policy/\n")]
pub enum PolicyCommand {
    /// Check a directory of policy documents, without a broker
    #[command(after_help = CHECK_EXAMPLES)]
    Check(PolicyCheckArgs),
    /// Apply a directory of policy documents
    #[command(after_help = APPLY_EXAMPLES)]
    Apply(PolicyApplyArgs),
    /// Show the bundle in force
    #[command(after_help = POLICY_SHOW_EXAMPLES)]
    Show(PolicyShowArgs),
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

/// `comity policy apply`.
#[derive(Debug, Args)]
pub struct PolicyApplyArgs {
    /// Directory with the documents
    dir: PathBuf,
    /// Git commit to record [default: the directory's, in a work tree without changes]
    #[arg(long, value_name = "SHA")]
    commit: Option<String>,
    /// Key that makes a repeated call safe: the same key has no second effect [default: random]
    #[arg(long, value_name = "KEY")]
    idempotency_key: Option<String>,
}

/// `comity policy show`.
#[derive(Debug, Args)]
pub struct PolicyShowArgs {
    /// Show the text of all files
    #[arg(long)]
    text: bool,
}

impl PolicyCommand {
    /// Runs the subcommand.
    ///
    /// # Errors
    /// [`Failure`] of the call, or if standard output cannot be written.
    pub async fn run(&self, session: &Session) -> Result<(), Failure> {
        match self {
            Self::Check(args) => {
                let scan = scan_directory(&args.dir).map_err(|error| unreadable(&args.dir, &error))?;
                let checked = check(scan, args.warnings());
                session.print(&checked)?;
                check_outcome(&checked)
            }
            Self::Apply(args) => args.run(session).await,
            Self::Show(args) => {
                let mut client = PolicyServiceClient::new(session.channel()?);
                let request = v1::GetPolicyRequest { consistency: session.consistency() };
                let detail = if args.text { FileDetail::Text } else { FileDetail::Paths };
                session.print(&PolicyShown::new(call(client.get_policy(request)).await?, detail))
            }
        }
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

impl PolicyApplyArgs {
    async fn run(&self, session: &Session) -> Result<(), Failure> {
        let files = read_directory(&self.dir).map_err(|error| unreadable(&self.dir, &error))?;
        let commit = match &self.commit {
            Some(commit) => Some(commit.clone()),
            None => git::clean_commit(&self.dir).await,
        };
        let mut client = PolicyServiceClient::new(session.channel()?);
        let key = idempotency_key(self.idempotency_key.as_deref());
        let applied = apply(&mut client, files, commit, key).await?;
        session.print(&applied)?;
        if applied.ok { Ok(()) } else { Err(bad_bundle(applied.problems.len())) }
    }
}

/// Applies a bundle; the answer lists its problems.
///
/// # Errors
/// [`Failure`] of the call.
pub(crate) async fn apply(
    client: &mut PolicyServiceClient<comity_runtime::BrokerChannel>,
    files: Vec<SourceFile>,
    commit: Option<String>,
    idempotency_key: String,
) -> Result<PolicyApplied, Failure> {
    let files = files.into_iter().map(|file| v1::PolicyFile { path: file.path, text: file.text }).collect();
    let bundle = v1::PolicyBundle { files, commit: commit.clone().unwrap_or_default() };
    let response = call(client.apply_policy(v1::ApplyPolicyRequest { bundle: Some(bundle), idempotency_key })).await?;
    Ok(PolicyApplied {
        ok: response.problems.is_empty(),
        changed: response.changed,
        problems: response.problems.into_iter().map(PolicyProblem::from).collect(),
        hash: Some(response.hash).filter(|hash| !hash.is_empty()),
        documents: response.documents,
        commit,
    })
}

fn unreadable(dir: &Path, error: &ReadError) -> Failure {
    Failure::usage(error.to_string())
        .field("DIR", dir.display())
        .remedy("give the directory that has the Federation document")
}

/// Compiles the scanned files and reports all problems, or the warnings if there are none.
fn check(scan: Scan, on_warnings: Warnings) -> PolicyChecked {
    let (count, mut problems) = (scan.files.len(), scan.problems);
    match comity_policy::Bundle::compile(&BundleSource { files: scan.files, commit: None }) {
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

fn bad_bundle(problems: usize) -> Failure {
    Failure::refused("bad-policy", format!("the bundle is invalid; problems found: {problems}"))
        .remedy("fix the problems listed; nothing was applied")
}
