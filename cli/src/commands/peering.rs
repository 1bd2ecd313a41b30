//! `comity peering`: trust and network between two clusters.

use clap::{Args, Subcommand};
use comity_proto::v1;
use comity_proto::v1::peering_service_client::PeeringServiceClient;

use super::completions::known_ids;
use crate::failure::Failure;
use crate::session::{Session, all_pages, call};
use crate::views::{List, Peering};

const PEERING_LIST_EXAMPLES: &str = "\
Examples:
  comity peering list
  comity peering list --all
";
const PEERING_SHOW_EXAMPLES: &str = "\
Examples:
  comity peering show peer-1
";

/// `comity peering`.
#[derive(Debug, Subcommand)]
#[command(after_help = "Examples:\n  comity peering list\n  comity peering show peer-1\n")]
pub enum PeeringCommand {
    /// List peerings
    #[command(after_help = PEERING_LIST_EXAMPLES)]
    List(PeeringListArgs),
    /// Show one peering
    #[command(after_help = PEERING_SHOW_EXAMPLES)]
    Show(PeeringShowArgs),
}

/// `comity peering list`.
#[derive(Debug, Args)]
pub struct PeeringListArgs {
    /// Include closed peerings
    #[arg(long)]
    all: bool,
}

/// `comity peering show`.
#[derive(Debug, Args)]
pub struct PeeringShowArgs {
    /// Peering, as in peer-1
    #[arg(add = known_ids::peerings())]
    peering: String,
}

impl PeeringCommand {
    /// Runs the subcommand.
    ///
    /// # Errors
    /// [`Failure`] of the call, or if standard output cannot be written.
    pub async fn run(&self, session: &Session) -> Result<(), Failure> {
        let mut client = PeeringServiceClient::new(session.channel()?);
        let consistency = session.consistency();
        match self {
            Self::List(args) => {
                let (items, revision) = all_pages(|page| {
                    let mut client = client.clone();
                    let request = v1::ListPeeringsRequest { page: Some(page), consistency, include_closed: args.all };
                    async move {
                        let response = call(client.list_peerings(request)).await?;
                        Ok((response.peerings, response.page))
                    }
                })
                .await?;
                session.print(&List { items: items.into_iter().map(Peering::from).collect(), revision })
            }
            Self::Show(args) => {
                let request = v1::GetPeeringRequest { peering: args.peering.clone(), consistency };
                let response = call(client.get_peering(request)).await?;
                session.print(&Peering::from(response.peering.unwrap_or_default()))
            }
        }
    }
}
