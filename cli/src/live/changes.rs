//! Waits for changes of the state.

use std::time::Duration;

use comity_proto::v1;
use comity_proto::v1::watch_service_client::WatchServiceClient;
use comity_runtime::BrokerChannel;
use tokio_stream::StreamExt as _;
use tonic::Streaming;

/// Time between two reads without a stream.
const READ_INTERVAL: Duration = Duration::from_secs(2);
/// One command often changes several objects: their events arrive within this time.
const SETTLE: Duration = Duration::from_millis(100);

/// Where changes come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ChangeSource {
    /// The watch stream reports every change.
    Stream,
    /// The watch stream does not report every change: read again every two seconds.
    Poll,
}

/// Changes of the state.
pub(crate) struct Changes {
    channel: BrokerChannel,
    source: ChangeSource,
    events: Option<Streaming<v1::WatchEvent>>,
}

impl Changes {
    /// Makes no call yet.
    pub(crate) fn new(channel: BrokerChannel, source: ChangeSource) -> Self {
        Self { channel, source, events: None }
    }

    /// Waits until an object changes after `revision`. Without a stream, returns after two seconds.
    pub(crate) async fn after(&mut self, revision: u64) {
        if self.source == ChangeSource::Poll || !self.open(revision).await {
            return tokio::time::sleep(READ_INTERVAL).await;
        }
        while let Some(events) = &mut self.events {
            match events.next().await {
                Some(Ok(event)) if event.revision <= revision || is_synced(&event) => {}
                Some(Ok(_)) => return tokio::time::sleep(SETTLE).await,
                Some(Err(_)) | None => self.events = None,
            }
        }
        // The broker ended the stream: the caller reads again, and the next call opens another one.
        tokio::time::sleep(READ_INTERVAL).await;
    }

    /// Whether the stream is open.
    async fn open(&mut self, revision: u64) -> bool {
        if self.events.is_none() {
            let request = v1::WatchRequest { from_revision: revision, request: String::new() };
            let opened = WatchServiceClient::new(self.channel.clone()).watch(request).await;
            self.events = opened.ok().map(tonic::Response::into_inner);
        }
        self.events.is_some()
    }
}

fn is_synced(event: &v1::WatchEvent) -> bool {
    matches!(event.object, None | Some(v1::watch_event::Object::Synced(_)))
}
