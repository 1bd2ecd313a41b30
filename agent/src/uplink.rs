//! The one stream to the broker group: it carries the outbox and the offer up, and the desired state down.
//!
//! A stream that ends is reopened to the next broker, with backoff and jitter. After a renewal of the certificate, or
//! to get a fresh desired state, a new stream connects before the old one closes. No message is lost: unacknowledged
//! ones stay in the outbox, and the desired state is always sent whole. While the fence is closed there is no stream:
//! another replica may have one.

mod acks;
mod broker_stream;
mod offer;
mod session;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use comity_agent_model::desired::Update;
use comity_agent_model::nodes::Nodes;
use comity_proto::v1;
use comity_runtime::{Backoff, ClientTls, Entropy, KnownBrokers, ReadinessGuard, TlsIdentity};
use tokio::sync::{Notify, mpsc, watch};
use tokio_util::sync::CancellationToken;

use crate::metrics::Metrics;
use crate::reconcile::parts::Parts;

pub use offer::{AckOutcome, OfferState, Offered};

/// First and longest pause before a stream is opened again.
const RECONNECT: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(10));
/// Events of two sessions at most; each sends a handful.
const EVENTS: usize = 16;

/// Largest message from the broker: a desired state with as many envelopes as may wait.
pub const MAX_MESSAGE_BYTES: usize = 96 << 20;

/// Dependencies of the uplink.
pub struct Uplink {
    /// Parts of the agent that messages change or read.
    pub parts: Parts,
    /// Counters.
    pub metrics: Metrics,
    /// Brokers, in the order in which they are tried.
    pub brokers: KnownBrokers,
    /// TLS for connections to them.
    pub tls: ClientTls,
    /// The certificate now. A stream ends with the one that opened it.
    pub identity: watch::Receiver<TlsIdentity>,
    /// The cluster's nodes.
    pub nodes: watch::Receiver<Nodes>,
    /// Its datasets, and the bandwidth of its lines.
    pub data: watch::Receiver<Option<v1::DataSite>>,
    /// Where desired states go.
    pub desired: watch::Sender<Update>,
    /// Where the outage grace goes.
    pub outage_grace_ms: watch::Sender<u64>,
    /// Replaces the stream by a fresh one.
    pub resync: Arc<Notify>,
    /// Readiness: whether a stream is connected.
    pub readiness: ReadinessGuard,
}

/// State that all sessions share.
struct Shared {
    parts: Parts,
    metrics: Metrics,
    brokers: KnownBrokers,
    /// Tells the broker that streams are of one process.
    instance: String,
    tls: ClientTls,
    nodes: watch::Receiver<Nodes>,
    data: watch::Receiver<Option<v1::DataSite>>,
    desired: watch::Sender<Update>,
    outage_grace_ms: watch::Sender<u64>,
    offer: tokio::sync::Mutex<OfferState>,
    received: AtomicU64,
    /// BrokerStreams that were welcomed and are still connected.
    connected: AtomicU64,
}

impl Shared {
    fn set_live(&self) {
        let live = self.connected.load(Ordering::SeqCst) > 0;
        self.metrics.connected.set(i64::from(live));
        self.desired.send_if_modified(|update| std::mem::replace(&mut update.is_live, live) != live);
    }
}

/// Event of a session.
enum Event {
    /// Connected.
    Welcomed(u64),
    /// Ended.
    Ended(u64, session::SessionError),
}

struct Opened {
    number: u64,
    stop: CancellationToken,
}

/// The open streams.
struct BrokerStreams {
    /// Welcomed.
    current: Option<Opened>,
    /// Replaces the current one once it is welcomed.
    coming: Option<Opened>,
    backoff: Backoff,
    pause: Duration,
}

impl Default for BrokerStreams {
    fn default() -> Self {
        let backoff = Backoff::new(RECONNECT.0, RECONNECT.1);
        Self { current: None, coming: None, backoff, pause: Duration::ZERO }
    }
}

