//! The command line.

use std::path::PathBuf;

use clap::{Args as ClapArgs, Parser, Subcommand};

use crate::commands::{cluster, completions, lease, offers, peering, policy, quote, raft, request, version};
use crate::dev::DevArgs;
use crate::exit;
use crate::output::Format;

const ABOUT: &str = "Lend and borrow GPUs between Kubernetes clusters";

const LONG_ABOUT: &str = "\
Lend and borrow GPUs between Kubernetes clusters.

A platform team submits a request for GPUs. The broker checks it against policy, finds a donor, and carries the \
handshake that lets the two clusters peer. The lease is then a namespace on the donor with exactly the GPUs asked for, \
reached through an encrypted tunnel with a kubeconfig of its own.";

const EXAMPLES: &str = "\
Examples:
  comity dev                                  a whole federation on this machine, to try
  comity offers                               what clusters lend now
  comity request submit --tenant poly-ml --origin polytech-campus --class frontier --gpus 3 --duration 2h --wait
  comity lease list
  comity lease kubeconfig lease-1 --output-file gpus.kubeconfig
";

/// `comity`.
#[derive(Debug, Parser)]
#[command(
    name = "comity",
    version,
    about = ABOUT,
    long_about = LONG_ABOUT,
    after_help = format!("{EXAMPLES}\n{}", exit::help()),
    max_term_width = 110,
    arg_required_else_help = true
)]
pub struct Args {
    /// Where and as whom.
    #[command(flatten)]
    pub global: GlobalArgs,
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// Flags of every command.
#[derive(Debug, ClapArgs)]
pub struct GlobalArgs {
    /// Brokers to ask, the first that answers; comma-separated
    #[arg(long, global = true, env = "COMITY_BROKER", value_name = "HOST:PORT,…", help_heading = "Global options")]
    pub broker: Option<String>,
    /// Directory with your certificate: key.pem, cert.pem, ca.pem [default: ~/.config/comity/identity]
    #[arg(long, global = true, env = "COMITY_IDENTITY", value_name = "DIR", help_heading = "Global options")]
    pub identity: Option<PathBuf>,
    /// How answers look: tables for people, json and yaml for scripts
    #[arg(
        short,
        long,
        global = true,
        value_enum,
        default_value_t,
        value_name = "FORMAT",
        help_heading = "Global options"
    )]
    pub output: Format,
    /// Read what the broker that answers has, even if it lags behind the others
    #[arg(long, global = true, help_heading = "Global options")]
    pub stale: bool,
    /// Say on standard error what is done; twice for all details
    #[arg(short, long, global = true, action = clap::ArgAction::Count, help_heading = "Global options")]
    pub verbose: u8,
}

/// The commands: nouns, then verbs.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Runs a whole federation on this machine: three brokers and four clusters
    Dev(DevArgs),
    /// Member clusters: list them, look at one, invite another
    #[command(subcommand)]
    Cluster(cluster::ClusterCommand),
    /// What clusters lend
    Offers(offers::OffersArgs),
    /// Requests for GPUs: submit, follow, understand
    #[command(subcommand)]
    Request(request::RequestCommand),
    /// What would happen to a request, without submitting it
    Quote(quote::QuoteArgs),
    /// Leases: look at them, use, renew, give back
    #[command(subcommand)]
    Lease(lease::LeaseCommand),
    /// Trust and network between two clusters
    #[command(subcommand)]
    Peering(peering::PeeringCommand),
    /// Policy bundles: check, apply, show
    #[command(subcommand)]
    Policy(policy::PolicyCommand),
    /// The broker group
    #[command(subcommand)]
    Raft(raft::RaftCommand),
    /// Completions for your shell
    Completions(completions::CompletionsArgs),
    /// Versions of this command and of the broker
    Version(version::VersionArgs),
}
