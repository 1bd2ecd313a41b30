//! What peers may call.

use comity_core::ClusterId;
use comity_proto::raft::v1::raft_transport_server::RaftTransport;
use comity_proto::raft::v1::{
    Frame, ReadIndexRequest, ReadIndexResponse, ReportSeenRequest, ReportSeenResponse, SnapshotChunk,
};
use openraft::raft::TransferLeaderRequest;
use tokio::sync::Semaphore;
use tonic::{Request, Response, Status, Streaming};

use super::authorise::Caller;
use super::frame::{self, TransferMessage, VoteMessage};
use super::serve_snapshot;
use crate::group::{Group, MAX_CLUSTERS_PER_REPORT};

/// The Raft port of one broker.
pub struct RaftTransportService {
    group: Group,
    /// One snapshot comes in at a time: each takes disk, and only the newest is of use.
    snapshots: Semaphore,
}

impl RaftTransportService {
    pub(super) fn new(group: Group) -> Self {
        Self { group, snapshots: Semaphore::new(1) }
    }

    fn caller<T>(&self, request: &Request<T>) -> Result<Caller, Status> {
        let inner = &self.group.inner;
        Caller::of(request.extensions(), &inner.config.trust_domain, inner.clock.now())
    }
}

#[tonic::async_trait]
impl RaftTransport for RaftTransportService {
    async fn append(&self, request: Request<Frame>) -> Result<Response<Frame>, Status> {
        let caller = self.caller(&request)?;
        let message = frame::decode_append(request.into_inner())?;
        caller.vouch(&message.vote)?;
        let reply = self.group.inner.raft.append_entries(message).await.map_err(stopped)?;
        frame::encode(&reply).map(Response::new)
    }

    async fn vote(&self, request: Request<Frame>) -> Result<Response<Frame>, Status> {
        let caller = self.caller(&request)?;
        let VoteMessage { pre_vote, request } = frame::decode(&request.into_inner().payload)?;
        caller.vouch(&request.vote)?;
        let raft = &self.group.inner.raft;
        let reply = if pre_vote { raft.pre_vote(request).await } else { raft.vote(request).await };
        frame::encode(&reply.map_err(stopped)?).map(Response::new)
    }

    async fn transfer(&self, request: Request<Frame>) -> Result<Response<Frame>, Status> {
        let caller = self.caller(&request)?;
        let TransferMessage { from_leader, to, last_log_id } = frame::decode(&request.into_inner().payload)?;
        caller.vouch(&from_leader)?;
        let message = TransferLeaderRequest::new(from_leader, to, last_log_id);
        let reply = self.group.inner.raft.handle_transfer_leader(message).await.map_err(stopped)?;
        frame::encode(&reply).map(Response::new)
    }

    async fn snapshot(&self, request: Request<Streaming<SnapshotChunk>>) -> Result<Response<Frame>, Status> {
        let caller = self.caller(&request)?;
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
        self.caller(&request)?;
        let message = frame::decode(&request.into_inner().payload)?;
        frame::encode(&self.group.serve_forwarded(message).await).map(Response::new)
    }

    async fn read_index(&self, request: Request<ReadIndexRequest>) -> Result<Response<ReadIndexResponse>, Status> {
        self.caller(&request)?;
        let index = self.group.serve_read_index().await.map_err(Status::failed_precondition)?;
        Ok(Response::new(ReadIndexResponse { index }))
    }

    async fn report_seen(&self, request: Request<ReportSeenRequest>) -> Result<Response<ReportSeenResponse>, Status> {
        let caller = self.caller(&request)?;
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
}

fn stopped(error: impl std::fmt::Display) -> Status {
    Status::unavailable(format!("consensus has stopped here: {error}"))
}
