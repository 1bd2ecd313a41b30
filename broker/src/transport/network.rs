//! Sends openraft messages to one peer.

use std::future::Future;
use std::io::Read as _;
use std::time::Duration;

use comity_proto::raft::v1::{Frame, SnapshotChunk};
use futures::future::BoxFuture;
use futures::stream::{BoxStream, Stream, StreamExt as _};
use openraft::errors::{NetworkError, RPCError, ReplicationClosed, StreamingError, Timeout, Unreachable};
use openraft::network::{RPCOption, stream_append_sequential};
use openraft::raft::{
    AppendEntriesRequest, AppendEntriesResponse, SnapshotResponse, StreamAppendResult, TransferLeaderRequest,
    TransferLeaderResponse, VoteRequest, VoteResponse,
};
use openraft::{OptionalSend, RPCTypes, RaftNetworkFactory, RaftNetworkV2};
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Code, Request, Status};

use crate::replication::member::MemberNode;
use crate::replication::types::{LogId, SnapshotMeta, TypeConfig, Vote};
use crate::storage::{LogPosition, RaftSnapshot, SnapshotHandle};
use crate::transport::frame::{self, SnapshotHeader, TransferMessage, VoteMessage};
use crate::transport::headers;
use crate::transport::peers::{Client, Lane, Peers, describe, never_connected, within};
use crate::transport::stream_append::AppendExchange;

/// Minimum timeout of appends: openraft grants a heartbeat interval, but entries are written to disk.
const APPEND_AT_LEAST: Duration = Duration::from_secs(2);
/// Chunks read ahead of the network.
const CHUNKS_AHEAD: usize = 4;

/// Answers to a stream of appends, in order.
type Answers<'s> = BoxStream<'s, Result<StreamAppendResult<TypeConfig>, RPCError<TypeConfig>>>;
/// One peer on one lane.
pub(crate) struct PeerNetwork {
    peers: Peers,
    target: u64,
    node: MemberNode,
    lane: Lane,
}

impl RaftNetworkFactory<TypeConfig> for Peers {
    type Network = PeerNetwork;

    async fn new_client(&mut self, target: u64, node: &MemberNode) -> PeerNetwork {
        PeerNetwork::new(self.clone(), target, node.clone(), Lane::Log)
    }

    async fn new_heartbeat_client(&mut self, target: u64, node: &MemberNode) -> PeerNetwork {
        PeerNetwork::new(self.clone(), target, node.clone(), Lane::Heartbeat)
    }

    async fn new_snapshot_client(&mut self, target: u64, node: &MemberNode) -> PeerNetwork {
        PeerNetwork::new(self.clone(), target, node.clone(), Lane::Snapshot)
    }
}

#[derive(Clone, Copy)]
enum Method {
    Append,
    Vote,
    Transfer,
}

impl PeerNetwork {
    pub(super) fn new(peers: Peers, target: u64, node: MemberNode, lane: Lane) -> Self {
        Self { peers, target, node, lane }
    }

    fn message<M>(&self, message: M) -> Request<M> {
        let mut request = Request::new(message);
        headers::put(request.metadata_mut(), self.peers.group().as_ref(), &self.node.incarnation);
        request
    }

    fn client(&self) -> Result<Client, RPCError<TypeConfig>> {
        self.peers.client(self.target, &self.node.address, self.lane).map_err(|error| Unreachable::new(&error).into())
    }

    async fn exchange<M: Serialize, R: DeserializeOwned>(
        &self,
        method: Method,
        message: &M,
        timeout: Duration,
    ) -> Result<R, RPCError<TypeConfig>> {
        let frame = frame::encode(message).map_err(|status| self.failed(method, timeout, &status))?;
        self.exchange_frame(method, frame, timeout).await
    }

    async fn exchange_frame<R: DeserializeOwned>(
        &self,
        method: Method,
        frame: Frame,
        timeout: Duration,
    ) -> Result<R, RPCError<TypeConfig>> {
        let mut client = self.client()?;
        let reply = within(
            timeout,
            |request| async {
                match method {
                    Method::Append => client.append(request).await,
                    Method::Vote => client.vote(request).await,
                    Method::Transfer => client.transfer(request).await,
                }
            },
            self.message(frame),
        )
        .await;
        if self.lane == Lane::Heartbeat {
            self.peers.note_heartbeat(self.target, &reply);
        }
        reply.and_then(|reply| frame::decode(&reply.payload)).map_err(|status| self.failed(method, timeout, &status))
    }

