//! Clients for the other brokers, with cached connections.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use comity_proto::raft::v1::raft_transport_client::RaftTransportClient;
use comity_proto::raft::v1::{
    AttendRequest, AttendResponse, ExchangeClocksRequest, ExchangeClocksResponse, HelloRequest, HelloResponse,
    ReadAuditRecordsRequest, ReadIndexRequest, ReportSeenRequest,
};
use comity_runtime::spiffe::{SpiffeId, TrustDomain};
use comity_runtime::tls::{BrokerChannel, BrokerEndpoints, ChannelOptions, ClientTls, ConnectError, connect_with};
use openraft::raft::{VoteRequest, VoteResponse};
use tonic::{Request, Status, Streaming};

use crate::eligibility::{Eligibility, Halt};
use crate::replication::identity::GroupId;
use crate::replication::member::{MemberAddress, MemberNode};
use crate::replication::types::TypeConfig;
use crate::transport::forward::{ForwardReply, ForwardRequest};
use crate::transport::frame::{self, VoteMessage};
use crate::transport::headers::{self, Outcast};
use crate::transport::reach::Reach;

pub(super) type Client = RaftTransportClient<BrokerChannel>;

/// Purpose of a connection. Separate connections keep large messages from delaying heartbeats.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Lane {
    /// Log entries and votes.
    Log,
    /// Heartbeats.
    Heartbeat,
    /// Snapshots.
    Snapshot,
    /// Requests forwarded to the leader.
    Forward,
    /// The stream by which a follower notices the end of its leader. Always open, so it has its own connection.
    Attend,
}

/// A call to a peer that failed.
#[derive(Debug, thiserror::Error)]
#[error("broker {peer}: {reason}")]
pub(crate) struct CallError {
    peer: u64,
    reason: String,
    /// False if no connection was made, so that the peer cannot have seen the call.
    pub(crate) may_have_arrived: bool,
}

/// The other brokers. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Peers {
    inner: Arc<PeersInner>,
}

struct PeersInner {
    id: u64,
    trust_domain: TrustDomain,
    tls: ClientTls,
    eligibility: Eligibility,
    /// One per peer and lane.
    clients: Mutex<BTreeMap<(u64, Lane), (String, Client)>>,
    /// Term of this broker's last election after an ended leader, and that leader.
    stands_after: Mutex<Option<(u64, u64)>>,
    reach: Reach,
    /// Redirects for tests, which cut connections with them.
    #[cfg(test)]
    lines: Mutex<BTreeMap<u64, String>>,
}

impl Peers {
    pub(super) fn eligibility(&self) -> &Eligibility {
        &self.inner.eligibility
    }

    /// Group of this broker, for the headers.
    pub(super) fn group(&self) -> Option<GroupId> {
        self.inner.eligibility.group()
    }

    pub(crate) fn new(id: u64, trust_domain: TrustDomain, tls: ClientTls, eligibility: Eligibility) -> Self {
        Self {
            inner: Arc::new(PeersInner {
                id,
                trust_domain,
                tls,
                eligibility,
                clients: Mutex::new(BTreeMap::new()),
                stands_after: Mutex::new(None),
                reach: Reach::default(),
                #[cfg(test)]
                lines: Mutex::default(),
            }),
        }
    }

    /// Records the outcome of a heartbeat.
    pub(super) fn note_heartbeat<T>(&self, peer: u64, outcome: &Result<T, Status>) {
        match outcome {
            Ok(_) => self.inner.reach.answered(peer),
            Err(status) => self.inner.reach.failed(peer, &describe(status)),
        }
    }

    /// Stops this broker if a peer refuses it because it no longer belongs to the group.
    pub(crate) fn heed(&self, peer: u64, status: &Status) {
        let halt = match Outcast::of(status) {
            Some(Outcast::Removed) => Halt::removed(self.inner.id),
            Some(Outcast::Replaced) => Halt::replaced_by(self.inner.id, peer),
            None => return,
        };
        self.inner.eligibility.halt(halt);
    }

    fn failed(&self, peer: u64, status: &Status) -> CallError {
        self.heed(peer, status);
        failed(peer, status)
    }

    /// Address to dial for a peer.
    pub(crate) fn dial_address(&self, peer: u64, address: &MemberAddress) -> String {
        #[cfg(test)]
        if let Some(line) = self.inner.lines.lock().unwrap_or_else(PoisonError::into_inner).get(&peer) {
            return line.clone();
        }
        #[cfg(not(test))]
        let _ = peer;
        address.raft.clone()
    }

    /// Reaches a peer over another address.
    #[cfg(test)]
    pub(crate) fn lay_line(&self, peer: u64, address: String) {
        self.inner.lines.lock().unwrap_or_else(PoisonError::into_inner).insert(peer, address);
    }

    pub(crate) fn own_id(&self) -> u64 {
        self.inner.id
    }

