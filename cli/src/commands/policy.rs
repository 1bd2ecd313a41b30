//! `comity policy`.

use std::path::{Path, PathBuf};

use clap::{Args, Subcommand};
use comity_policy::{BundleSource, ReadError, Scan, SourceFile, read_directory, scan_directory};
use comity_proto::v1;
use comity_proto::v1::policy_service_client::PolicyServiceClient;

mod git;

use crate::failure::Failure;
use crate::session::{Session, call, idempotency_key};
use crate::views::{PolicyApplied, PolicyChecked, PolicyProblem, PolicyShown};

const CHECK_EXAMPLES: &str = "\
Examples:
  comity policy check policy/
  comity policy check policy/ -o json | jq -r '.problems[] | \"\\(.file):\\(.line): \\(.message)\"'
  comity policy check policy/ --deny-warnings

Needs no broker. All problems of all files are shown, not just the first; and warnings of what may be applied and is surely not
meant, such as a tenant that nobody lends to.
";
const APPLY_EXAMPLES: &str = "\
Examples:
  comity policy apply policy/
  comity policy apply policy/ --commit 4f5e6d7

The directory is one bundle: it is applied as a whole, or not at all. In a Git work tree without changes the commit is
recorded with it.
";
const SHOW_EXAMPLES: &str = "\
Examples:
  comity policy show
  comity policy show --text
  comity policy show -o json | jq -r .hash
";

/// `comity policy`.
#[derive(Debug, Subcommand)]
#[command(after_help = "Examples:\n  comity policy check policy/\n  comity policy apply policy/\n")]
pub enum PolicyCommand {
    /// Checks a directory of policy documents, without a broker
    #[command(after_help = CHECK_EXAMPLES)]
    Check(CheckArgs),
    /// Applies a directory of policy documents
    #[command(after_help = APPLY_EXAMPLES)]
    Apply(ApplyArgs),
    /// Shows the bundle in force
    #[command(after_help = SHOW_EXAMPLES)]
    Show(ShowArgs),
}

/// `comity policy check`.
#[derive(Debug, Args)]
pub struct CheckArgs {
    /// Directory with the documents
    dir: PathBuf,
    /// Fails if there are warnings
    #[arg(long)]
    deny_warnings: bool,
}

/// `comity policy apply`.
#[derive(Debug, Args)]
pub struct ApplyArgs {
    /// Directory with the documents
    dir: PathBuf,
    /// Git commit to record [default: that of a work tree without changes]
    #[arg(long, value_name = "SHA")]
    commit: Option<String>,
    /// Repeats an earlier call without a second effect
    #[arg(long, value_name = "KEY")]
    idempotency_key: Option<String>,
}

/// `comity policy show`.
#[derive(Debug, Args)]
pub struct ShowArgs {
    /// With the text of all files
    #[arg(long)]
    text: bool,
}

impl PolicyCommand {
    /// Runs it.
    ///
    /// # Errors
    /// [`Failure`].
    pub async fn run(&self, session: &Session) -> Result<(), Failure> {
        match self {
            Self::Check(args) => {
                let scan = scan_directory(&args.dir).map_err(|error| unreadable(&args.dir, &error))?;
                let checked = check(scan, args.deny_warnings);
                session.print(&checked)?;
                checked_well(&checked)
            }
            Self::Apply(args) => args.run(session).await,
            Self::Show(args) => {
                let mut client = PolicyServiceClient::new(session.channel()?);
                let request = v1::GetPolicyRequest { consistency: session.consistency() };
                session.print(&PolicyShown::new(call(client.get_policy(request)).await?, args.text))
            }
        }
    }
}

impl ApplyArgs {
    async fn run(&self, session: &Session) -> Result<(), Failure> {
        let files = read(&self.dir)?;
        let commit = match &self.commit {
            Some(commit) => Some(commit.clone()),
            None => git::commit_of(&self.dir).await,
        };
        let mut client = PolicyServiceClient::new(session.channel()?);
        let key = idempotency_key(self.idempotency_key.as_deref());
        let applied = apply(&mut client, files, commit, key).await?;
        session.print(&applied)?;
        verdict(applied.ok, applied.problems.len())
    }
}

/// Applies a bundle.
///
/// # Errors
/// [`Failure`]; problems of the bundle are in the answer.
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

fn read(dir: &Path) -> Result<Vec<SourceFile>, Failure> {
    read_directory(dir).map_err(|error| unreadable(dir, &error))
}

fn unreadable(dir: &Path, error: &ReadError) -> Failure {
    Failure::usage(error.to_string())
        .field("DIR", dir.display())
        .remedy("name the directory that has the Federation document")
}

fn check(scan: Scan, deny_warnings: bool) -> PolicyChecked {
    let (count, mut problems) = (scan.files.len(), scan.problems);
    match comity_policy::Bundle::compile(&BundleSource { files: scan.files, commit: None }) {
        Ok(bundle) if problems.is_empty() => {
            let warnings: Vec<PolicyProblem> = bundle.warnings().iter().map(PolicyProblem::from).collect();
            return PolicyChecked {
                ok: !deny_warnings || warnings.is_empty(),
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

fn checked_well(checked: &PolicyChecked) -> Result<(), Failure> {
    if !checked.ok && checked.problems.is_empty() {
        let found = checked.warnings.len();
        return Err(Failure::refused(
            "policy-warnings",
            format!("the bundle has warnings, and they are denied: {found} found"),
        )
        .remedy("mend what is listed, or leave out --deny-warnings"));
    }
    verdict(checked.ok, checked.problems.len())
}

fn verdict(ok: bool, problems: usize) -> Result<(), Failure> {
    if ok {
        return Ok(());
    }
    Err(Failure::refused("bad-policy", format!("the bundle is not good: {problems} found"))
        .remedy("mend what is listed; nothing was applied"))
}
