//! The gRPC service of the Raft port.

use std::pin::Pin;
use std::time::{Duration, Instant};

use comity_core::broker_record::BrokerRole;
use comity_proto::raft::v1::raft_transport_server::{RaftTransport, RaftTransportServer};
use comity_proto::raft::v1::{
    AttendRequest, AttendResponse, ExchangeClocksRequest, ExchangeClocksResponse, Frame, HelloRequest, HelloResponse,
    ReadAuditRecordsRequest, ReadAuditRecordsResponse, ReadIndexRequest, ReadIndexResponse, ReportSeenRequest,
    ReportSeenResponse, SnapshotChunk,
};
use comity_types::ClusterId;
use futures::{Stream, StreamExt as _};
use openraft::raft::{AppendEntriesResponse, TransferLeaderRequest};
use tokio::sync::Semaphore;
use tonic::{Extensions, Request, Response, Status, Streaming};

use crate::group::Group;
use crate::group::heard::MAX_CLUSTERS_PER_REPORT;
use crate::transport::brokers_only::BrokersOnly;
use crate::transport::calling_broker::CallingBroker;
use crate::transport::frame::{self, TransferMessage, VoteMessage};
use crate::transport::headers::{self, GroupAdoption, Outcast};
use crate::transport::serve_snapshot;
use crate::transport::stream_append::WINDOW;

/// Maximum age of a stream; callers reopen it. Keeps connections from outliving their certificate.
const LONGEST_STREAM: Duration = Duration::from_secs(600);

/// The Raft port of one broker.
pub(crate) struct RaftTransportService {
    group: Group,
    /// Permits one incoming snapshot at a time.
    snapshots: Semaphore,
}

impl RaftTransportService {
    fn new(group: Group) -> Self {
        Self { group, snapshots: Semaphore::new(1) }
    }

    /// Authenticates the caller; refuses removed brokers, whose certificates may still be valid.
    fn caller<T>(&self, request: &Request<T>) -> Result<CallingBroker, Status> {
        let inner = &self.group.inner;
        let caller = CallingBroker::of(request.extensions(), &inner.config.trust_domain, inner.certificate_time())?;
        check_not_removed(&self.group, caller)?;
        Ok(caller)
    }

    /// Authenticates a member and checks the headers.
    async fn member<T>(&self, request: &Request<T>) -> Result<CallingBroker, Status> {
        let caller = self.caller(request)?;
        headers::check(request.metadata(), &self.group.inner.eligibility, GroupAdoption::Refuse).await?;
        Ok(caller)
    }

    /// Authenticates the leader; a broker without a group joins the leader's group.
    async fn leader<T>(&self, request: &Request<T>) -> Result<CallingBroker, Status> {
        let caller = self.caller(request)?;
        headers::check(request.metadata(), &self.group.inner.eligibility, GroupAdoption::Adopt).await?;
        check_may_append(&self.group)?;
        Ok(caller)
    }

    fn check_may_vote(&self) -> Result<(), Status> {
        if self.group.inner.eligibility.may_vote() {
            return Ok(());
        }
        Err(Status::failed_precondition("this broker does not vote yet: it has not found its place in the group"))
    }
}

/// The service for the Raft port. Serve it over [`comity_runtime::tls::incoming`]: it refuses every caller whose
/// connection does not say who it is.
pub(crate) fn service(
    group: &Group,
) -> BrokersOnly<
    RaftTransportServer<RaftTransportService>,
    impl Fn(&Extensions, &str) -> Result<(), Status> + Clone + Send + Sync + 'static,
> {
    let service = RaftTransportServer::new(RaftTransportService::new(group.clone()))
        .max_decoding_message_size(frame::MAX_PEER_MESSAGE_BYTES)
        .max_encoding_message_size(frame::MAX_PEER_MESSAGE_BYTES);
    let group = group.clone();
    let check = move |extensions: &Extensions, path: &str| {
        let inner = &group.inner;
        let caller = CallingBroker::of(extensions, &inner.config.trust_domain, inner.certificate_time())?;
        // It tells a removed broker why it is refused.
        if path.ends_with("/Hello") { Ok(()) } else { check_not_removed(&group, caller) }
    };
    BrokersOnly { service, check }
}

