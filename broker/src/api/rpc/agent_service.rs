//! AgentService: the one stream of each agent.
//!
//! ```text
//!   agent ─ report ─▶ parse ─▶ propose ─▶ committed ─▶ ack        (one after the other, in the order of the outbox)
//!   apply ─ cluster touched ─▶ read the whole desired state ─▶ agent     (the newest only; what was missed is in it)
//! ```

mod decoded_size;
mod desired;
mod policy_history;
mod wire;

use std::pin::Pin;
use std::time::Duration;

use comity_core::command::{AdvertiseOffer, ReviseOffer};
use comity_core::refusal::Code;
use comity_core::reply::Applied;
use comity_core::{Command, Refusal, State};
use comity_proto::v1;
use comity_proto::v1::agent_message::Body;
use comity_proto::v1::broker_message::Body as Reply;
use comity_runtime::telemetry::continue_trace;
use comity_types::ClusterId;
use futures::stream::{self, PollNext, select_with_strategy};
use futures::{FutureExt as _, Stream, StreamExt as _};
use tokio::sync::{mpsc, watch};
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Response, Status, Streaming};
use tracing::{Instrument as _, info_span};

use self::desired::DesiredWriter;
use self::policy_history::SHOWN_HISTORIES;
use self::wire::ToAgent;
use crate::api::agent_streams::{Seat, Takeover};
use crate::api::authorize::Rpc;
use crate::api::caller::Caller;
use crate::api::caller_life::CallerLife;
use crate::api::convert::agent;
use crate::api::rpc_error::{RpcError, refusal_detail};
use crate::api::shares::caller_slots::CallerSlots;
use crate::context::Context;
use crate::group::{Consistency, Unavailable};

pub use self::wire::AgentServer;

/// Acks queued for one agent.
const ACK_QUEUE_CAPACITY: usize = 16;
/// Desired states queued for one agent: they may have megabytes, and only the newest counts.
const DESIRED_QUEUE_CAPACITY: usize = 1;
/// An agent that reads nothing for this long is disconnected.
const AGENT_STALL_TIMEOUT: Duration = Duration::from_secs(30);
/// Timeout of the hello.
const AGENT_HELLO_TIMEOUT: Duration = Duration::from_secs(10);
/// Attempts to commit a report while the group has no leader; then the agent tries another broker.
const MAX_COMMIT_TRIES: u32 = 10;
/// Interval of these attempts.
const COMMIT_RETRY_INTERVAL: Duration = Duration::from_millis(300);
/// Timeout of queueing the status that ends a stream.
const CLOSE_TIMEOUT: Duration = Duration::from_millis(300);
/// Time for an agent to close the stream that it replaced by a newer one; a dead connection is closed then.
const REPLACED_TIMEOUT: Duration = Duration::from_secs(10);
/// Characters that are read of an agent's version and of its instance.
const MAX_NAME_CHARS: usize = 64;
/// Bytes of a traceparent: the standard's first version has 55.
const MAX_TRACEPARENT_BYTES: usize = 64;

/// Serves agents.
#[derive(Debug, Clone)]
pub struct AgentHandlers {
    context: Context,
    histories: CallerSlots,
}

type Messages = Pin<Box<dyn Stream<Item = Result<ToAgent, Status>> + Send>>;

impl AgentHandlers {
    /// Starts without agents.
    #[must_use]
    pub fn new(context: Context) -> Self {
        Self { context, histories: CallerSlots::new(&SHOWN_HISTORIES) }
    }

    async fn connect(&self, request: Request<Streaming<v1::AgentMessage>>) -> Result<Response<Messages>, Status> {
        self.begin(request).await.map(Response::new).map_err(|error| self.context.fail(error))
    }

    async fn begin(&self, request: Request<Streaming<v1::AgentMessage>>) -> Result<Messages, RpcError> {
        let life = self.context.admit_stream(Rpc::Connect, &request).await?;
        let caller = life.caller().clone();
        let cluster = caller.cluster().cloned().ok_or(RpcError::Internal { what: "naming the caller's cluster" })?;
        let span = info_span!("agent", %cluster);
        let open = self.context.streams.open(&cluster)?;
        let (sender, receiver) = mpsc::channel(ACK_QUEUE_CAPACITY);
        let (desired, shown) = mpsc::channel(DESIRED_QUEUE_CAPACITY);
        let stream =
            AgentStream { context: self.context.clone(), life, caller, cluster, sender: sender.clone(), desired };
        let incoming = request.into_inner();
        let task = async move {
            let _open = open;
            if let Some(status) = stream.run(incoming).await {
                tracing::info!(code = ?status.code(), reason = status.message(), "stream ended by this broker");
                let _ = tokio::time::timeout(CLOSE_TIMEOUT, sender.send(Err(status))).await;
            } else {
                tracing::info!("stream ended by the agent");
            }
        };
        tokio::spawn(task.instrument(span));
        Ok(Box::pin(welcome_first(receiver, shown)))
    }
}

