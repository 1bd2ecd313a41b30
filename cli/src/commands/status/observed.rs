//! All that the caller may see: one read of each list.

use std::collections::BTreeMap;

use comity_proto::v1;
use comity_proto::v1::federation_service_client::FederationServiceClient;
use comity_proto::v1::request_service_client::RequestServiceClient;
use comity_runtime::BrokerChannel;

use super::super::whoami::CallerRights;
use crate::failure::Failure;
use crate::listings;
use crate::session::{Session, call};
use crate::views::{Cluster, Explanation, Lease, Offer, QueuePosition, Request, RequestState};

/// Waiting requests whose queue position is read: the broker plans for each.
const MAX_POSITIONS: usize = 5;

/// The lists as they were read, and the caller.
#[derive(Debug)]
pub(in crate::commands) struct Observed {
    /// Trust domain of the federation.
    pub(in crate::commands) federation: String,
    /// Version of the broker that answered.
    pub(in crate::commands) broker_version: String,
    /// The caller.
    pub(in crate::commands) caller: CallerRights,
    /// Clusters that the caller may see.
    pub(in crate::commands) clusters: Vec<Cluster>,
    /// Offers that the caller may see.
    pub(in crate::commands) offers: Vec<Offer>,
    /// Leases of the caller's tenants; all that it may see if it has no tenant.
    pub(in crate::commands) leases: Vec<Lease>,
    /// Waiting requests, likewise.
    pub(in crate::commands) waiting: Vec<Request>,
    /// Queue positions of the first waiting requests, by request.
    pub(in crate::commands) positions: BTreeMap<String, QueuePosition>,
}

impl Observed {
    /// Reads all lists at once.
    ///
    /// # Errors
    /// [`Failure`] of a call.
    pub(in crate::commands) async fn read(session: &Session, channel: &BrokerChannel) -> Result<Self, Failure> {
        let mut client = FederationServiceClient::new(channel.clone());
        let (federation, caller) = futures::try_join!(
            call(client.get_federation(v1::GetFederationRequest {})),
            CallerRights::ask(session, channel.clone()),
        )?;
        let mut observed = Self {
            federation: federation.trust_domain,
            broker_version: federation.broker_version,
            caller,
            clusters: Vec::new(),
            offers: Vec::new(),
            leases: Vec::new(),
            waiting: Vec::new(),
            positions: BTreeMap::new(),
        };
        if observed.caller.may_read() {
            observed.read_lists(channel, session.consistency()).await?;
        }
        Ok(observed)
    }

    async fn read_lists(&mut self, channel: &BrokerChannel, consistency: i32) -> Result<(), Failure> {
        let leases = v1::ListLeasesRequest { consistency, ..Default::default() };
        let requests = v1::ListRequestsRequest { consistency, ..Default::default() };
        let (clusters, offers, leases, requests) = futures::try_join!(
            listings::clusters(channel, consistency),
            listings::offers(channel, consistency),
            listings::leases(channel, &leases),
            listings::requests(channel, &requests),
        )?;
        let is_own = |tenant: &str| self.caller.owns(tenant);
        let waits = |request: &Request| request.state == RequestState::Queued && is_own(&request.spec.tenant);
        self.leases = leases.items.into_iter().filter(|lease| is_own(&lease.tenant)).collect();
        self.waiting = requests.items.into_iter().filter(waits).collect();
        (self.clusters, self.offers) = (clusters.items, offers.items);
        let first = self.waiting.iter().filter_map(|request| request.id.as_deref()).take(MAX_POSITIONS);
        let positions = futures::future::join_all(first.map(|id| position(channel, id))).await;
        self.positions = positions.into_iter().flatten().collect();
        Ok(())
    }
}

/// The position of a request; none if it no longer waits, or its tenant was taken from the caller meanwhile.
async fn position(channel: &BrokerChannel, id: &str) -> Option<(String, QueuePosition)> {
    let mut client = RequestServiceClient::new(channel.clone());
    let request = v1::ExplainRequestRequest { request: id.to_owned(), seek_alternatives: false };
    let answer = call(client.explain_request(request)).await.ok()?;
    Some((id.to_owned(), Explanation::from(answer).position?))
}