#[tonic::async_trait]
impl RaftTransport for RaftTransportService {
    type AttendStream = Pin<Box<dyn Stream<Item = Result<AttendResponse, Status>> + Send>>;
    type StreamAppendStream = Pin<Box<dyn Stream<Item = Result<Frame, Status>> + Send>>;

    async fn append(&self, request: Request<Frame>) -> Result<Response<Frame>, Status> {
        let caller = self.leader(&request).await?;
        append(&self.group, caller, request.into_inner()).await.map(Response::new)
    }

    async fn stream_append(
        &self,
        request: Request<Streaming<Frame>>,
    ) -> Result<Response<Self::StreamAppendStream>, Status> {
        let caller = self.leader(&request).await?;
        let group = self.group.clone();
        let answer = move |frame: Result<Frame, Status>| {
            let group = group.clone();
            async move { append(&group, caller, frame?).await }
        };
        let frames = request.into_inner().take_until(Box::pin(until_stopped(&self.group)));
        Ok(Response::new(Box::pin(frames.map(answer).buffered(WINDOW))))
    }

    async fn vote(&self, request: Request<Frame>) -> Result<Response<Frame>, Status> {
        let caller = self.member(&request).await?;
        self.check_may_vote()?;
        let VoteMessage { pre_vote, mut request, leader_gone } = frame::decode(&request.into_inner().payload)?;
        caller.vouch(&request.vote)?;
        let raft = &self.group.inner.raft;
        if let Some(leader) = leader_gone {
            if pre_vote {
                return frame::encode(&self.group.inner.would_grant(&request, leader).await).map(Response::new);
            }
            // Checks the port itself: the candidate's word alone does not override the lease.
            request.leadership_transfer = self.group.inner.finds_gone(leader).await;
        }
        let reply = if pre_vote { raft.pre_vote(request).await } else { raft.vote(request).await };
        frame::encode(&reply.map_err(stopped)?).map(Response::new)
    }

    async fn transfer(&self, request: Request<Frame>) -> Result<Response<Frame>, Status> {
        let caller = self.member(&request).await?;
        self.check_may_vote()?;
        let TransferMessage { from_leader, to, last_log_id } = frame::decode(&request.into_inner().payload)?;
        caller.vouch(&from_leader)?;
        let message = TransferLeaderRequest::new(from_leader, to, last_log_id);
        let reply = self.group.inner.raft.handle_transfer_leader(message).await.map_err(stopped)?;
        frame::encode(&reply).map(Response::new)
    }

    async fn snapshot(&self, request: Request<Streaming<SnapshotChunk>>) -> Result<Response<Frame>, Status> {
        let caller = self.leader(&request).await?;
        let _permit = self
            .snapshots
            .try_acquire()
            .map_err(|_| Status::resource_exhausted("another snapshot is coming in; send this one later"))?;
        let inner = &self.group.inner;
        let (vote, snapshot) = serve_snapshot::receive(caller, request.into_inner(), &inner.snapshots).await?;
        let reply = inner.raft.install_full_snapshot(vote, snapshot).await.map_err(stopped)?;
        frame::encode(&reply).map(Response::new)
    }

    async fn propose(&self, request: Request<Frame>) -> Result<Response<Frame>, Status> {
        self.member(&request).await?;
        let message = frame::decode(&request.into_inner().payload)?;
        frame::encode(&self.group.serve_forwarded(message).await).map(Response::new)
    }

    async fn read_index(&self, request: Request<ReadIndexRequest>) -> Result<Response<ReadIndexResponse>, Status> {
        self.member(&request).await?;
        let index = self.group.serve_read_index().await.map_err(Status::failed_precondition)?;
        Ok(Response::new(ReadIndexResponse { index }))
    }

    async fn attend(&self, request: Request<AttendRequest>) -> Result<Response<Self::AttendStream>, Status> {
        self.member(&request).await?;
        let until_stopped = until_stopped(&self.group);
        Ok(Response::new(Box::pin(futures::stream::once(until_stopped).filter_map(|()| std::future::ready(None)))))
    }

