//! A simulated member cluster: it joins, offers, and reports on leases and peerings over an agent's stream, but
//! provisions nothing.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use comity_proto::v1;
use comity_proto::v1::agent_message::Body;
use comity_proto::v1::agent_service_client::AgentServiceClient;
use comity_proto::v1::broker_message::Body as Reply;
use comity_runtime::BrokerChannel;
use tokio::sync::{mpsc, oneshot, watch};
use tokio_stream::wrappers::UnboundedReceiverStream;

use super::messages::{self, MessageKey};
use crate::federation::broker_api::{channel, join};

/// Maximum message size, for desired states with thousands of leases and offers with 10,000 nodes.
const MAX_DESIRED_STATE_BYTES: usize = 64 << 20;
/// Interval of heartbeats.
const HEARTBEAT_INTERVAL: Duration = Duration::from_secs(2);
/// Interval before a reconnect.
const RECONNECT_INTERVAL: Duration = Duration::from_millis(100);

/// Progress of the clusters, to wait for.
#[derive(Debug, Default)]
pub(super) struct MemberProgress {
    /// Active leases in the origin's desired state.
    pub(super) active: AtomicU64,
    /// All leases in the origin's desired state.
    pub(super) held: AtomicU64,
    /// Refused reports.
    pub(super) refused: AtomicU64,
}

/// An offer to send, with the channel for its acknowledgement.
type Ask = (v1::Offer, oneshot::Sender<()>);

/// A cluster with a stream in the background until dropped.
pub(crate) struct Member {
    pub(super) name: String,
    pub(super) progress: Arc<MemberProgress>,
    asks: mpsc::Sender<Ask>,
    task: tokio::task::JoinHandle<()>,
}

impl Drop for Member {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Identity and endpoints of a stream.
struct MemberTask {
    name: String,
    identity_key: String,
    channel: BrokerChannel,
    progress: Arc<MemberProgress>,
}

impl Member {
    /// Joins with an invitation's token, and connects while `open` is true.
    ///
    /// # Errors
    /// When the broker refuses it.
    pub(crate) async fn join(name: &str, token: &str, open: watch::Receiver<bool>) -> Result<Self> {
        let joined = join(name, token).await?;
        let progress = Arc::new(MemberProgress::default());
        let cluster = MemberTask {
            name: name.to_owned(),
            channel: channel(&joined.brokers, &joined.pem)?,
            identity_key: joined.identity_key,
            progress: Arc::clone(&progress),
        };
        let (asks, receiver) = mpsc::channel(1);
        let task = tokio::spawn(cluster.run(receiver, open));
        Ok(Self { name: name.to_owned(), progress, asks, task })
    }

    /// Sends an offer and waits until it is acknowledged.
    ///
    /// # Errors
    /// When the stream ends first or the offer is refused.
    pub(crate) async fn offer(&self, offer: v1::Offer) -> Result<()> {
        let (sender, acknowledged) = oneshot::channel();
        self.asks.send((offer, sender)).await.ok().context("the cluster's task has ended")?;
        acknowledged.await.with_context(|| format!("the offer of {} was not taken", self.name))
    }
}

/// The state of one stream.
struct Stream {
    reports: mpsc::UnboundedSender<v1::AgentMessage>,
    next_id: u64,
    sent: HashSet<MessageKey>,
    /// Id of the message with an offer, and the channel for its acknowledgement.
    offering: Option<(u64, oneshot::Sender<()>)>,
}

impl MemberTask {
    async fn run(self, mut asks: mpsc::Receiver<Ask>, mut open: watch::Receiver<bool>) {
        loop {
            if open.wait_for(|open| *open).await.is_err() {
                return;
            }
            // The run stops and restarts the broker; a lack of progress shows in the counters.
            let _ = self.stream(&mut asks).await;
            tokio::time::sleep(RECONNECT_INTERVAL).await;
        }
    }

    async fn stream(&self, asks: &mut mpsc::Receiver<Ask>) -> Result<()> {
        // Bounded by the cluster's directives: each is reported once per stream.
        let (reports, receiver) = mpsc::unbounded_channel();
        let mut client =
            AgentServiceClient::new(self.channel.clone()).max_decoding_message_size(MAX_DESIRED_STATE_BYTES);
        reports.send(message(0, Body::Hello(v1::Hello::default())))?;
        let mut replies = client.connect(UnboundedReceiverStream::new(receiver)).await?.into_inner();
        let welcome = replies.message().await?.and_then(|reply| reply.body);
        ensure!(matches!(welcome, Some(Reply::Welcome(_))), "no welcome: {welcome:?}");
        let mut stream = Stream { reports, next_id: 1, sent: HashSet::new(), offering: None };
        let mut beat = tokio::time::interval(HEARTBEAT_INTERVAL);
        loop {
            tokio::select! {
                reply = replies.message() => {
                    let reply = reply?.and_then(|reply| reply.body).context("the stream ended")?;
                    self.hear(reply, &mut stream)?;
                }
                _ = beat.tick() => stream.reports.send(message(0, Body::Heartbeat(v1::Heartbeat {})))?,
                Some((offer, sender)) = asks.recv() => {
                    stream.offering = Some((stream.next_id, sender));
                    stream.say(Body::Offer(offer))?;
                }
            }
        }
    }

    fn hear(&self, reply: Reply, stream: &mut Stream) -> Result<()> {
        match reply {
            Reply::Desired(desired) => {
                self.count(&desired);
                for (word, body) in messages::pending(&self.name, &self.identity_key, &desired) {
                    if stream.sent.insert(word) {
                        stream.say(body)?;
                    }
                }
            }
            Reply::Ack(ack) => {
                if let Some(error) = ack.error {
                    self.progress.refused.fetch_add(1, Ordering::Relaxed);
                    bail!("a report of {} was refused: {error:?}", self.name);
                }
                if stream.offering.as_ref().is_some_and(|(id, _)| *id == ack.message_id)
                    && let Some((_, sender)) = stream.offering.take()
                {
                    // The caller may have given up.
                    let _ = sender.send(());
                }
            }
            Reply::Brokers(_) => {}
            Reply::Welcome(_) => bail!("welcomed twice"),
        }
        Ok(())
    }

    /// Counts the leases whose origin is this cluster.
    fn count(&self, desired: &v1::DesiredState) {
        let own = desired.leases.iter().filter(|lease| lease.origin == self.name);
        let (mut held, mut active) = (0, 0);
        for lease in own {
            held += 1;
            active += u64::from(lease.state() == v1::LeaseState::Active);
        }
        self.progress.held.store(held, Ordering::Relaxed);
        self.progress.active.store(active, Ordering::Relaxed);
    }
}

impl Stream {
    fn say(&mut self, body: Body) -> Result<()> {
        let id = self.next_id;
        self.next_id += 1;
        self.reports.send(message(id, body)).context("the stream ended")
    }
}

fn message(message_id: u64, body: Body) -> v1::AgentMessage {
    v1::AgentMessage { message_id, body: Some(body), traceparent: String::new() }
}
