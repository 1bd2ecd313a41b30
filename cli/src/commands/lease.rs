//! `comity lease`: leases and their kubeconfigs.

use clap::{Args, Subcommand};
use comity_proto::v1;
use comity_proto::v1::lease_service_client::LeaseServiceClient;

mod get_lease;
mod kubeconfig;
mod kubeconfig_source;
mod local_api;
mod release;
mod renew;
mod secret;

pub(crate) use get_lease::get_lease;
pub use kubeconfig::KubeconfigArgs;
pub use kubeconfig_source::KubeconfigSource;
pub(crate) use local_api::fetch_kubeconfig;
pub use release::LeaseReleaseArgs;
pub use renew::LeaseRenewArgs;
pub(crate) use secret::kube_client;

use super::completions::known_ids;
use crate::failure::Failure;
use crate::listings;
use crate::live::{ChangeSource, WatchArgs};
use crate::session::{Session, call, idempotency_key};

const LEASE_LIST_EXAMPLES: &str = "\
Examples:
  comity lease list
  comity lease list --cluster ncc-main --all
  comity lease list --watch            repaint on each change; in a pipe, print the rows that changed
  comity lease list -o json | jq -r '.items[] | select(.state == \"active\") | .id'
";
const LEASE_SHOW_EXAMPLES: &str = "\
Examples:
  comity lease show lease-7
";
const CHECKPOINTED_EXAMPLES: &str = "\
Examples:
  comity lease show lease-7            see whether it is being reclaimed, and its deadline
  comity lease checkpointed lease-7    work is saved: the lease may end now, or migrate
";

/// `comity lease`.
#[derive(Debug, Subcommand)]
#[command(
    after_help = "Examples:\n  comity lease list\n  comity lease kubeconfig lease-7 --output-file gpus.kubeconfig\n"
)]
pub enum LeaseCommand {
    /// List leases
    #[command(after_help = LEASE_LIST_EXAMPLES)]
    List(LeaseListArgs),
    /// Show one lease
    #[command(after_help = LEASE_SHOW_EXAMPLES)]
    Show(LeaseShowArgs),
    /// Release a lease before it expires
    Release(LeaseReleaseArgs),
    /// Start a new term now
    Renew(LeaseRenewArgs),
    /// Report that the work of a lease is saved; a lease that is being reclaimed then ends
    #[command(after_help = CHECKPOINTED_EXAMPLES)]
    Checkpointed(CheckpointedArgs),
    /// Get the kubeconfig for the lease's namespace on the donor
    Kubeconfig(KubeconfigArgs),
}

/// `comity lease list`.
#[derive(Debug, Args)]
pub struct LeaseListArgs {
    /// Only leases of this tenant
    #[arg(long, add = known_ids::tenants())]
    tenant: Option<String>,
    /// Only leases with this origin or donor
    #[arg(long, add = known_ids::policy_clusters())]
    cluster: Option<String>,
    /// Include ended leases
    #[arg(long)]
    all: bool,
    #[command(flatten)]
    watch: WatchArgs,
}

/// `comity lease show`.
#[derive(Debug, Args)]
pub struct LeaseShowArgs {
    /// Lease, as in lease-7
    #[arg(add = known_ids::leases())]
    lease: String,
}

/// `comity lease checkpointed`.
#[derive(Debug, Args)]
pub struct CheckpointedArgs {
    /// Lease, as in lease-7
    #[arg(add = known_ids::leases())]
    lease: String,
    /// Key that makes a repeated call safe: the same key has no second effect [default: random]
    #[arg(long, value_name = "KEY")]
    idempotency_key: Option<String>,
}

impl LeaseCommand {
    /// Runs the subcommand.
    ///
    /// # Errors
    /// [`Failure`] of the call, or if standard output cannot be written.
    pub async fn run(&self, session: &Session) -> Result<(), Failure> {
        let lease = match self {
            Self::List(args) => return args.run(session).await,
            Self::Kubeconfig(args) => return args.run(session).await,
            Self::Show(args) => get_lease(session, &args.lease).await?,
            Self::Release(args) => args.run(session).await?,
            Self::Checkpointed(args) => {
                let request = v1::CheckpointLeaseRequest {
                    lease: args.lease.clone(),
                    idempotency_key: idempotency_key(args.idempotency_key.as_deref()),
                };
                let mut client = LeaseServiceClient::new(session.channel()?);
                call(client.checkpoint_lease(request)).await?.lease.unwrap_or_default().into()
            }
            Self::Renew(args) => args.run(session).await?,
        };
        session.print(&lease)
    }
}

/// Names the filter `--cluster`, which is an argument of its own in other commands.
fn of_filter(failure: Failure) -> Failure {
    if failure.field == "cluster" { Failure { field: "--cluster".to_owned(), ..failure } } else { failure }
}

impl LeaseListArgs {
    async fn run(&self, session: &Session) -> Result<(), Failure> {
        let channel = session.channel()?;
        let query = v1::ListLeasesRequest {
            page: None,
            consistency: session.consistency(),
            tenant: self.tenant.clone().unwrap_or_default(),
            cluster: self.cluster.clone().unwrap_or_default(),
            include_ended: self.all,
        };
        self.watch.show(session, ChangeSource::Stream, || listings::leases(&channel, &query)).await.map_err(of_filter)
    }
}
