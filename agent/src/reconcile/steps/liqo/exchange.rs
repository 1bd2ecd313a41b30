//! One side's exchange with the other Liqo in one epoch: what its steps share.

use std::sync::Arc;
use std::time::Duration;

use comity_agent_delivery::VirtualNodes;
use comity_agent_liqo::LiqoPeer;
use comity_agent_liqo::messages::Message;
use comity_agent_model::delivery_error::DeliveryError;
use comity_agent_model::envelope::Envelope;
use comity_agent_model::node_service::NodeService;
use comity_agent_state::record::{
    LiqoFailure, LiqoRecord, NetworkRecord, PeeringRecord, RemoteKeys, ReportKey, SealedMessage, SecretBlob,
};
use comity_agent_state::store::Store;
use comity_proto::v1;
use comity_proto::v1::agent_message::Body;
use comity_runtime::Clock;
use comity_types::{PeeringId, Side};

use crate::reconcile::envelope::note_opened;
use crate::reconcile::parts::{Member, Parts, Subject};
use crate::reconcile::steps::epoch;
use crate::reconcile::steps::error::StepError;
use crate::reconcile::steps::kind::Kind;

/// Time limit of a step that waits for Liqo: a little more than the patience with Liqo's controllers.
pub(super) const DEADLINE: Duration = Duration::from_secs(90);
/// How long the broker keeps an unread message; afterwards it is sealed again if still needed.
const ENVELOPE_LIFE_MS: u64 = 3_600_000;

/// Key for mutual exclusion: beside the tunnel's own steps, so that neither waits for the other.
pub(super) fn object(peering: PeeringId) -> String {
    format!("{peering}/liqo")
}

/// Decodes a stored message. One that cannot be decoded is dropped: the other side must send it again.
pub(super) fn read<M: Message>(kept: &mut Option<SecretBlob>) -> Result<M, DeliveryError> {
    let missing = || DeliveryError::temporary(format!("read the {} message", M::STEP), "it is not there any more");
    let message = M::decode(kept.as_ref().ok_or_else(missing)?.expose());
    if message.is_err() {
        *kept = None;
    }
    message
}

/// A message to the other side: its step and content.
pub(crate) type Sent = (&'static str, Vec<u8>);

/// A message of the other side in one epoch.
pub(crate) struct Received<'a> {
    pub(super) peering: PeeringId,
    pub(super) epoch: u32,
    /// Its envelope, if it has just arrived; otherwise the message was opened before.
    pub(super) envelope: Option<&'a Envelope>,
}

/// A step that works on a message of the other side.
pub(crate) trait MessageStep {
    const NAME: &'static str;

    fn received(&self) -> Received<'_>;

    /// Stores the opened message.
    fn store(record: &mut LiqoRecord, opened: SecretBlob);

    /// Works on the stored message.
    async fn work(exchange: &mut Exchange<'_>) -> Result<Option<Sent>, StepError>;
}

impl<S: MessageStep> Kind for S {
    const NAME: &'static str = S::NAME;

    fn object(&self) -> String {
        object(self.received().peering)
    }

    fn deadline(&self) -> Duration {
        DEADLINE
    }

    async fn run(&self, parts: &Parts) -> Result<(), StepError> {
        let Received { peering, epoch, envelope } = self.received();
        let mut exchange = Exchange::begin(parts, peering, epoch)?;
        if let Some(envelope) = envelope {
            let Some(opened) = exchange.open(envelope).await? else { return Ok(()) };
            S::store(&mut exchange.record, opened);
        }
        let done = S::work(&mut exchange).await;
        exchange.finish(envelope, done).await
    }
}

/// One side's exchange in one epoch.
pub(crate) struct Exchange<'a> {
    pub(super) member: &'a Member,
    pub(super) store: &'a Store,
    pub(super) clock: &'a dyn Clock,
    pub(super) nodes: &'a VirtualNodes,
    pub(super) service: NodeService,
    pub(super) keys: PeeringRecord,
    pub(super) remote: RemoteKeys,
    pub(super) record: LiqoRecord,
}