/// Sends the welcome, then whatever is ready: acks before desired states. The two queues are filled by one task, but read
/// by another, which could find the first still empty and the second not.
fn welcome_first(
    acks: mpsc::Receiver<Result<ToAgent, Status>>,
    desired: mpsc::Receiver<ToAgent>,
) -> impl Stream<Item = Result<ToAgent, Status>> {
    let desired = ReceiverStream::new(desired).map(Ok);
    ReceiverStream::new(acks)
        .into_future()
        .map(|(welcome, acks)| {
            let rest = select_with_strategy(acks, desired, |(): &mut ()| PollNext::Left);
            stream::iter(welcome).chain(rest)
        })
        .flatten_stream()
}

/// One agent's stream.
struct AgentStream {
    context: Context,
    life: CallerLife,
    caller: Caller,
    cluster: ClusterId,
    sender: mpsc::Sender<Result<ToAgent, Status>>,
    desired: mpsc::Sender<ToAgent>,
}

/// Why a stream ends: the agent disconnected, or the broker sends a status.
enum End {
    Gone,
    Because(Status),
}

impl From<RpcError> for End {
    fn from(error: RpcError) -> Self {
        Self::Because(error.into())
    }
}

impl From<Unavailable> for End {
    fn from(error: Unavailable) -> Self {
        RpcError::from(error).into()
    }
}

impl AgentStream {
    /// Runs the stream; returns the status to send, or `None` if the agent is gone.
    async fn run(self, mut incoming: Streaming<v1::AgentMessage>) -> Option<Status> {
        let _counted = self.context.metrics.agent_stream();
        // Subscribes before the first read, so that no change is missed.
        let touched = self.context.hub.touched().follow(&self.cluster);
        let end = tokio::select! {
            end = self.serve(&mut incoming, touched) => end,
            ended = self.context.caller_ended(&self.life) => ended.into(),
            () = self.context.stop.cancelled() => RpcError::Stopping.into(),
            () = self.sender.closed() => End::Gone,
        };
        self.context.hub.touched().tidy();
        match end {
            End::Gone => None,
            End::Because(status) => Some(status),
        }
    }

    async fn serve(&self, incoming: &mut Streaming<v1::AgentMessage>, touched: watch::Receiver<u64>) -> End {
        let hello = match self.receive_hello(incoming).await {
            Ok(hello) => hello,
            Err(end) => return end,
        };
        let instance: String = hello.instance.chars().take(MAX_NAME_CHARS).collect();
        let seat = self.context.streams.take(&self.cluster, &instance);
        let served = async {
            self.welcome_agent(&hello).await?;
            tokio::select! {
                ended = self.take_reports(incoming) => ended,
                ended = self.send_desired(touched) => ended,
                ended = self.send_brokers() => ended,
            }
        };
        tokio::select! {
            ended = served => ended.err().unwrap_or(End::Gone),
            end = self.replaced(&seat) => end,
        }
    }

    /// Waits until this stream has to end because of a newer one.
    async fn replaced(&self, seat: &Seat) -> End {
        match seat.replaced().await {
            Takeover::SameProcess => {
                self.context.clock.sleep(REPLACED_TIMEOUT).await;
                End::Gone
            }
            Takeover::OtherProcess => RpcError::Superseded { cluster: self.cluster.to_string() }.into(),
        }
    }

    async fn receive_hello(&self, incoming: &mut Streaming<v1::AgentMessage>) -> Result<v1::Hello, End> {
        let first = tokio::time::timeout(AGENT_HELLO_TIMEOUT, incoming.message()).await;
        match first {
            Ok(Ok(Some(v1::AgentMessage { body: Some(Body::Hello(hello)), .. }))) => Ok(hello),
            Ok(Ok(None)) => Err(End::Gone),
            Ok(Err(status)) => Err(End::Because(crate::api::rpc::explain_failure::explained(status))),
            Ok(Ok(Some(_))) | Err(_) => {
                let refusal = Refusal::invalid("body", "", "is not hello", "send hello first, within 10 seconds");
                Err(RpcError::from(refusal).into())
            }
        }
    }

