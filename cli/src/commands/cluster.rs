//! `comity cluster`: member clusters.

use clap::{Args, Subcommand};
use comity_proto::v1;
use comity_proto::v1::federation_service_client::FederationServiceClient;

mod evict;
mod invite;
mod voucher;

pub use evict::ClusterEvictArgs;
pub use invite::ClusterInviteArgs;
pub use voucher::VoucherCommand;

use super::completions::known_ids;
use crate::failure::Failure;
use crate::listings;
use crate::live::{ChangeSource, WatchArgs};
use crate::session::{Session, call};
use crate::views::Cluster;

const CLUSTER_LIST_EXAMPLES: &str = "\
Examples:
  comity cluster list
  comity cluster list --watch
  comity cluster list -o json | jq -r '.items[] | select(.connected | not) | .id'
";
const CLUSTER_SHOW_EXAMPLES: &str = "\
Examples:
  comity cluster show ncc-main
  comity cluster show ncc-main -o yaml
";

/// `comity cluster`.
#[derive(Debug, Subcommand)]
#[command(after_help = "Examples:\n  comity cluster list\n  comity cluster invite physics-farm\n")]
pub enum ClusterCommand {
    /// Invite a cluster: print the command with which its agent joins
    Invite(ClusterInviteArgs),
    /// List member clusters
    #[command(after_help = CLUSTER_LIST_EXAMPLES)]
    List(WatchArgs),
    /// Show one member cluster
    #[command(after_help = CLUSTER_SHOW_EXAMPLES)]
    Show(ClusterShowArgs),
    /// Evict a cluster: void its certificates, and end its part
    Evict(ClusterEvictArgs),
    /// Vouchers: an institution's signatures of its clusters' identity keys
    #[command(subcommand)]
    Voucher(VoucherCommand),
}

/// `comity cluster show`.
#[derive(Debug, Args)]
pub struct ClusterShowArgs {
    /// Cluster, as in ncc-main
    #[arg(add = known_ids::clusters())]
    cluster: String,
}

impl ClusterCommand {
    /// Runs the subcommand.
    ///
    /// # Errors
    /// [`Failure`] of the call or of a voucher, or if standard output cannot be written.
    pub async fn run(&self, session: &Session) -> Result<(), Failure> {
        match self {
            Self::Invite(args) => args.run(session).await,
            Self::Evict(args) => session.print(&args.run(session).await?),
            Self::List(watch) => {
                let (channel, consistency) = (session.channel()?, session.consistency());
                watch.show(session, ChangeSource::Stream, || listings::clusters(&channel, consistency)).await
            }
            Self::Show(args) => {
                let request =
                    v1::GetClusterRequest { cluster: args.cluster.clone(), consistency: session.consistency() };
                let mut client = FederationServiceClient::new(session.channel()?);
                let response = call(client.get_cluster(request)).await?;
                session.print(&Cluster::from(response.cluster.unwrap_or_default()))
            }
            Self::Voucher(command) => command.run(session),
        }
    }
}