    /// A client for one peer; it connects at the first call, and again when the connection ends.
    pub(super) fn client(&self, peer: u64, address: &MemberAddress, lane: Lane) -> Result<Client, CallError> {
        let place = self.dial_address(peer, address);
        let mut clients = self.inner.clients.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((at, client)) = clients.get(&(peer, lane))
            && *at == place
        {
            return Ok(client.clone());
        }
        let endpoints = BrokerEndpoints::new([&place]).map_err(|error| CallError {
            peer,
            reason: error.to_string(),
            may_have_arrived: false,
        })?;
        let expected = SpiffeId::broker(self.inner.trust_domain.clone(), peer);
        let options = ChannelOptions {
            // An answer after this time does not help: elections take less.
            connect_timeout: Duration::from_secs(1),
            keepalive_interval: Duration::from_secs(2),
            keepalive_timeout: Duration::from_secs(2),
        };
        let channel = connect_with(&endpoints, &self.inner.tls.clone().expecting(expected), options);
        let client = Client::new(channel)
            .max_decoding_message_size(frame::MAX_PEER_MESSAGE_BYTES)
            .max_encoding_message_size(frame::MAX_PEER_MESSAGE_BYTES);
        clients.insert((peer, lane), (place, client.clone()));
        Ok(client)
    }

    /// Says hello to a broker, which need not be a member.
    pub(crate) async fn hello(
        &self,
        peer: u64,
        address: &MemberAddress,
        hello: HelloRequest,
        timeout: Duration,
    ) -> Result<HelloResponse, CallError> {
        let mut client = self.client(peer, address, Lane::Forward)?;
        within(timeout, |request| client.hello(request), Request::new(hello))
            .await
            .map_err(|status| self.failed(peer, &status))
    }

    /// A message to a member.
    fn to<M>(&self, node: &MemberNode, message: M) -> Request<M> {
        let mut request = Request::new(message);
        headers::put(request.metadata_mut(), self.group().as_ref(), &node.incarnation);
        request
    }

    /// Forwards a request to the leader.
    pub(crate) async fn forward(
        &self,
        leader: u64,
        node: &MemberNode,
        message: &ForwardRequest,
        timeout: Duration,
    ) -> Result<ForwardReply, CallError> {
        let mut client = self.client(leader, &node.address, Lane::Forward)?;
        let frame = frame::encode(message).map_err(|status| not_sent(leader, &status))?;
        let reply = within(timeout, |request| client.propose(request), self.to(node, frame)).await;
        let reply = reply.map_err(|status| self.failed(leader, &status))?;
        frame::decode(&reply.payload).map_err(|status| self.failed(leader, &status))
    }

    /// Asks the leader up to which index a read must wait.
    pub(crate) async fn read_index(&self, leader: u64, node: &MemberNode, timeout: Duration) -> Result<u64, CallError> {
        let mut client = self.client(leader, &node.address, Lane::Forward)?;
        let reply = within(timeout, |request| client.read_index(request), self.to(node, ReadIndexRequest {})).await;
        Ok(reply.map_err(|status| self.failed(leader, &status))?.index)
    }

    /// Reads records of the audit log from a member, as lines.
    pub(crate) async fn read_audit_records(
        &self,
        member: u64,
        node: &MemberNode,
        request: ReadAuditRecordsRequest,
        timeout: Duration,
    ) -> Result<Vec<String>, CallError> {
        let mut client = self.client(member, &node.address, Lane::Snapshot)?;
        let reply = within(timeout, |request| client.read_audit_records(request), self.to(node, request)).await;
        Ok(reply.map_err(|status| self.failed(member, &status))?.lines)
    }

    /// Opens a stream that ends with the peer's process or the connection.
    pub(crate) async fn attend(&self, broker: u64, node: &MemberNode) -> Result<Streaming<AttendResponse>, CallError> {
        let mut client = self.client(broker, &node.address, Lane::Attend)?;
        // No deadline: the stream stays open.
        let reply = client.attend(self.to(node, AttendRequest {})).await;
        reply.map(tonic::Response::into_inner).map_err(|status| self.failed(broker, &status))
    }

    /// Asks a peer whether it would vote for this broker, now that the process of `leader` has ended.
    pub(crate) async fn ask_for_vote(
        &self,
        peer: u64,
        node: &MemberNode,
        request: VoteRequest<TypeConfig>,
        leader: u64,
        timeout: Duration,
    ) -> Result<VoteResponse<TypeConfig>, CallError> {
        let mut client = self.client(peer, &node.address, Lane::Log)?;
        let message = VoteMessage { pre_vote: true, request, leader_gone: Some(leader) };
        let frame = frame::encode(&message).map_err(|status| not_sent(peer, &status))?;
        let reply = within(timeout, |request| client.vote(request), self.to(node, frame)).await;
        let reply = reply.map_err(|status| self.failed(peer, &status))?;
        frame::decode(&reply.payload).map_err(|status| self.failed(peer, &status))
    }

    /// Records why an election is about to begin, so that its vote requests say so.
    pub(crate) fn stand_after(&self, leader: u64, term: u64) {
        *self.inner.stands_after.lock().unwrap_or_else(PoisonError::into_inner) = Some((term, leader));
    }

