//! One stream, from hello to its end.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use comity_agent_model::desired::Update;
use comity_agent_model::status_reasons::{reasons, revocation};
use comity_agent_state::store::StoreError;
use comity_audit::TreeHead;
use comity_proto::v1;
use comity_proto::v1::agent_message::Body;
use comity_proto::v1::broker_message::Body as FromBroker;
use comity_runtime::{BrokerEndpoints, tls};
use tokio::sync::mpsc;
use tokio_stream::StreamExt as _;
use tokio_stream::wrappers::ReceiverStream;
use tokio_util::sync::CancellationToken;

use super::broker_stream::{self, BROKER_MESSAGE_LIMIT};
use super::{AckOutcome, Event, Offered, Shared};
use crate::keys::audit_anchor;
use crate::reconcile::parts::Parts;
use crate::uplink::acks::{self, AckWait};

/// Messages between this loop and the transport; the transport's own window is behind it.
const SENDING: usize = 32;
/// Messages sent and not acknowledged.
const UNACKNOWLEDGED: usize = 256;
/// A broker that accepts a stream welcomes within this time.
const WELCOME_WITHIN: Duration = Duration::from_secs(10);
/// Longest outage grace that a broker may ask for, in milliseconds: 30 days. It keeps leases past their end.
const MAX_OUTAGE_GRACE_MS: u64 = 30 * 24 * 3_600 * 1_000;
/// Code of a refused offer that is not the newest of this cluster.
const STALE_GENERATION: &str = "stale-generation";
/// Bounds of the heartbeat that a broker may ask for.
const HEARTBEAT: (u64, u64) = (100, 60_000);

/// Why a stream ended.
#[derive(Debug, thiserror::Error)]
pub(super) enum SessionError {
    /// The broker or the network ended it.
    #[error("{}", reasons(.0))]
    Status(#[from] tonic::Status),
    /// The broker closed it.
    #[error("the broker closed the stream")]
    Closed,
    /// No welcome.
    #[error("no welcome within {}s", WELCOME_WITHIN.as_secs())]
    NoWelcome,
    /// It acknowledged nothing for long.
    #[error("the broker acknowledges no reports")]
    Silent,
    /// The store failed.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// Another offer of this cluster has a later generation.
    #[error(
        "the broker has a later offer of this cluster than this agent made: the offer is made again; if it lasts, another \
         agent has its state, or somebody its certificate"
    )]
    OtherOffer,
    /// Another replica may be the active agent.
    #[error("this replica may no longer be the active agent")]
    Fenced,
    /// It was replaced, or the agent stops.
    #[error("the stream was stopped")]
    Stopped,
}

impl SessionError {
    /// Whether the broker says that this cluster takes no part any more.
    pub(super) fn is_revoked(&self) -> bool {
        matches!(self, Self::Status(status) if revocation(status).is_some())
    }
}

pub(super) async fn run(
    shared: Arc<Shared>,
    brokers: BrokerEndpoints,
    number: u64,
    stop: CancellationToken,
    events: mpsc::Sender<Event>,
) {
    let mut session = Session {
        shared: &shared,
        number,
        sent: 0,
        anchor: None,
        welcomed: false,
        blocked: false,
        heartbeat: Duration::from_secs(5),
    };
    let error = tokio::select! {
        ended = shared.parts.fence.while_open(session.stream(&brokers, &events)) => match ended {
            Some(ended) => ended.err().unwrap_or(SessionError::Closed),
            None => SessionError::Fenced,
        },
        () = stop.cancelled() => SessionError::Stopped,
    };
    if session.welcomed {
        shared.connected.fetch_sub(1, Ordering::SeqCst);
        shared.set_live();
    }
    // The uplink may have ended.
    let _ = events.send(Event::Ended(number, error)).await;
}

