//! `comity cluster`: member clusters.

use clap::{Args, Subcommand};
use comity_proto::v1;
use comity_proto::v1::federation_service_client::FederationServiceClient;

mod invite;

pub use invite::ClusterInviteArgs;

use crate::failure::Failure;
use crate::session::{Session, all_pages, call};
use crate::views::{Cluster, List};

const CLUSTER_LIST_EXAMPLES: &str = "\
Examples:
  comity cluster list
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
    List,
    /// Show one member cluster
    #[command(after_help = CLUSTER_SHOW_EXAMPLES)]
    Show(ClusterShowArgs),
}

/// `comity cluster show`.
#[derive(Debug, Args)]
pub struct ClusterShowArgs {
    /// Cluster, as in ncc-main
    cluster: String,
}

impl ClusterCommand {
    /// Runs the subcommand.
    ///
    /// # Errors
    /// [`Failure`] of the call, or if standard output cannot be written.
    pub async fn run(&self, session: &Session) -> Result<(), Failure> {
        let mut client = FederationServiceClient::new(session.channel()?);
        match self {
            Self::Invite(args) => args.run(session).await,
            Self::List => {
                let consistency = session.consistency();
                let (items, revision) = all_pages(|page| {
                    let mut client = client.clone();
                    async move {
                        let request = v1::ListClustersRequest { page: Some(page), consistency };
                        let response = call(client.list_clusters(request)).await?;
                        Ok((response.clusters, response.page))
                    }
                })
                .await?;
                session.print(&List { items: items.into_iter().map(Cluster::from).collect(), revision })
            }
            Self::Show(args) => {
                let request =
                    v1::GetClusterRequest { cluster: args.cluster.clone(), consistency: session.consistency() };
                let response = call(client.get_cluster(request)).await?;
                session.print(&Cluster::from(response.cluster.unwrap_or_default()))
            }
        }
    }
}