    /// Sends the welcome.
    async fn welcome_agent(&self, hello: &v1::Hello) -> Result<(), End> {
        let read = |state: &State| (self.welcome(state), state.audit.tree_head());
        let ((welcome, revision), audit) = self.context.group.read(Consistency::Linearizable, read).await?;
        let audit = self.context.audit_proof(hello.audit_size, audit).await.unwrap_or_else(|error| {
            tracing::warn!(%error, "no proof of the audit log for an agent");
            None
        });
        let welcome = v1::Welcome { audit, ..welcome.map_err(RpcError::from)? };
        if hello.revision > revision {
            tracing::warn!(
                theirs = hello.revision,
                ours = revision,
                "the agent has seen a later state than this group holds"
            );
        }
        self.context.group.heard(&self.cluster);
        tracing::info!(
            agent_version = hello.agent_version.chars().take(MAX_NAME_CHARS).collect::<String>(),
            "agent connected"
        );
        self.send(Reply::Welcome(welcome)).await
    }

    fn welcome(&self, state: &State) -> (Result<v1::Welcome, Refusal>, u64) {
        let settings = state.settings();
        let member = state.clusters.get(&self.cluster).ok_or_else(|| {
            let refusal = Refusal::not_found("certificate", &self.cluster, "member cluster");
            Refusal { remedy: "join with a token from `comity cluster invite`".to_owned(), ..refusal }
        });
        let welcome = member.map(|member| v1::Welcome {
            broker: self.context.id,
            heartbeat_interval_ms: settings.heartbeat().0,
            offer_generation: member.offer_generation(),
            outage_grace_ms: settings.outage_grace.0,
            audit: None,
        });
        (welcome, state.revision)
    }

    /// Commits reports one by one, in order, and no faster than the cluster may report.
    async fn take_reports(&self, incoming: &mut Streaming<v1::AgentMessage>) -> Result<(), End> {
        loop {
            let message = match incoming.message().await {
                Ok(Some(message)) => message,
                Ok(None) => return Ok(()),
                Err(status) => return Err(End::Because(crate::api::rpc::explain_failure::explained(status))),
            };
            self.context.group.heard(&self.cluster);
            self.context.report_pace.read(&self.cluster, message.body.as_ref()).await;
            let Some(body) = message.body else {
                let refusal =
                    Refusal::invalid("body", "", "is missing or unknown to this broker", "send a known message");
                if message.message_id == 0 {
                    return Err(RpcError::from(refusal).into());
                }
                self.acknowledge(message.message_id, Some(&refusal)).await?;
                continue;
            };
            match (&body, message.message_id) {
                (Body::Heartbeat(_), 0) => {}
                (_, 0) => {
                    let refusal = Refusal::invalid("message_id", 0, "is not in an outbox", "count reports from 1");
                    return Err(RpcError::from(refusal).into());
                }
                (_, id) => {
                    let span = info_span!("report", message_id = id);
                    if message.traceparent.len() <= MAX_TRACEPARENT_BYTES {
                        continue_trace(&span, &message.traceparent);
                    }
                    let error = self.carry_out(body).instrument(span).await?;
                    self.acknowledge(id, error.as_ref()).await?;
                }
            }
        }
    }

    /// Commits a report: returns a refusal, retries while there is no leader.
    async fn carry_out(&self, body: Body) -> Result<Option<Refusal>, End> {
        let command = match agent::command(body, &self.cluster) {
            Ok(command) => command,
            Err(refusal) => return Ok(Some(refusal)),
        };
        let mut revision = self.as_revision(&command).await;
        self.context.report_pace.write(&self.cluster, revision.as_ref().unwrap_or(&command)).await;
        let mut tried = 1;
        loop {
            // Reports are idempotent.
            match self.context.propose(&self.caller, revision.as_ref().unwrap_or(&command).clone(), None).await {
                // This broker lagged behind the stored offer: send the whole offer.
                Ok(Applied { reply: Err(refusal), .. })
                    if revision.is_some() && refusal.code == Code::StaleGeneration =>
                {
                    revision = None;
                    continue;
                }
                Ok(Applied { reply, .. }) => return Ok(reply.err()),
                Err(error) if tried >= MAX_COMMIT_TRIES => return Err(error.into()),
                Err(_) => tried += 1,
            }
            self.context.clock.sleep(COMMIT_RETRY_INTERVAL).await;
        }
    }

