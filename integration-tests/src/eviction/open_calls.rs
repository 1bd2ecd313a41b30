//! The calls that a subject of a revocation has open on the brokers, and those that it tries.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use comity_proto::v1;
use comity_proto::v1::agent_message::Body;
use comity_proto::v1::agent_service_client::AgentServiceClient;
use comity_proto::v1::federation_service_client::FederationServiceClient;
use comity_proto::v1::watch_service_client::WatchServiceClient;
use comity_runtime::BrokerChannel;
use futures::future::join_all;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Status, Streaming};

use super::GIVE_UP;

/// Interval of further calls, on each broker.
const CALL_INTERVAL: Duration = Duration::from_millis(50);
/// Error code of calls that a revocation ends.
const REVOKED: &str = "revoked";
/// Largest message of a stream.
const MAX_REPLY_BYTES: usize = 64 << 20;

/// When and why a call ended.
type CallEnd = (Instant, Status);

/// An open stream or watch.
struct OpenCall {
    name: String,
    end: JoinHandle<CallEnd>,
}

/// All open calls of a subject, and a channel to each broker for further ones.
#[derive(Default)]
pub(super) struct OpenCalls {
    open: Vec<OpenCall>,
    channels: Vec<BrokerChannel>,
}

impl OpenCalls {
    /// Opens a watch, and uses the channel for further calls.
    ///
    /// # Errors
    /// When the broker refuses it.
    pub(super) async fn watch(&mut self, name: String, channel: BrokerChannel) -> Result<()> {
        let mut client = WatchServiceClient::new(channel.clone()).max_decoding_message_size(MAX_REPLY_BYTES);
        let opened = client.watch(v1::WatchRequest::default()).await;
        let mut events = opened.with_context(|| name.clone())?.into_inner();
        events.message().await.with_context(|| name.clone())?;
        self.open.push(OpenCall { name, end: tokio::spawn(end_of(events, None)) });
        self.channels.push(channel);
        Ok(())
    }

    /// Opens an agent's stream.
    ///
    /// # Errors
    /// When the broker refuses it.
    pub(super) async fn stream(&mut self, name: String, channel: BrokerChannel) -> Result<()> {
        let (sender, receiver) = mpsc::channel(1);
        let hello = Body::Hello(v1::Hello { instance: "copy".to_owned(), ..v1::Hello::default() });
        sender.send(v1::AgentMessage { body: Some(hello), ..v1::AgentMessage::default() }).await?;
        let mut client = AgentServiceClient::new(channel).max_decoding_message_size(MAX_REPLY_BYTES);
        let opened = client.connect(ReceiverStream::new(receiver)).await;
        let mut replies = opened.with_context(|| name.clone())?.into_inner();
        // The welcome.
        replies.message().await.with_context(|| name.clone())?;
        self.open.push(OpenCall { name, end: tokio::spawn(end_of(replies, Some(sender))) });
        Ok(())
    }

    /// Fails if a call has ended already.
    ///
    /// # Errors
    /// Names the call.
    pub(super) fn still_open(&self) -> Result<()> {
        let ended = self.open.iter().find(|call| call.end.is_finished());
        ensure!(ended.is_none(), "{} ended before the command", ended.map_or("", |call| call.name.as_str()));
        ensure!(!self.open.is_empty() && !self.channels.is_empty(), "there is no call to end");
        Ok(())
    }

    /// Waits for the ends of all calls; returns the time from `since` to the last one.
    ///
    /// # Errors
    /// When one ends for another reason than the revocation.
    pub(super) async fn all_end(&mut self, since: Instant) -> Result<Duration> {
        let mut longest = Duration::ZERO;
        for OpenCall { name, end } in &mut self.open {
            let Ok(ended) = tokio::time::timeout(GIVE_UP.saturating_sub(since.elapsed()), &mut *end).await else {
                end.abort();
                return Ok(GIVE_UP);
            };
            let (at, status) = ended?;
            if !is_revoked(&status) {
                bail!("{name} ended for another reason: {status}");
            }
            longest = longest.max(at.saturating_duration_since(since));
        }
        Ok(longest)
    }

    /// Calls every broker until each refuses; returns the time from `since` to the last first refusal.
    pub(super) async fn all_refused(&self, since: Instant) -> Duration {
        let refusals = self.channels.iter().map(|channel| refused(channel.clone(), since));
        join_all(refusals).await.into_iter().max().unwrap_or(GIVE_UP)
    }

    /// The channels for further calls.
    pub(super) fn for_calls(&self) -> Self {
        Self { open: Vec::new(), channels: self.channels.clone() }
    }
}

/// Waits for the end of a call. The sender keeps the agent's direction of a stream open.
async fn end_of<T>(mut messages: Streaming<T>, _sender: Option<mpsc::Sender<v1::AgentMessage>>) -> CallEnd {
    loop {
        match messages.message().await {
            Ok(Some(_)) => {}
            Ok(None) => return (Instant::now(), Status::unknown("it ended without an error")),
            Err(status) => return (Instant::now(), status),
        }
    }
}

async fn refused(channel: BrokerChannel, since: Instant) -> Duration {
    let mut client = FederationServiceClient::new(channel);
    while since.elapsed() < GIVE_UP {
        let answer = client.list_clusters(v1::ListClustersRequest::default()).await;
        if answer.is_err_and(|status| is_revoked(&status)) {
            return since.elapsed();
        }
        tokio::time::sleep(CALL_INTERVAL).await;
    }
    GIVE_UP
}

fn is_revoked(status: &Status) -> bool {
    comity_proto::error_detail(status).is_some_and(|detail| detail.code == REVOKED)
}
