//! Reads whole lists, page by page.

use comity_proto::v1;
use comity_proto::v1::federation_service_client::FederationServiceClient;
use comity_proto::v1::lease_service_client::LeaseServiceClient;
use comity_proto::v1::offer_service_client::OfferServiceClient;
use comity_proto::v1::peering_service_client::PeeringServiceClient;
use comity_proto::v1::policy_service_client::PolicyServiceClient;
use comity_proto::v1::request_service_client::RequestServiceClient;
use comity_runtime::BrokerChannel;

use crate::failure::Failure;
use crate::session::{all_pages, call};
use crate::views::{Cluster, Lease, List, Offer, Peering, QuotaUse, Quotas, Request, RequestTemplate, Reservation};

/// Leases; `query` without a page.
pub(crate) async fn leases(channel: &BrokerChannel, query: &v1::ListLeasesRequest) -> Result<List<Lease>, Failure> {
    let (items, revision) = all_pages(|page| {
        let mut client = LeaseServiceClient::new(channel.clone());
        let request = v1::ListLeasesRequest { page: Some(page), ..query.clone() };
        async move {
            let response = call(client.list_leases(request)).await?;
            Ok((response.leases, response.page))
        }
    })
    .await?;
    Ok(List { items: items.into_iter().map(Lease::from).collect(), revision })
}

/// Requests; `query` without a page.
pub(crate) async fn requests(
    channel: &BrokerChannel,
    query: &v1::ListRequestsRequest,
) -> Result<List<Request>, Failure> {
    let (items, revision) = all_pages(|page| {
        let mut client = RequestServiceClient::new(channel.clone());
        let request = v1::ListRequestsRequest { page: Some(page), ..query.clone() };
        async move {
            let response = call(client.list_requests(request)).await?;
            Ok((response.requests, response.page))
        }
    })
    .await?;
    Ok(List { items: items.into_iter().map(Request::from).collect(), revision })
}

/// Request templates; `query` without a page.
pub(crate) async fn request_templates(
    channel: &BrokerChannel,
    query: &v1::ListRequestTemplatesRequest,
) -> Result<List<RequestTemplate>, Failure> {
    let (items, revision) = all_pages(|page| {
        let mut client = RequestServiceClient::new(channel.clone());
        let request = v1::ListRequestTemplatesRequest { page: Some(page), ..query.clone() };
        async move {
            let response = call(client.list_request_templates(request)).await?;
            Ok((response.templates, response.page))
        }
    })
    .await?;
    Ok(List { items: items.into_iter().map(RequestTemplate::from).collect(), revision })
}

/// Limits of quotas; `query` without a page.
pub(crate) async fn quotas(channel: &BrokerChannel, query: &v1::ListQuotasRequest) -> Result<Quotas, Failure> {
    let (items, revision) = all_pages(|page| {
        let mut client = RequestServiceClient::new(channel.clone());
        let request = v1::ListQuotasRequest { page: Some(page), ..query.clone() };
        async move {
            let response = call(client.list_quotas(request)).await?;
            Ok((response.quotas, response.page))
        }
    })
    .await?;
    Ok(Quotas { items: items.into_iter().map(QuotaUse::from).collect(), revision })
}

/// What reservations keep.
pub(crate) async fn reservations(channel: &BrokerChannel, consistency: i32) -> Result<List<Reservation>, Failure> {
    let (items, revision) = all_pages(|page| {
        let mut client = PolicyServiceClient::new(channel.clone());
        async move {
            let request = v1::ListReservationsRequest { page: Some(page), consistency };
            let response = call(client.list_reservations(request)).await?;
            Ok((response.reservations, response.page))
        }
    })
    .await?;
    Ok(List { items: items.into_iter().map(Reservation::from).collect(), revision })
}

/// Member clusters.
pub(crate) async fn clusters(channel: &BrokerChannel, consistency: i32) -> Result<List<Cluster>, Failure> {
    let (items, revision) = all_pages(|page| {
        let mut client = FederationServiceClient::new(channel.clone());
        async move {
            let request = v1::ListClustersRequest { page: Some(page), consistency };
            let response = call(client.list_clusters(request)).await?;
            Ok((response.clusters, response.page))
        }
    })
    .await?;
    Ok(List { items: items.into_iter().map(Cluster::from).collect(), revision })
}

/// Summaries of offers.
pub(crate) async fn offers(channel: &BrokerChannel, consistency: i32) -> Result<List<Offer>, Failure> {
    let (items, revision) = all_pages(|page| {
        let mut client = OfferServiceClient::new(channel.clone());
        async move {
            let response = call(client.list_offers(v1::ListOffersRequest { page: Some(page), consistency })).await?;
            Ok((response.offers, response.page))
        }
    })
    .await?;
    Ok(List { items: items.into_iter().map(Offer::from).collect(), revision })
}

/// Peerings; `query` without a page.
pub(crate) async fn peerings(
    channel: &BrokerChannel,
    query: &v1::ListPeeringsRequest,
) -> Result<List<Peering>, Failure> {
    let (items, revision) = all_pages(|page| {
        let mut client = PeeringServiceClient::new(channel.clone());
        let request = v1::ListPeeringsRequest { page: Some(page), ..query.clone() };
        async move {
            let response = call(client.list_peerings(request)).await?;
            Ok((response.peerings, response.page))
        }
    })
    .await?;
    Ok(List { items: items.into_iter().map(Peering::from).collect(), revision })
}