    /// The ended leader, for a vote request of such an election.
    pub(super) fn stands_after(&self, request: &VoteRequest<TypeConfig>) -> Option<u64> {
        let stands = *self.inner.stands_after.lock().unwrap_or_else(PoisonError::into_inner);
        let (_, leader) = stands.filter(|(term, _)| *term == request.vote.leader_id.term)?;
        request.leadership_transfer.then_some(leader)
    }

    /// Tells the leader which agents were heard.
    pub(crate) async fn report_seen(
        &self,
        leader: u64,
        node: &MemberNode,
        clusters: Vec<String>,
        timeout: Duration,
    ) -> Result<(), CallError> {
        let mut client = self.client(leader, &node.address, Lane::Forward)?;
        let message = ReportSeenRequest { broker: self.inner.id, clusters };
        let reply = within(timeout, |request| client.report_seen(request), self.to(node, message)).await;
        reply.map(drop).map_err(|status| self.failed(leader, &status))
    }
}

impl Peers {
    /// Asks a member for its clocks.
    pub(crate) async fn exchange_clocks(
        &self,
        member: u64,
        node: &MemberNode,
        timeout: Duration,
    ) -> Result<ExchangeClocksResponse, CallError> {
        let mut client = self.client(member, &node.address, Lane::Heartbeat)?;
        let message = ExchangeClocksRequest { broker: self.inner.id };
        let reply = within(timeout, |request| client.exchange_clocks(request), self.to(node, message)).await;
        reply.map_err(|status| self.failed(member, &status))
    }
}

/// Makes a call with a deadline, which the peer learns as well.
pub(super) async fn within<M, R, F>(
    timeout: Duration,
    call: impl FnOnce(Request<M>) -> F,
    mut request: Request<M>,
) -> Result<R, Status>
where
    F: Future<Output = Result<tonic::Response<R>, Status>>,
{
    request.set_timeout(timeout);
    match tokio::time::timeout(timeout, call(request)).await {
        Ok(reply) => reply.map(tonic::Response::into_inner),
        Err(_) => Err(Status::deadline_exceeded(format!("no answer within {} ms", timeout.as_millis()))),
    }
}

fn not_sent(peer: u64, status: &Status) -> CallError {
    CallError { peer, reason: status.message().to_owned(), may_have_arrived: false }
}

fn failed(peer: u64, status: &Status) -> CallError {
    CallError { peer, reason: describe(status), may_have_arrived: !never_connected(status) }
}

/// Root cause of a status; tonic says only "transport error".
pub(super) fn describe(status: &Status) -> String {
    ConnectError::behind(status).map_or_else(|| status.message().to_owned(), ToString::to_string)
}

/// Whether the call failed because no connection could be made.
pub(super) fn never_connected(status: &Status) -> bool {
    ConnectError::behind(status).is_some()
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use comity_audit::NonceKey;
    use comity_core::Command;
    use comity_core::command::BeginTerm;
    use comity_runtime::ca::CertificateAuthority;
    use comity_runtime::identity::{IdentitySource, TlsIdentity};
    use tokio::net::TcpListener;

    use super::*;
    use crate::replication::proposal::Proposal;

    async fn call(address: String) -> CallError {
        let ca = CertificateAuthority::create(TrustDomain::new("peers.test").unwrap(), std::time::SystemTime::now())
            .unwrap();
        let me = SpiffeId::broker(ca.trust_domain().clone(), 1);
        let pem = ca.new_identity(&me, &[], Duration::from_secs(60), std::time::SystemTime::now()).unwrap();
        let source = IdentitySource::new(TlsIdentity::from_pem(&pem).unwrap());
        let tls = ClientTls::new(ca.roots().clone(), source.subscribe());
        let peers = Peers::new(1, ca.trust_domain().clone(), tls, Eligibility::without_disk(1));
        let address = MemberAddress { raft: address.clone(), client: address };
        let at = MemberNode { address, incarnation: crate::replication::identity::Incarnation::draw() };
        let proposal = Proposal::of_leader(
            1,
            Command::BeginTerm(BeginTerm { broker: 1, outage: comity_core::Millis(0), nonce_key: NonceKey::default() }),
        );
        let message = ForwardRequest::Propose { proposal, timeout_ms: 1_000 };
        peers.forward(2, &at, &message, Duration::from_secs(5)).await.unwrap_err()
    }

    #[tokio::test]
    async fn a_call_that_found_nobody_did_not_arrive() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        drop(listener);
        let error = call(address).await;
        assert!(!error.may_have_arrived, "{error}");
        assert!(error.to_string().contains("refused"), "{error}");
    }

    #[tokio::test]
    async fn a_call_to_somebody_else_did_not_arrive() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let closes = tokio::spawn(async move {
            // Not a broker: hangs up during the handshake.
            loop {
                drop(listener.accept().await.unwrap());
            }
        });
        let error = call(address).await;
        closes.abort();
        assert!(!error.may_have_arrived, "{error}");
    }

    #[tokio::test]
    async fn an_address_that_is_none_is_named() {
        let error = call("nowhere".to_owned()).await;
        assert!(!error.may_have_arrived && error.to_string().contains("nowhere"), "{error}");
    }
}