    async fn report_seen(&self, request: Request<ReportSeenRequest>) -> Result<Response<ReportSeenResponse>, Status> {
        let caller = self.member(&request).await?;
        let ReportSeenRequest { broker, clusters } = request.into_inner();
        caller.is(broker)?;
        if clusters.len() > MAX_CLUSTERS_PER_REPORT {
            return Err(Status::invalid_argument(format!(
                "clusters: {} in one report, allowed are {MAX_CLUSTERS_PER_REPORT}; send several",
                clusters.len()
            )));
        }
        let clusters: Vec<ClusterId> = clusters
            .iter()
            .map(|cluster| ClusterId::parse(cluster, "clusters"))
            .collect::<Result<_, _>>()
            .map_err(|refusal| Status::invalid_argument(refusal.to_string()))?;
        self.group.heard_elsewhere(&clusters);
        Ok(Response::new(ReportSeenResponse {}))
    }

    async fn hello(&self, request: Request<HelloRequest>) -> Result<Response<HelloResponse>, Status> {
        let inner = &self.group.inner;
        // Tells a removed broker why it is refused.
        let caller = CallingBroker::of(request.extensions(), &inner.config.trust_domain, inner.certificate_time())?;
        caller.is(request.get_ref().broker)?;
        self.group.serve_hello(request.get_ref()).await.map(Response::new)
    }

    async fn read_audit_records(
        &self,
        request: Request<ReadAuditRecordsRequest>,
    ) -> Result<Response<ReadAuditRecordsResponse>, Status> {
        self.member(&request).await?;
        self.group.serve_audit_records(request.into_inner()).await.map(Response::new)
    }

    async fn exchange_clocks(
        &self,
        request: Request<ExchangeClocksRequest>,
    ) -> Result<Response<ExchangeClocksResponse>, Status> {
        let caller = self.member(&request).await?;
        caller.is(request.into_inner().broker)?;
        Ok(Response::new(self.group.clock_reading()))
    }
}

/// Appends entries from the leader.
async fn append(group: &Group, caller: CallingBroker, frame: Frame) -> Result<Frame, Status> {
    let came = Instant::now();
    // Either may have changed since the stream was opened.
    check_not_removed(group, caller)?;
    check_may_append(group)?;
    let message = frame::decode_append(frame)?;
    caller.vouch(&message.vote)?;
    group.inner.refuse_other_history(&message).map_err(Status::failed_precondition)?;
    let reply = group.inner.raft.append_entries(message).await.map_err(stopped)?;
    if !matches!(reply, AppendEntriesResponse::HigherVote(_)) {
        group.inner.contact.note(caller.broker(), came);
    }
    frame::encode(&reply)
}

/// Waits until a stream must end: at shutdown or `LONGEST_STREAM`.
fn until_stopped(group: &Group) -> impl Future<Output = ()> + Send + 'static {
    let stop = group.inner.stop.clone();
    async move {
        let _ = tokio::time::timeout(LONGEST_STREAM, stop.cancelled()).await;
    }
}

/// Refuses a removed broker although its certificate is valid.
fn check_not_removed(group: &Group, caller: CallingBroker) -> Result<(), Status> {
    let role = group.inner.replica.read(|it| it.state.brokers.get(&caller.broker()).map(|record| record.role));
    if role != Some(BrokerRole::Removed) {
        return Ok(());
    }
    let text = format!("broker {} was removed from this group", caller.broker());
    Err(headers::outcast(Status::permission_denied(text), Outcast::Removed))
}

/// Refuses entries until this broker's log is known to be whole.
fn check_may_append(group: &Group) -> Result<(), Status> {
    if group.inner.eligibility.may_append() {
        return Ok(());
    }
    let text = "this broker has just started, and the others have not confirmed yet that its log is whole";
    Err(Status::failed_precondition(text))
}

fn stopped(error: impl std::fmt::Display) -> Status {
    Status::unavailable(format!("consensus has stopped here: {error}"))
}
