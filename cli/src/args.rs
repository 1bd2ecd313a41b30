//! The top level of the command line: global flags and the list of commands.

use clap::{Parser, Subcommand};

use crate::commands::{
    audit, cluster, completions, context, doctor, institution, invitation, lease, login, man, offers, peering, policy,
    raft, request, status, top, user, version, whoami,
};
use crate::dev::DevArgs;
use crate::exit;
use crate::global_args::GlobalArgs;

const ABOUT: &str = "Lend and borrow GPUs between Kubernetes clusters";

const LONG_ABOUT: &str = "\
Lend and borrow GPUs between Kubernetes clusters

A platform team submits a request for GPUs. The broker checks it against policy, finds a donor, and relays the \
handshake between the two clusters. The lease is a namespace on the donor with exactly the requested GPUs; you \
reach it through an encrypted tunnel, with its own kubeconfig.";

const COMITY_EXAMPLES: &str = "\
Examples:
  comity dev                                  try a whole federation
  comity login                                join with a token
  comity run --tenant t --origin c --class frontier --image i -- python train.py
  comity request submit --tenant t --origin c --class frontier --gpus 3 --wait
  comity lease kubeconfig lease-1 --output-file gpus.kubeconfig
";

/// The parsed command line of `comity`.
#[derive(Debug, Parser)]
#[command(
    name = "comity",
    version,
    about = ABOUT,
    long_about = LONG_ABOUT,
    after_help = COMITY_EXAMPLES,
    after_long_help = format!("{COMITY_EXAMPLES}\n{}", exit::help()),
    max_term_width = 110,
    arg_required_else_help = true
)]
pub struct Args {
    /// Brokers, identity, output.
    #[command(flatten)]
    pub global: GlobalArgs,
    /// The command to run.
    #[command(subcommand)]
    pub command: Command,
}

/// The commands, named by noun; their subcommands are verbs.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Run a whole federation on this machine
    Dev(DevArgs),
    /// Run a command on borrowed GPUs, for as long as it runs
    Run(request::RunArgs),
    /// Brokers, clusters, GPUs, leases and queue on one screen
    Status(status::StatusArgs),
    /// GPU use, leases and queue, live
    Top(top::TopArgs),
    /// Who you are, and what policy lets you do
    Whoami(whoami::WhoamiArgs),
    /// Log in to a federation with the token that a maintainer gave you
    Login(login::LoginArgs),
    /// Federations that you have logged in to: list, choose
    #[command(subcommand)]
    Context(context::ContextCommand),
    /// Member clusters: invite, list, show, evict, voucher
    #[command(subcommand)]
    Cluster(cluster::ClusterCommand),
    /// Users: invite, revoke
    #[command(subcommand)]
    User(user::UserCommand),
    /// Institutions: suspend, resume
    #[command(subcommand)]
    Institution(institution::InstitutionCommand),
    /// Open invitations of clusters, users and brokers: list, revoke
    #[command(subcommand)]
    Invitation(invitation::InvitationCommand),
    /// GPUs that clusters lend
    Offers(offers::OffersArgs),
    /// What your tenants may use, and what they use
    Quotas(request::QuotasArgs),
    /// Requests for GPUs: submit, watch, cancel, explain
    #[command(subcommand)]
    Request(request::RequestCommand),
    /// Placement, start and price of a request, unsubmitted
    Quote(request::QuoteArgs),
    /// Leases: list, use, renew, release
    #[command(subcommand)]
    Lease(lease::LeaseCommand),
    /// Peerings: trust and network between two clusters
    #[command(subcommand)]
    Peering(peering::PeeringCommand),
    /// Policy bundles: check, test, plan, apply, show, why, source
    #[command(subcommand)]
    Policy(policy::PolicyCommand),
    /// The audit log: list, export, verify
    #[command(subcommand)]
    Audit(audit::AuditCommand),
    /// The broker group: status, members, leader
    #[command(subcommand)]
    Raft(raft::RaftCommand),
    /// Check identity, brokers, clock and rights
    Doctor(doctor::DoctorArgs),
    /// Completion script for your shell, with ids
    Completions(completions::CompletionsArgs),
    /// Manual pages of comity, comity-agent and comity-broker
    Man(man::ManArgs),
    /// Versions of this client and of the broker
    Version(version::VersionArgs),
}
