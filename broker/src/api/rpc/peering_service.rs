//! PeeringService: reads peerings.

use std::ops::Bound;

use comity_core::{Refusal, State};
use comity_proto::v1;
use comity_proto::v1::peering_service_server::PeeringService;
use comity_types::{PeeringId, PeeringState};
use tonic::Request;

use crate::api::authorize::Rpc;
use crate::api::convert::peering;
use crate::api::paging::Page;
use crate::api::rpc::serve;
use crate::api::rpc_error::RpcError;
use crate::context::Context;

/// Reads peerings.
#[derive(Debug, Clone)]
pub struct PeeringHandlers {
    /// Shared context.
    pub context: Context,
}

serve! { PeeringService for PeeringHandlers {
    get_peering: GetPeeringRequest -> GetPeeringResponse;
    list_peerings: ListPeeringsRequest -> ListPeeringsResponse;
} }

impl PeeringHandlers {
    async fn get_peering(&self, request: Request<v1::GetPeeringRequest>) -> Result<v1::GetPeeringResponse, RpcError> {
        let caller = self.context.admit(Rpc::GetPeering, &request).await?;
        let viewer = self.context.viewer(&caller);
        let message = request.into_inner();
        let id = PeeringId::parse(&message.peering, "peering")?;
        let read = |state: &State| {
            let held = state.peerings.get(&id).filter(|held| viewer.sees_peering(&held.origin, &held.donor));
            let held = held.ok_or_else(|| Refusal::not_found("peering", id, "peering"))?;
            Ok(v1::GetPeeringResponse { peering: Some(peering::to_proto(id, held)) })
        };
        self.context.read(message.consistency, read).await
    }

    async fn list_peerings(
        &self,
        request: Request<v1::ListPeeringsRequest>,
    ) -> Result<v1::ListPeeringsResponse, RpcError> {
        let caller = self.context.admit(Rpc::ListPeerings, &request).await?;
        let viewer = self.context.viewer(&caller);
        let message = request.into_inner();
        let page = Page::parse(message.page, "peerings")?;
        let after = page.after(|key| PeeringId::parse(key, "page.token"))?;
        // Tenants have hundreds of thousands of records, and the caller may see few of them.
        let state = self.context.copy(message.consistency).await?;
        let range = (after.map_or(Bound::Unbounded, Bound::Excluded), Bound::Unbounded);
        let visible = state.peerings.range(range).filter(|(_, held)| {
            viewer.sees_peering(&held.origin, &held.donor)
                && (message.include_closed || held.state != PeeringState::Closed)
        });
        let (peerings, page) = page.take(visible.map(|(id, held)| (*id, peering::to_proto(*id, held))), state.revision);
        Ok(v1::ListPeeringsResponse { peerings, page: Some(page) })
    }
}
