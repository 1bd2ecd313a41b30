//! `comity peering`: trust and network between two clusters.

use clap::{Args, Subcommand};
use comity_proto::v1;
use comity_proto::v1::peering_service_client::PeeringServiceClient;

use super::completions::known_ids;
use crate::failure::Failure;
use crate::listings;
use crate::live::{ChangeSource, WatchArgs};
use crate::session::{Session, call};
use crate::views::Peering;

const PEERING_LIST_EXAMPLES: &str = "\
Examples:
  comity peering list
  comity peering list --all
  comity peering list --watch
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
    #[command(flatten)]
    watch: WatchArgs,
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
        let channel = session.channel()?;
        let consistency = session.consistency();
        match self {
            Self::List(args) => {
                let query = v1::ListPeeringsRequest { page: None, consistency, include_closed: args.all };
                args.watch.show(session, ChangeSource::Stream, || listings::peerings(&channel, &query)).await
            }
            Self::Show(args) => {
                let request = v1::GetPeeringRequest { peering: args.peering.clone(), consistency };
                let mut client = PeeringServiceClient::new(channel);
                let response = call(client.get_peering(request)).await?;
                session.print(&Peering::from(response.peering.unwrap_or_default()))
            }
        }
    }
}
