//! `comity offers`: the capacity that clusters lend.

use clap::Args;
use comity_proto::v1;
use comity_proto::v1::offer_service_client::OfferServiceClient;

use super::completions::known_ids;
use crate::failure::Failure;
use crate::listings;
use crate::live::{ChangeSource, WatchArgs};
use crate::session::{Session, call};
use crate::views::{Node, OfferDetail};

const OFFERS_EXAMPLES: &str = "\
Examples:
  comity offers                  list every offer by GPU class
  comity offers --watch          repaint the list on each change
  comity offers ncc-main         show the cluster's nodes and devices
  comity offers -o json \\
      | jq '[.items[].classes[] | select(.class == \"frontier\").freeMilli] | add / 1000'
";

/// `comity offers`.
#[derive(Debug, Args)]
#[command(after_help = OFFERS_EXAMPLES)]
pub struct OffersArgs {
    /// Cluster whose nodes and devices to show [default: a summary of all clusters]
    #[arg(conflicts_with = "watch", add = known_ids::clusters())]
    cluster: Option<String>,
    #[command(flatten)]
    watch: WatchArgs,
}

impl OffersArgs {
    /// Runs the command.
    ///
    /// # Errors
    /// [`Failure`] of the call, or if standard output cannot be written.
    pub async fn run(&self, session: &Session) -> Result<(), Failure> {
        let channel = session.channel()?;
        let consistency = session.consistency();
        if let Some(cluster) = &self.cluster {
            let request = v1::GetOfferRequest { cluster: cluster.clone(), consistency };
            let mut client = OfferServiceClient::new(channel);
            let response = call(client.get_offer(request)).await?;
            let quarantines = response.quarantines;
            let node = |node: v1::Node| Node::from(node).with_quarantines(&quarantines);
            return session.print(&OfferDetail {
                summary: response.summary.unwrap_or_default().into(),
                node_details: response.offer.map(|offer| offer.nodes.into_iter().map(node).collect()),
            });
        }
        // The watch stream does not report a change of local use.
        self.watch.show(session, ChangeSource::Poll, || listings::offers(&channel, consistency)).await
    }
}
