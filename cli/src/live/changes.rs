//! Waits for changes of the state.

use std::time::Duration;

use comity_proto::v1;
use comity_proto::v1::watch_service_client::WatchServiceClient;
use comity_runtime::{Backoff, BrokerChannel, SystemEntropy};
use tokio_stream::StreamExt as _;
use tonic::Streaming;

use crate::failure::Failure;

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

/// Longest time between two reads that fail.
const READ_RETRY_CAP: Duration = Duration::from_secs(30);

/// Changes of the state.
pub(crate) struct Changes {
    channel: BrokerChannel,
    source: ChangeSource,
    events: Option<Streaming<v1::WatchEvent>>,
    /// Grows with each read that fails after another.
    failures: Backoff,
    /// The wait after a read that failed: what it should have shown may be no change by now.
    pause: Option<Duration>,
}

impl Changes {
    /// Makes no call yet.
    pub(crate) fn new(channel: BrokerChannel, source: ChangeSource) -> Self {
        Self { channel, source, events: None, failures: Backoff::new(READ_INTERVAL, READ_RETRY_CAP), pause: None }
    }

    /// Takes note of a read: after one that failed, the next wait is for a while and not for a change. The inner result
    /// is the read's.
    ///
    /// # Errors
    /// A [`Failure`] that another read cannot help.
    pub(crate) fn judge<T>(&mut self, read: Result<T, Failure>) -> Result<Result<T, Failure>, Failure> {
        match read {
            Ok(value) => {
                self.failures.reset();
                Ok(Ok(value))
            }
            Err(failure) if failure.is_passing() => {
                self.pause = Some(READ_INTERVAL / 2 + self.failures.next_delay(&SystemEntropy));
                Ok(Err(failure))
            }
            Err(failure) => Err(failure),
        }
    }

    /// Waits until an object changes after `revision`. Without a stream, returns after two seconds.
    pub(crate) async fn after(&mut self, revision: u64) {
        if let Some(pause) = self.pause {
            tokio::time::sleep(pause).await;
            self.pause = None;
            return;
        }
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

#[cfg(test)]
mod tests {
    use super::*;

    fn changes() -> Changes {
        comity_runtime::install_crypto_provider();
        let domain = comity_runtime::TrustDomain::new("t.test").expect("good");
        let authority = comity_runtime::CertificateAuthority::create(domain, std::time::SystemTime::now());
        let tls = comity_runtime::ClientTls::anonymous(authority.expect("made").roots().clone());
        let brokers: comity_runtime::BrokerEndpoints = "127.0.0.1:1".parse().expect("good");
        Changes::new(comity_runtime::connect(&brokers, &tls), ChangeSource::Stream)
    }

    #[tokio::test(start_paused = true)]
    async fn a_list_that_reached_a_limit_is_read_again_after_growing_waits() {
        let mut changes = changes();
        let limit = || Failure::refused("limit-reached", "this caller has 8 watches");
        for failures in 1..=6 {
            assert_eq!(changes.judge::<()>(Err(limit())), Ok(Err(limit())));
            assert_eq!(changes.failures.attempts(), failures);
            let began = tokio::time::Instant::now();
            changes.after(0).await;
            assert!((READ_INTERVAL / 2..=READ_RETRY_CAP + READ_INTERVAL).contains(&began.elapsed()));
        }
        assert_eq!(changes.judge(Ok(1)), Ok(Ok(1)));
        assert_eq!((changes.failures.attempts(), changes.pause), (0, None));
        let revoked = Failure::refused("revoked", "the certificate is void");
        assert_eq!(changes.judge::<()>(Err(revoked.clone())), Err(revoked));
    }
}
