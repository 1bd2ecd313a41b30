//! OfferService: offers, in detail for operators and summed up for others.

use std::ops::Bound;
use std::sync::Arc;

use comity_core::{Refusal, State};
use comity_proto::v1;
use comity_proto::v1::offer_service_server::OfferService;
use comity_types::ClusterId;
use tonic::Request;

use crate::api::authorize::Rpc;
use crate::api::convert::offer;
use crate::api::paging::Page;
use crate::api::rpc::serve;
use crate::api::rpc_error::RpcError;
use crate::api::visible_names::VisibleNames;
use crate::context::Context;

/// Reads offers.
#[derive(Debug, Clone)]
pub struct OfferHandlers {
    /// Shared context.
    pub context: Context,
}

serve! { OfferService for OfferHandlers {
    list_offers: ListOffersRequest -> ListOffersResponse;
    get_offer: GetOfferRequest -> GetOfferResponse;
} }

impl OfferHandlers {
    async fn list_offers(&self, request: Request<v1::ListOffersRequest>) -> Result<v1::ListOffersResponse, RpcError> {
        let caller = self.context.admit(Rpc::ListOffers, &request).await?;
        let viewer = self.context.viewer(&caller);
        let message = request.into_inner();
        let page = Page::parse(message.page, "offers")?;
        let after = page.after(|key| ClusterId::parse(key, "page.token"))?;
        let copy = self.context.copy(message.consistency).await?;
        let range = (after.map_or(Bound::Unbounded, Bound::Excluded), Bound::Unbounded);
        let visible = copy.clusters.range(range).map(|(id, _)| id).filter(|id| viewer.sees_offer(id));
        // A copy lacks sums. An offer may have ten thousand nodes, so apply waits for one of them at most.
        let offers = visible.filter_map(|id| {
            let summary = |state: &State| offer::summary(state, id, state.clusters.get(id)?);
            Some((id.clone(), self.context.group.peek(summary)?))
        });
        let (offers, page) = page.take(offers, copy.revision);
        Ok(v1::ListOffersResponse { offers, page: Some(page) })
    }

    async fn get_offer(&self, request: Request<v1::GetOfferRequest>) -> Result<v1::GetOfferResponse, RpcError> {
        let caller = self.context.admit(Rpc::GetOffer, &request).await?;
        let viewer = self.context.viewer(&caller);
        let message = request.into_inner();
        let id = ClusterId::parse(&message.cluster, "cluster")?;
        let sees_nodes = viewer.sees_nodes(&id);
        let read = |state: &State| {
            let names = VisibleNames::in_state(&caller, state);
            let missing = || names.suggest(Refusal::not_found("cluster", &id, "offer"));
            let cluster = state.clusters.get(&id).filter(|_| viewer.sees_offer(&id)).ok_or_else(missing)?;
            let held = cluster.offer.as_ref().ok_or_else(missing)?;
            let quarantines = sees_nodes.then(|| offer::quarantines(held, &cluster.health));
            Ok((Arc::clone(held), offer::summary(state, &id, cluster), quarantines))
        };
        let (held, summary, quarantines) = self.context.read(message.consistency, read).await?;
        Ok(v1::GetOfferResponse {
            // Only operators of the cluster see its nodes.
            offer: sees_nodes.then(|| offer::to_proto(&id, &held)),
            summary,
            quarantines: quarantines.unwrap_or_default(),
        })
    }
}