struct Session<'a> {
    shared: &'a Arc<Shared>,
    number: u64,
    /// Highest message id sent on this stream.
    sent: u64,
    /// Anchor of the audit log when the stream was opened.
    anchor: Option<TreeHead>,
    welcomed: bool,
    /// A message waits for room in the transport.
    blocked: bool,
    heartbeat: Duration,
}

impl Session<'_> {
    async fn stream(&mut self, brokers: &BrokerEndpoints, events: &mpsc::Sender<Event>) -> Result<(), SessionError> {
        let channel = tls::connect(brokers, &self.shared.tls);
        let (sender, receiver) = mpsc::channel(SENDING);
        self.anchor = audit_anchor::anchor(&self.shared.parts.store)?;
        let hello = v1::Hello {
            agent_version: env!("CARGO_PKG_VERSION").to_owned(),
            revision: self.revision(),
            instance: self.shared.instance.clone(),
            audit_size: self.anchor.map_or(0, |anchor| anchor.size),
        };
        let _ = sender.try_send(message(0, Body::Hello(hello)));
        let fence = self.shared.parts.fence.clone();
        // The transport takes messages by itself, also after a pause of this process.
        let outgoing = ReceiverStream::new(receiver).take_while(move |_| fence.is_open());
        let opening = broker_stream::open(channel, &BROKER_MESSAGE_LIMIT, outgoing);
        let mut incoming =
            tokio::time::timeout(WELCOME_WITHIN, opening).await.map_err(|_| SessionError::NoWelcome)??;
        let mut records = self.shared.parts.store.subscribe();
        let mut nodes = self.shared.nodes.clone();
        let mut service = self.shared.parts.deliveries.node_service.clone();
        let mut policies = self.shared.parts.deliveries.guest_policies.clone();
        let mut data = self.shared.data.clone();
        let (mut last_sent, mut acks) = (self.shared.parts.clock.elapsed(), AckWait::default());
        let deadline = self.shared.parts.clock.sleep(WELCOME_WITHIN);
        tokio::pin!(deadline);
        loop {
            // Heartbeats bring this loop round.
            if acks.is_over(self.oldest_unacknowledged(), self.shared.parts.clock.elapsed()) {
                return Err(SessionError::Silent);
            }
            let since = self.shared.parts.clock.elapsed().saturating_sub(last_sent);
            let beat = self.shared.parts.clock.sleep(self.heartbeat.saturating_sub(since));
            tokio::select! {
                () = &mut deadline, if !self.welcomed => return Err(SessionError::NoWelcome),
                received = incoming.message() => {
                    let received = received?.ok_or(SessionError::Closed)?;
                    self.receive(received, events).await?;
                }
                Ok(()) = records.changed(), if self.welcomed => {}
                Ok(()) = nodes.changed(), if self.welcomed => {}
                Ok(()) = service.changed(), if self.welcomed => {}
                Ok(()) = policies.changed(), if self.welcomed => {}
                Ok(()) = data.changed(), if self.welcomed => {}
                () = beat, if self.welcomed => {
                    // A full channel means that another message is on its way.
                    let _ = sender.try_send(message(0, Body::Heartbeat(v1::Heartbeat {})));
                    last_sent = self.shared.parts.clock.elapsed();
                }
                room = sender.reserve(), if self.blocked => drop(room.map_err(|_| SessionError::Closed)?),
            }
            if self.welcomed && self.send(&sender).await? {
                last_sent = self.shared.parts.clock.elapsed();
            }
        }
    }

    fn revision(&self) -> u64 {
        self.shared.desired.borrow().state.as_ref().map_or(0, |state| state.revision)
    }

    /// The oldest report that this stream carried and that is not acknowledged.
    fn oldest_unacknowledged(&self) -> Option<u64> {
        self.shared.parts.store.records().outbox.range(..=self.sent).next().map(|(id, _)| *id)
    }

    /// Sends waiting messages while there is room; returns whether any was sent. Never waits for room: the broker may
    /// be waiting for this side to read.
    async fn send(&mut self, sender: &mpsc::Sender<v1::AgentMessage>) -> Result<bool, SessionError> {
        let before = self.sent;
        self.blocked = false;
        let records = self.shared.parts.store.records();
        let waiting = records.outbox.range(self.sent + 1..);
        let room = UNACKNOWLEDGED.saturating_sub(records.outbox.range(..=self.sent).count());
        for (id, outgoing) in waiting.take(room) {
            if sender.try_send(outgoing.message.clone()).is_err() {
                self.blocked = true;
                return Ok(self.sent > before);
            }
            self.sent = *id;
        }
        let nodes = self.shared.nodes.borrow().clone();
        let Some(nodes) = nodes else { return Ok(self.sent > before) };
        let deliveries = self.shared.parts.deliveries.offered();
        let offered = Offered::new(nodes, deliveries, self.shared.data.borrow().clone());
        let mut state = self.shared.offer.lock().await;
        if !state.is_due(&offered) {
            return Ok(self.sent > before);
        }
        if sender.capacity() == 0 {
            self.blocked = true;
            return Ok(self.sent > before);
        }
        let id = self.shared.parts.store.take_message_id().await?;
        let offer = state.next(&self.shared.parts.member.cluster, &offered, id);
        drop(state);
        sender.try_send(message(id, Body::Offer(offer))).map_err(|_| SessionError::Closed)?;
        Ok(true)
    }

    async fn receive(&mut self, received: v1::BrokerMessage, events: &mpsc::Sender<Event>) -> Result<(), SessionError> {
        match received.body {
            Some(FromBroker::Welcome(welcome)) => self.welcome(&welcome, events).await,
            Some(FromBroker::Ack(ack)) => self.settle(ack).await?,
            Some(FromBroker::Desired(state)) => {
                let number = self.shared.received.fetch_add(1, Ordering::SeqCst) + 1;
                let is_live = self.welcomed;
                self.shared.desired.send_replace(Update { state: Some(Arc::new(state.into())), is_live, number });
            }
            Some(FromBroker::Brokers(list)) => match BrokerEndpoints::new(&list.addresses) {
                Ok(all) => self.shared.brokers.learn(&all),
                Err(error) => tracing::debug!(%error, "a list of brokers is not used"),
            },
            // A newer broker may send messages that this agent does not know.
            None => tracing::debug!("a message of an unknown kind"),
        }
        Ok(())
    }

    async fn welcome(&mut self, welcome: &v1::Welcome, events: &mpsc::Sender<Event>) {
        self.heartbeat = Duration::from_millis(welcome.heartbeat_interval_ms.clamp(HEARTBEAT.0, HEARTBEAT.1));
        self.shared.offer.lock().await.welcomed(welcome.offer_generation);
        if let Some(outage_grace_ms) = outage_grace(welcome) {
            self.shared.outage_grace_ms.send_replace(outage_grace_ms);
            let kept = self.shared.parts.store.keep_soon("outage-grace-ms", outage_grace_ms.to_be_bytes().to_vec());
            if let Err(error) = kept.await {
                tracing::warn!(%error, "cannot keep the outage grace");
            }
        }
        if let Err(error) = self.follow_audit_log(welcome).await {
            tracing::warn!(%error, "cannot keep the anchor of the audit log");
        }
        if !self.welcomed {
            self.welcomed = true;
            // Who acknowledged an end before may have been another broker than this one: what it still wants ended is
            // reported to it, too.
            self.shared.parts.settling.forget(acks::is_end);
            self.shared.parts.revoked.send_replace(false);
            self.shared.connected.fetch_add(1, Ordering::SeqCst);
            self.shared.set_live();
            self.shared.metrics.streams.inc();
            tracing::info!(broker = welcome.broker, "connected to the broker group");
            // The uplink may have ended.
            let _ = events.send(Event::Welcomed(self.number)).await;
        }
    }

    /// Takes the head of the audit log as the new anchor, if the broker proves that it continues the old one.
    async fn follow_audit_log(&self, welcome: &v1::Welcome) -> Result<(), StoreError> {
        let Some(proof) = &welcome.audit else { return Ok(()) };
        let Parts { store, failures, .. } = &self.shared.parts;
        match audit_anchor::judge(self.anchor.as_ref(), proof) {
            Ok(head) => {
                failures.set_refused_audit_head(None);
                audit_anchor::advance(store, self.anchor.as_ref(), &head).await
            }
            Err(reason) => {
                let reason = format!("broker {}: {reason}", welcome.broker);
                self.shared.metrics.refused_audit_heads.inc();
                failures.set_refused_audit_head(Some(&reason));
                tracing::error!(%reason, "a broker shows another history of the audit log than before; the anchor stays");
                audit_anchor::keep_evidence(store, self.anchor.as_ref(), (welcome.broker, proof), &reason).await
            }
        }
    }

    async fn settle(&self, ack: v1::Ack) -> Result<(), SessionError> {
        let Parts { store, settling, failures, clock, .. } = &self.shared.parts;
        if let Some(error) = &ack.error {
            self.shared.metrics.refused.with_label_values(&[error.code.as_str()]).inc();
            tracing::warn!(
                message_id = ack.message_id,
                code = error.code,
                reason = error.reason,
                field = error.field,
                "the broker refused a message"
            );
        }
        let outcome = if ack.error.is_some() { AckOutcome::Refused } else { AckOutcome::Committed };
        if self.shared.offer.lock().await.settle(ack.message_id, outcome) {
            let refusal = ack.error.as_ref().map(|error| format!("{} ({})", error.reason, error.code));
            failures.set_refused_offer(refusal.as_deref());
            // The next welcome says from where to go on.
            let is_stale = ack.error.is_some_and(|error| error.code == STALE_GENERATION);
            return if is_stale { Err(SessionError::OtherOffer) } else { Ok(()) };
        }
        // Marked before it leaves the outbox, so that no plan in between misses both.
        let key = store.records().outbox.get(&ack.message_id).map(|outgoing| outgoing.key.clone());
        if let Some(key) = key {
            if let Some(v1::ErrorDetail { code, reason, .. }) = &ack.error {
                failures.note_refused(&format!("{key:?}: {reason} ({code})"));
            }
            let voided = acks::voided_by(&key);
            settling.forget(|known| Some(known) == voided.as_ref());
            let until = clock.elapsed() + acks::known_for(&key, &ack);
            settling.note(key, until);
            store.update(move |change| acks::settle(change, &ack)).await?;
        }
        Ok(())
    }
}

fn message(message_id: u64, body: Body) -> v1::AgentMessage {
    let traceparent = comity_runtime::telemetry::current_traceparent().unwrap_or_default();
    v1::AgentMessage { message_id, body: Some(body), traceparent }
}

/// The outage grace that the agent takes over from a broker, in milliseconds; `None`: it keeps the one that it has.
fn outage_grace(welcome: &v1::Welcome) -> Option<u64> {
    Some(welcome.outage_grace_ms.min(MAX_OUTAGE_GRACE_MS)).filter(|grace_ms| *grace_ms > 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn broker_grants_an_endless_outage_grace() {
        let taken = |outage_grace_ms| outage_grace(&v1::Welcome { outage_grace_ms, ..v1::Welcome::default() });
        assert_eq!(taken(0), None);
        for honest in [1, 24 * 3_600 * 1_000, MAX_OUTAGE_GRACE_MS] {
            assert_eq!(taken(honest), Some(honest));
        }
        for endless in [MAX_OUTAGE_GRACE_MS + 1, u64::MAX] {
            assert_eq!(taken(endless), Some(30 * 24 * 3_600 * 1_000), "{endless}");
        }
    }
}
