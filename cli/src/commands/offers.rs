//! `comity offers`: the capacity that clusters lend.

use clap::Args;
use comity_proto::v1;
use comity_proto::v1::offer_service_client::OfferServiceClient;

use super::completions::known_ids;
use crate::failure::Failure;
use crate::session::{Session, all_pages, call};
use crate::views::{List, Node, Offer, OfferDetail};

const OFFERS_EXAMPLES: &str = "\
Examples:
  comity offers                  list every offer by GPU class
  comity offers ncc-main         show the cluster's nodes and devices
  comity offers -o json \\
      | jq '[.items[].classes[] | select(.class == \"frontier\").freeMilli] | add / 1000'
";

/// `comity offers`.
#[derive(Debug, Args)]
#[command(after_help = OFFERS_EXAMPLES)]
pub struct OffersArgs {
    /// Cluster whose nodes and devices to show [default: a summary of all clusters]
    #[arg(add = known_ids::clusters())]
    cluster: Option<String>,
}

impl OffersArgs {
    /// Runs the command.
    ///
    /// # Errors
    /// [`Failure`] of the call, or if standard output cannot be written.
    pub async fn run(&self, session: &Session) -> Result<(), Failure> {
        let mut client = OfferServiceClient::new(session.channel()?);
        let consistency = session.consistency();
        if let Some(cluster) = &self.cluster {
            let request = v1::GetOfferRequest { cluster: cluster.clone(), consistency };
            let response = call(client.get_offer(request)).await?;
            let quarantines = response.quarantines;
            let node = |node: v1::Node| Node::from(node).with_quarantines(&quarantines);
            return session.print(&OfferDetail {
                summary: response.summary.unwrap_or_default().into(),
                node_details: response.offer.map(|offer| offer.nodes.into_iter().map(node).collect()),
            });
        }
        let (items, revision) = all_pages(|page| {
            let mut client = client.clone();
            async move {
                let response =
                    call(client.list_offers(v1::ListOffersRequest { page: Some(page), consistency })).await?;
                Ok((response.offers, response.page))
            }
        })
        .await?;
        session.print(&List { items: items.into_iter().map(Offer::from).collect(), revision })
    }
}