    fn failed(&self, method: Method, timeout: Duration, status: &Status) -> RPCError<TypeConfig> {
        self.peers.heed(self.target, status);
        let reason = format!("broker {} at {}: {}", self.target, self.node.address.raft, describe(status));
        let action = match method {
            Method::Append => RPCTypes::AppendEntries,
            Method::Vote => RPCTypes::Vote,
            Method::Transfer => RPCTypes::TransferLeader,
        };
        match status.code() {
            Code::DeadlineExceeded | Code::Cancelled => {
                Timeout { action, id: self.peers.own_id(), target: self.target, timeout }.into()
            }
            // openraft counts an unreachable peer as granting a pre-vote.
            _ if matches!(method, Method::Vote) => NetworkError::from_string(reason).into(),
            Code::Unauthenticated | Code::PermissionDenied | Code::FailedPrecondition => {
                Unreachable::from_string(reason).into()
            }
            _ if never_connected(status) => Unreachable::from_string(reason).into(),
            _ => NetworkError::from_string(reason).into(),
        }
    }

    /// Opens a stream of appends; `timeout` bounds opening and each answer.
    async fn open_stream<S>(&self, requests: S, timeout: Duration) -> Result<Answers<'_>, RPCError<TypeConfig>>
    where
        S: Stream<Item = AppendEntriesRequest<TypeConfig>> + OptionalSend + Unpin + 'static,
    {
        let mut client = self.client()?;
        let exchange = AppendExchange::new(timeout);
        let opened = client.stream_append(self.message(exchange.outgoing(requests)));
        let opened = tokio::time::timeout(timeout, opened).await.unwrap_or_else(|_| {
            Err(Status::deadline_exceeded(format!("no stream of appends within {} ms", timeout.as_millis())))
        });
        let answers = opened.map_err(|status| self.failed(Method::Append, timeout, &status))?.into_inner();
        let answers = futures::stream::unfold((exchange, answers), move |(exchange, mut answers)| async move {
            let answer = exchange.next(&mut answers).await?;
            if let Ok(Ok(acknowledged)) = &answer {
                self.note_acknowledged(*acknowledged);
            }
            let answer = answer.map_err(|status| self.failed(Method::Append, timeout, &status));
            Some((answer, (exchange, answers)))
        });
        Ok(answers.boxed())
    }

    /// Records how far the peer's log is on its disk.
    fn note_acknowledged(&self, acknowledged: Option<LogId>) {
        let Some(id) = acknowledged else { return };
        let place = LogPosition { term: id.leader_id.term, index: id.index };
        self.peers.eligibility().note_acknowledged(self.target, &self.node.incarnation, place);
    }

    /// Refuses to ask for votes while this broker may not vote: an election may have begun before.
    fn ask_only_if_eligible(&self) -> Result<(), RPCError<TypeConfig>> {
        if self.peers.eligibility().may_vote() {
            return Ok(());
        }
        Err(NetworkError::from_string("this broker does not vote yet".to_owned()).into())
    }

    async fn send_snapshot(
        &self,
        vote: Vote,
        snapshot: RaftSnapshot,
        timeout: Duration,
    ) -> Result<SnapshotResponse<TypeConfig>, StreamingError<TypeConfig>> {
        let mut client = self.client()?;
        let (sender, chunks) = mpsc::channel(CHUNKS_AHEAD);
        tokio::task::spawn_blocking(move || {
            if let Err(error) = read_chunks(vote, snapshot.meta, &snapshot.snapshot, &sender) {
                tracing::warn!(%error, "snapshot cannot be read; the transfer is cut off");
            }
        });
        let reply =
            within(timeout, |request| client.snapshot(request), self.message(ReceiverStream::new(chunks))).await;
        reply
            .and_then(|reply| frame::decode(&reply.payload))
            .map_err(|status| self.failed(Method::Append, timeout, &status).into())
    }
}