impl BrokerStreams {
    /// Whether the stream is the current one now.
    fn welcomed(&mut self, number: u64) -> bool {
        let is_coming = is_stream(self.coming.as_ref(), number);
        if is_coming {
            if let Some(old) = std::mem::replace(&mut self.current, self.coming.take()) {
                old.stop.cancel();
            }
            self.backoff.reset();
        }
        is_coming
    }

    /// Whether it was one of these streams; another one may be opened after the pause.
    fn ended(&mut self, number: u64, entropy: &dyn Entropy) -> bool {
        if is_stream(self.coming.as_ref(), number) {
            self.coming = None;
        } else if is_stream(self.current.as_ref(), number) {
            self.current = None;
        } else {
            return false;
        }
        self.pause = self.backoff.next_delay(entropy);
        true
    }

    /// Ends them; another one may be opened at once.
    fn close(&mut self) {
        for open in [self.current.take(), self.coming.take()].into_iter().flatten() {
            open.stop.cancel();
        }
        self.backoff.reset();
        self.pause = Duration::ZERO;
    }
}

fn is_stream(opened: Option<&Opened>, number: u64) -> bool {
    opened.is_some_and(|opened| opened.number == number)
}

impl Uplink {
    /// Runs until stopped.
    pub async fn run(self, stop: CancellationToken) {
        let Self {
            parts,
            metrics,
            brokers,
            tls,
            mut identity,
            nodes,
            data,
            desired,
            outage_grace_ms,
            resync,
            readiness,
        } = self;
        let (clock, fence) = (Arc::clone(&parts.clock), parts.fence.clone());
        let shared = Arc::new(Shared {
            instance: parts.entropy.unique_hex(),
            parts,
            metrics,
            brokers,
            tls,
            nodes,
            data,
            desired,
            outage_grace_ms,
            offer: tokio::sync::Mutex::new(OfferState::default()),
            received: AtomicU64::new(0),
            connected: AtomicU64::new(0),
        });
        let (events, mut inbox) = mpsc::channel(EVENTS);
        // Agents that start together spread over the brokers.
        let mut next = shared.parts.entropy.next_u64() % 1_024;
        let mut open = || {
            next += 1;
            let session_stop = stop.child_token();
            let first = usize::try_from(next % 1_024).unwrap_or(0);
            let session = session::run(
                Arc::clone(&shared),
                shared.brokers.endpoints().starting_at(first),
                next,
                session_stop.clone(),
                events.clone(),
            );
            tokio::spawn(session);
            Opened { number: next, stop: session_stop }
        };
        let mut streams = BrokerStreams { coming: Some(open()), ..BrokerStreams::default() };
        loop {
            if !fence.is_open() {
                streams.close();
                readiness.not_ready("another replica may be the active agent");
                tokio::select! {
                    () = stop.cancelled() => break,
                    () = fence.opened() => {}
                }
            }
            let BrokerStreams { current, coming, pause, .. } = &streams;
            let (has_current, has_coming) = (current.is_some(), coming.is_some());
            tokio::select! {
                () = stop.cancelled() => break,
                () = fence.shut() => {}
                () = resync.notified(), if has_current && !has_coming => streams.coming = Some(open()),
                Ok(()) = identity.changed(), if has_current && !has_coming => streams.coming = Some(open()),
                () = clock.sleep(*pause), if !has_current && !has_coming => streams.coming = Some(open()),
                Some(event) = inbox.recv() => match event {
                    Event::Welcomed(number) => if streams.welcomed(number) {
                        readiness.ready();
                    },
                    Event::Ended(number, error) => if streams.ended(number, shared.parts.entropy.as_ref()) {
                        if streams.current.is_none() {
                            readiness.not_ready(format!("no stream to a broker: {error}"));
                            if error.is_revoked() {
                                shared.parts.revoked.send_replace(true);
                            }
                        }
                        tracing::warn!(%error, again_in = ?streams.pause, "the stream to the broker ended");
                    },
                },
            }
        }
        readiness.not_ready("stopping");
    }
}
