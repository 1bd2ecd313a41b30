//! `comity policy source`: the repository or artifact that the leader pulls the policy from.

use clap::{Args, Subcommand};
use comity_proto::v1;
use comity_proto::v1::policy_service_client::PolicyServiceClient;

use super::source_check::{PolicySourceCheckArgs, SOURCE_CHECK_EXAMPLES};
use crate::confirm::ConfirmArgs;
use crate::failure::Failure;
use crate::session::{Session, call};
use crate::units::DurationBounds;
use crate::views::PolicySourceShown;

const SOURCE_EXAMPLES: &str = "\
Examples:
  comity policy source set https://git.example/federation/policy.git --folder policy
  comity policy source show
  comity policy source check              in a clone, before you push
";
const SOURCE_SET_EXAMPLES: &str = "\
Examples:
  comity policy source set https://git.example/federation/policy.git --folder policy
  comity policy source set /srv/git/policy.git --branch production --interval 5m
  comity policy source set oci://registry.example/policy:main --folder policy

The leader pulls the branch and puts its head into force if the owners of all changed
documents signed their changes, where the policy requires signatures
(signatures.required of the Federation). Otherwise the bundle in force stays, and
'comity policy source show' says which signature is missing. The address has no
password: give each broker a token with --policy-credentials or --policy-registry-config,
or a key with --policy-ssh-key.
";
const SOURCE_SHOW_EXAMPLES: &str = "\
Examples:
  comity policy source show
  comity policy source show -o json | jq -r '.failure.reason // \"in force\"'
";
const SOURCE_REMOVE_EXAMPLES: &str = "\
Examples:
  comity policy source remove

The bundle in force stays. Where the policy requires signatures, nobody can change it
until a source is set again.
";

/// `comity policy source`.
#[derive(Debug, Subcommand)]
#[command(after_help = SOURCE_EXAMPLES)]
pub enum PolicySourceCommand {
    /// Name the repository or artifact that the leader pulls the policy from
    #[command(after_help = SOURCE_SET_EXAMPLES)]
    Set(PolicySourceSetArgs),
    /// Show the repository, the commit in force, and why a newer one is not
    #[command(after_help = SOURCE_SHOW_EXAMPLES)]
    Show,
    /// Say whether commits of a clone could come into force, and whose signature is missing
    #[command(after_help = SOURCE_CHECK_EXAMPLES)]
    Check(PolicySourceCheckArgs),
    /// End the pulling; the bundle in force stays
    #[command(after_help = SOURCE_REMOVE_EXAMPLES)]
    Remove(PolicySourceRemoveArgs),
}

/// `comity policy source set`.
#[derive(Debug, Args)]
pub struct PolicySourceSetArgs {
    /// Address (https://, ssh:// or oci://, without a password), or absolute path on the brokers' machines
    repository: String,
    /// Branch
    #[arg(long, value_name = "NAME", default_value = "main")]
    branch: String,
    /// Folder with the policy [default: the whole repository]
    #[arg(long, value_name = "PATH", default_value = "", hide_default_value = true)]
    folder: String,
    /// Time between pulls, 5s to 24h
    #[arg(long, value_name = "DURATION", default_value = "1m", value_parser = DurationBounds::PULL.parser(),
        allow_hyphen_values = true)]
    interval: u64,
    /// Accept a history without the commit in force, as of a repository that was made again.
    ///
    /// Its head is then compared with the bundle in force, and the owners of all documents that differ must have signed
    /// the head itself, in a message that ends with `Replaces: HASH`, the hash of the bundle in force.
    #[arg(long)]
    new_history: bool,
}

/// `comity policy source remove`.
#[derive(Debug, Args)]
pub struct PolicySourceRemoveArgs {
    #[command(flatten)]
    confirm: ConfirmArgs,
}

impl PolicySourceCommand {
    pub(super) async fn run(&self, session: &Session) -> Result<(), Failure> {
        let client = || session.channel().map(PolicyServiceClient::new);
        match self {
            Self::Check(args) => args.run(session).await,
            Self::Set(args) => {
                let request = v1::SetPolicySourceRequest {
                    repository: args.repository.clone(),
                    branch: args.branch.clone(),
                    folder: args.folder.clone(),
                    interval_ms: args.interval,
                    new_history: args.new_history,
                };
                let answer = call(client()?.set_policy_source(request)).await?;
                session.print(&PolicySourceShown::from(answer.source))
            }
            Self::Show => {
                let request = v1::GetPolicyRequest { consistency: session.consistency() };
                let answer = call(client()?.get_policy(request)).await?;
                session.print(&PolicySourceShown::from(answer.source))
            }
            Self::Remove(args) => {
                args.confirm.ask_about("The policy is no longer pulled; the bundle in force stays.")?;
                call(client()?.remove_policy_source(v1::RemovePolicySourceRequest {})).await?;
                session.print(&PolicySourceShown::from(None))
            }
        }
    }
}