    /// Converts an offer to a revision of the stored one if little changed: the log entry is smaller and faster to
    /// apply.
    async fn as_revision(&self, command: &Command) -> Option<Command> {
        let Command::AdvertiseOffer(AdvertiseOffer { cluster, offer }) = command else { return None };
        let between = |state: &State| {
            let held = state.clusters.get(cluster)?.offer.as_deref()?;
            (held != offer).then(|| ReviseOffer::between(cluster, held, offer)).flatten()
        };
        // If the read fails, the whole offer is sent.
        let revision = self.context.group.read(Consistency::Stale, between).await.ok().flatten();
        revision.map(Command::ReviseOffer)
    }

    async fn acknowledge(&self, message_id: u64, refusal: Option<&Refusal>) -> Result<(), End> {
        if let Some(refusal) = refusal {
            tracing::info!(message_id, code = refusal.code.as_str(), reason = refusal.reason, "report refused");
        }
        self.send(Reply::Ack(v1::Ack { message_id, error: refusal.map(refusal_detail) })).await
    }

    /// Sends desired states. The first is linearizable: a lagging broker must not send an older state than the agent
    /// has seen, because the agent tears down leases that are missing.
    async fn send_desired(&self, mut touched: watch::Receiver<u64>) -> Result<(), End> {
        self.context.group.catch_up().await?;
        let mut writer = DesiredWriter::default();
        loop {
            // Waits for queue space before reading, so that the newest state is sent.
            let room = tokio::time::timeout(AGENT_STALL_TIMEOUT, self.desired.reserve()).await;
            let room = room.map_err(|_| too_slow("a desired state waits"))?.map_err(|_| End::Gone)?;
            let turn = self.context.pace.turn().await;
            touched.mark_unchanged();
            let write = |state: &State| {
                let began = self.context.clock.elapsed();
                let desired = writer.write(state, &self.cluster);
                (desired, self.context.clock.elapsed().saturating_sub(began))
            };
            let (desired, took) = self.context.group.read(Consistency::Stale, write).await?;
            turn.end(took);
            room.send(ToAgent::Desired(desired));
            if touched.changed().await.is_err() {
                return Ok(());
            }
        }
    }

    /// Sends the brokers' addresses, and again when they change.
    async fn send_brokers(&self) -> Result<(), End> {
        let mut addresses = self.context.group.client_addresses();
        loop {
            let list = addresses.borrow_and_update().to_vec();
            self.send(Reply::Brokers(v1::BrokerList { addresses: list })).await?;
            if addresses.changed().await.is_err() {
                return Ok(());
            }
        }
    }

    async fn send(&self, body: Reply) -> Result<(), End> {
        let message = ToAgent::Message(v1::BrokerMessage { body: Some(body) });
        match self.sender.send_timeout(Ok(message), AGENT_STALL_TIMEOUT).await {
            Ok(()) => Ok(()),
            Err(mpsc::error::SendTimeoutError::Closed(_)) => Err(End::Gone),
            Err(mpsc::error::SendTimeoutError::Timeout(_)) => Err(too_slow(&format!("{ACK_QUEUE_CAPACITY} acks wait"))),
        }
    }
}

fn too_slow(what: &str) -> End {
    let reason = format!("{what} for the agent, which reads nothing");
    RpcError::LimitReached { reason, remedy: "connect again, over a line that carries them" }.into()
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use futures::FutureExt as _;

    use super::*;

    #[tokio::test]
    async fn no_desired_state_overtakes_the_welcome() {
        let ((acks, receiver), (desired, shown)) = (mpsc::channel(2), mpsc::channel(2));
        let mut messages = Box::pin(welcome_first(receiver, shown));
        desired.send(ToAgent::Desired(Bytes::new())).await.expect("room");
        assert!(messages.next().now_or_never().is_none());
        acks.send(Ok(ToAgent::Message(v1::BrokerMessage::default()))).await.expect("room");
        assert!(matches!(messages.next().await, Some(Ok(ToAgent::Message(_)))));
        assert!(matches!(messages.next().await, Some(Ok(ToAgent::Desired(_)))));
    }
}
