//! `comity cluster`: member clusters.

use clap::{Args, Subcommand};
use comity_proto::v1;
use comity_proto::v1::federation_service_client::FederationServiceClient;

use super::completions::known_ids;
use crate::failure::Failure;
use crate::session::{Session, all_pages, call, idempotency_key};
use crate::units::{DurationBounds, format_duration};
use crate::views::{Cluster, Invitation, List};

const INVITE_EXAMPLES: &str = "\
Examples:
  comity cluster invite physics-farm
  comity cluster invite physics-farm --ttl 24h > join.token

The token is a secret. It works once and is shown once. Give it to the cluster's agent, which
joins with it. The policy must list the cluster in its institution's document.
";
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
    /// Create a single-use join token for a cluster that the policy names
    #[command(after_help = INVITE_EXAMPLES)]
    Invite(ClusterInviteArgs),
    /// List member clusters
    #[command(after_help = CLUSTER_LIST_EXAMPLES)]
    List,
    /// Show one member cluster
    #[command(after_help = CLUSTER_SHOW_EXAMPLES)]
    Show(ClusterShowArgs),
}

/// `comity cluster invite`.
#[derive(Debug, Args)]
pub struct ClusterInviteArgs {
    /// Cluster that may join with the token
    #[arg(add = known_ids::policy_clusters())]
    cluster: String,
    /// Lifetime of the token: 1m to 7d
    #[arg(long, default_value = "1h", value_parser = DurationBounds::TOKEN.parser(), allow_hyphen_values = true,
        value_name = "DURATION")]
    ttl: u64,
    /// Replace the agent of a member: the agent that joins with the token gets a new identity
    #[arg(long)]
    replace: bool,
    /// Key that makes a repeated call safe: the same key creates no second token [default: random]
    #[arg(long, value_name = "KEY")]
    idempotency_key: Option<String>,
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
    /// [`Failure`] of the call, or if standard output cannot be written.
    pub async fn run(&self, session: &Session) -> Result<(), Failure> {
        let mut client = FederationServiceClient::new(session.channel()?);
        match self {
            Self::Invite(args) => {
                let request = v1::InviteClusterRequest {
                    cluster: args.cluster.clone(),
                    ttl_ms: args.ttl,
                    replace: args.replace,
                    idempotency_key: idempotency_key(args.idempotency_key.as_deref()),
                };
                let response = call(client.invite_cluster(request)).await?;
                eprintln!("single-use token, expires in {}:", format_duration(args.ttl));
                session.print(&Invitation {
                    cluster: args.cluster.clone(),
                    token: response.token,
                    expires_at_ms: response.expires_at_ms,
                })
            }
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