impl<'a> Exchange<'a> {
    pub(super) fn begin(parts: &'a Parts, peering: PeeringId, epoch: u32) -> Result<Self, StepError> {
        let Parts { member, store, deliveries, clock, .. } = parts;
        let keys = epoch::record(store, peering, epoch)?;
        let remote = keys.remote.clone().ok_or(StepError::Gone("the other side's keys"))?;
        let own = member.network.clone().unwrap_or_default();
        let record = match store.records().liqo.get(&peering).map(Arc::as_ref) {
            Some(record) => record.clone(),
            None => {
                let liqo_id = remote.network.liqo_cluster_id.clone();
                let peer = LiqoPeer { peering: peering.to_string(), cluster: remote.cluster.clone(), liqo_id };
                let network = own.liqo_network.then(NetworkRecord::default);
                LiqoRecord { network, ..LiqoRecord::new(peering, keys.side, &peer, &own.liqo_cluster_id) }
            }
        };
        let (nodes, service) = (deliveries.virtual_nodes()?, deliveries.node_service.borrow().clone());
        Ok(Self { member, store, clock: clock.as_ref(), nodes, service, keys, remote, record })
    }

    /// Opens an envelope; `None` if that failed and was reported.
    pub(super) async fn open(&self, envelope: &Envelope) -> Result<Option<SecretBlob>, StepError> {
        match self.member.open(envelope, &self.keys, &self.remote) {
            Ok(opened) => Ok(Some(SecretBlob::new(opened.to_vec()))),
            Err(error) => {
                epoch::fail_envelope(self.store, &envelope.key, &error.to_string()).await?;
                Ok(None)
            }
        }
    }

    /// Stores the result and sends the next message. A temporary error is returned, and the envelope tried again; a
    /// permanent one is stored, so that leases can be refused.
    pub(super) async fn finish(
        mut self,
        opened: Option<&Envelope>,
        done: Result<Option<Sent>, StepError>,
    ) -> Result<(), StepError> {
        let sealed = match done {
            Ok(sent) => {
                self.record.failed = None;
                sent.map(|(step, content)| self.seal_next(step, &content)).transpose()?
            }
            Err(StepError::Delivery(DeliveryError::Permanent { code, message })) => {
                self.fail(code, &message);
                None
            }
            Err(error) => return Err(error),
        };
        self.keep(opened, sealed).await
    }

    fn seal_next(&mut self, step: &str, content: &[u8]) -> Result<v1::Envelope, StepError> {
        self.record.last_sequence += 1;
        let (envelope, sealed) = self.seal(step, self.record.last_sequence, content)?;
        self.record.sealed = Some(sealed);
        Ok(envelope)
    }

    pub(super) fn seal(
        &self,
        step: &str,
        sequence: u64,
        content: &[u8],
    ) -> Result<(v1::Envelope, SealedMessage), StepError> {
        let expires_at_ms = self.clock.unix_ms().saturating_add(ENVELOPE_LIFE_MS);
        let sealed = SealedMessage { epoch: self.keys.epoch, expires_at_ms, refused: false };
        let subject = Subject { keys: &self.keys, remote: &self.remote, lease: None, step, sequence };
        let envelope = self.member.seal(subject, content);
        let envelope = envelope
            .map_err(|error| DeliveryError::temporary(format!("seal the {step} message"), error.to_string()))?;
        Ok((v1::Envelope { expires_at_ms, ..envelope }, sealed))
    }

    pub(super) fn note_failure(&mut self, code: &str, message: &str) {
        tracing::warn!(peering = %self.keys.peering, code, message, "the exchange of the two Liqos cannot go on");
        let message = epoch::shortened(&format!("{code}: {message}"));
        self.record.failed = Some(LiqoFailure { message, at_ms: self.clock.unix_ms() });
    }

    fn fail(&mut self, code: &str, message: &str) {
        self.note_failure(code, message);
        if self.record.side == Side::Donor && self.record.request.is_none() {
            // The origin must answer again.
            self.record.sealed = None;
        }
    }

    async fn keep(self, opened: Option<&Envelope>, sealed: Option<v1::Envelope>) -> Result<(), StepError> {
        let (record, opened) = (self.record, opened.map(|envelope| envelope.key.clone()));
        let update = self.store.update(move |change| {
            let peering = record.peering;
            change.put_liqo(record);
            if let Some(key) = &opened {
                note_opened(change, key);
            }
            if let Some(envelope) = sealed {
                change.send(ReportKey::Liqo(peering), Body::Envelope(envelope));
            }
        });
        Ok(update.await?)
    }
}