/// Sends the file in chunks. On a read error it stops early, which the checksum reveals.
fn read_chunks(
    vote: Vote,
    meta: SnapshotMeta,
    handle: &SnapshotHandle,
    sender: &mpsc::Sender<SnapshotChunk>,
) -> std::io::Result<()> {
    let header = serde_json::to_vec(&SnapshotHeader { vote, meta })?;
    let mut file = handle.reader()?;
    let mut next = SnapshotChunk { header, data: Vec::new() };
    loop {
        if sender.blocking_send(next).is_err() {
            return Ok(());
        }
        let mut data = Vec::with_capacity(frame::SNAPSHOT_CHUNK_BYTES);
        (&mut file).take(frame::SNAPSHOT_CHUNK_BYTES as u64).read_to_end(&mut data)?;
        if data.is_empty() {
            return Ok(());
        }
        next = SnapshotChunk { header: Vec::new(), data };
    }
}

impl RaftNetworkV2<TypeConfig> for PeerNetwork {
    type SnapshotData = SnapshotHandle;

    async fn append_entries(
        &mut self,
        rpc: AppendEntriesRequest<TypeConfig>,
        option: RPCOption,
    ) -> Result<AppendEntriesResponse<TypeConfig>, RPCError<TypeConfig>> {
        let timeout = if rpc.entries.is_empty() && self.lane == Lane::Heartbeat {
            option.soft_ttl()
        } else {
            option.soft_ttl().max(APPEND_AT_LEAST)
        };
        let frame = frame::encode_append(&rpc).map_err(|status| self.failed(Method::Append, timeout, &status))?;
        let reply = self.exchange_frame(Method::Append, frame, timeout).await?;
        self.note_acknowledged(match &reply {
            AppendEntriesResponse::Success => rpc.entries.last().map(|entry| entry.log_id).or(rpc.prev_log_id),
            AppendEntriesResponse::PartialSuccess(matched) => *matched,
            _ => None,
        });
        Ok(reply)
    }

    fn stream_append<'s, S>(
        &'s mut self,
        input: S,
        option: RPCOption,
    ) -> BoxFuture<'s, Result<Answers<'s>, RPCError<TypeConfig>>>
    where
        S: Stream<Item = AppendEntriesRequest<TypeConfig>> + OptionalSend + Unpin + 'static,
    {
        if self.lane == Lane::Heartbeat {
            // One message, whose answer is a sign of life.
            return stream_append_sequential(self, input, option);
        }
        Box::pin(self.open_stream(input, option.soft_ttl().max(APPEND_AT_LEAST)))
    }

    async fn vote(
        &mut self,
        rpc: VoteRequest<TypeConfig>,
        option: RPCOption,
    ) -> Result<VoteResponse<TypeConfig>, RPCError<TypeConfig>> {
        self.ask_only_if_eligible()?;
        let leader_gone = self.peers.stands_after(&rpc);
        self.exchange(Method::Vote, &VoteMessage { pre_vote: false, request: rpc, leader_gone }, option.soft_ttl())
            .await
    }

    async fn pre_vote(
        &mut self,
        rpc: VoteRequest<TypeConfig>,
        option: RPCOption,
    ) -> Result<VoteResponse<TypeConfig>, RPCError<TypeConfig>> {
        self.ask_only_if_eligible()?;
        let message = VoteMessage { pre_vote: true, request: rpc, leader_gone: None };
        self.exchange(Method::Vote, &message, option.soft_ttl()).await
    }

    async fn full_snapshot(
        &mut self,
        vote: Vote,
        snapshot: RaftSnapshot,
        cancel: impl Future<Output = ReplicationClosed> + OptionalSend + 'static,
        option: RPCOption,
    ) -> Result<SnapshotResponse<TypeConfig>, StreamingError<TypeConfig>> {
        tokio::select! {
            sent = self.send_snapshot(vote, snapshot, option.soft_ttl()) => sent,
            closed = cancel => Err(closed.into()),
        }
    }

    async fn transfer_leader(
        &mut self,
        req: TransferLeaderRequest<TypeConfig>,
        option: RPCOption,
    ) -> Result<TransferLeaderResponse<TypeConfig>, RPCError<TypeConfig>> {
        let message = TransferMessage {
            from_leader: *req.from_leader(),
            to: *req.to_node_id(),
            last_log_id: req.last_log_id().copied(),
        };
        self.exchange(Method::Transfer, &message, option.soft_ttl()).await
    }
}
