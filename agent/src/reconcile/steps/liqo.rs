//! Steps `liqo-challenge`, `liqo-admit`, `liqo-answer`, `liqo-identity` and `liqo-remove`: exchange the keys of the two
//! Liqos once per peering, so that the origin's Liqo may call the donor's API server. `liqo-mint` issues tokens
//! instead.

mod network;

use std::sync::Arc;

use comity_agent_delivery::VirtualNodes;
use comity_agent_liqo::{Challenge, IdentityParams, LiqoPeer, TenantRequest, messages::Message};
use comity_agent_model::delivery_error::DeliveryError;
use comity_agent_model::side::Side;
use comity_agent_state::record::{
    LiqoFailure, LiqoRecord, MintedToken, NetworkRecord, PeeringRecord, RemoteKeys, ReportKey, SealedMessage,
    SecretBlob,
};
use comity_proto::v1;
use comity_proto::v1::agent_message::Body;

use super::{Context, StepError, authenticate, note_opened, peering_report};
use crate::keys::seal::{self, Binding};

pub(super) use network::take as take_network;

/// How long the broker keeps an unread message; afterwards it is sealed again if still needed.
const ENVELOPE_LIFE_MS: u64 = 3_600_000;

/// One turn of the exchange.
#[derive(Clone, Copy)]
pub(super) enum Turn {
    /// The donor makes a challenge.
    Challenge,
    /// The origin signs it.
    Answer,
    /// The donor makes the origin its tenant.
    Admit,
    /// The donor makes a token for the origin.
    Mint,
    /// The origin makes its identity.
    Identity,
}

/// Takes a turn; `envelope` is the other side's message if it has just arrived.
pub(super) async fn take(
    context: &Context,
    turn: Turn,
    peering: &str,
    epoch: u32,
    envelope: Option<&v1::Envelope>,
) -> Result<(), StepError> {
    let mut exchange = Exchange::begin(context, peering, epoch)?;
    if let Some(envelope) = envelope {
        let Some(opened) = exchange.open(context, envelope).await? else { return Ok(()) };
        exchange.receive(turn, opened);
    }
    let done = match turn {
        Turn::Challenge => exchange.challenge().await,
        Turn::Answer => exchange.answer().await,
        Turn::Admit => exchange.admit().await,
        Turn::Mint => exchange.mint(context).await,
        Turn::Identity => exchange.identity().await,
    };
    exchange.finish(context, envelope, done).await
}

pub(super) async fn remove(context: &Context, peering: &str) -> Result<(), StepError> {
    let records = context.store.records();
    let Some(record) = records.liqo.get(peering) else { return Ok(()) };
    let nodes = virtual_nodes(context)?;
    if record.network.is_some() {
        leave_network(context, record).await?;
        // The network of two clusters may go on with another peering between them.
        if context.store.records().network_carrier(&record.liqo_id).is_none() {
            nodes.network.remove(&record.peer()).await?;
        }
    }
    match record.side {
        Side::Donor => nodes.donor.remove_tenant(&record.peer()).await?,
        Side::Origin => nodes.origin.remove_identity(&record.peer()).await?,
    }
    let peering = peering.to_owned();
    Ok(context.store.update(move |change| change.drop_liqo(&peering)).await?)
}

/// Stops the upkeep of the network for this peering.
async fn leave_network(context: &Context, record: &LiqoRecord) -> Result<(), StepError> {
    let mut record = record.clone();
    if let Some(network) = &mut record.network {
        network.leaving = true;
    }
    Ok(context.store.update(move |change| change.put_liqo(record)).await?)
}

/// Both sides of virtual nodes; a temporary error without Liqo.
pub(super) fn virtual_nodes(context: &Context) -> Result<VirtualNodes, StepError> {
    let missing = || {
        let reason = "this agent does not use Liqo now; set liqo.enabled until nothing of it is left";
        StepError::Delivery(DeliveryError::temporary("serve a virtual node", reason))
    };
    context.virtual_nodes.clone().ok_or_else(missing)
}

/// Decodes a stored message. One that cannot be decoded is dropped: the other side must send it again.
fn read<M: Message>(kept: &mut Option<SecretBlob>) -> Result<M, DeliveryError> {
    let missing = || DeliveryError::temporary(format!("read the {} message", M::STEP), "it is not there any more");
    let message = M::decode(kept.as_ref().ok_or_else(missing)?.expose());
    if message.is_err() {
        *kept = None;
    }
    message
}

/// A message to the other side: its step and content.
type Sent = (&'static str, Vec<u8>);

/// One side's exchange in one epoch.
struct Exchange {
    nodes: VirtualNodes,
    keys: PeeringRecord,
    remote: RemoteKeys,
    record: LiqoRecord,
}

impl Exchange {
    fn begin(context: &Context, peering: &str, epoch: u32) -> Result<Self, StepError> {
        let keys = authenticate::record(context, peering, epoch)?;
        let remote = keys.remote.clone().ok_or(StepError::Gone("the other side's keys"))?;
        let own = context.network.clone().unwrap_or_default();
        let record = match context.store.records().liqo.get(peering).map(Arc::as_ref) {
            Some(record) => record.clone(),
            None => {
                let liqo_id = remote.network.liqo_cluster_id.clone();
                let peer = LiqoPeer { peering: peering.to_owned(), cluster: remote.cluster.clone(), liqo_id };
                let network = own.liqo_network.then(NetworkRecord::default);
                LiqoRecord { network, ..LiqoRecord::new(keys.side, &peer, &own.liqo_cluster_id) }
            }
        };
        Ok(Self { nodes: virtual_nodes(context)?, keys, remote, record })
    }

    /// Stores a message, and resets what an earlier one led to.
    fn receive(&mut self, turn: Turn, message: SecretBlob) {
        let record = &mut self.record;
        match turn {
            // They begin the exchange: no message comes before them.
            Turn::Challenge | Turn::Mint => {}
            Turn::Answer => (record.challenge, record.request) = (Some(message), None),
            Turn::Admit => (record.request, record.done) = (Some(message), false),
            Turn::Identity => (record.identity, record.done) = (Some(message), false),
        }
    }

    async fn challenge(&mut self) -> Result<Option<Sent>, StepError> {
        let challenge = self.nodes.donor.challenge(&self.record.peer()).await?.encode();
        self.record.challenge = Some(SecretBlob::new(challenge.clone()));
        Ok(Some((Challenge::STEP, challenge)))
    }

    async fn admit(&mut self) -> Result<Option<Sent>, StepError> {
        if !self.record.done {
            let request = read::<TenantRequest>(&mut self.record.request)?;
            let identity = self.nodes.donor.admit_tenant(&self.record.peer(), &request).await?;
            self.record.identity = Some(SecretBlob::new(identity.encode()));
            self.record.done = true;
        }
        let identity = self.record.identity.as_ref().ok_or(StepError::Gone("the identity"))?;
        Ok(Some((IdentityParams::STEP, identity.expose().to_vec())))
    }

    /// The token is not stored: a lost one is replaced.
    async fn mint(&mut self, context: &Context) -> Result<Option<Sent>, StepError> {
        let rotation_ms = context.node_service.borrow().authentication.rotation_ms;
        let (peer, first) = (self.record.peer(), self.record.minted.is_none());
        let minted = self.nodes.donor.mint_token(&peer, first, rotation_ms).await?;
        let at_ms = context.clock.unix_ms();
        // The API server may give a shorter life than was asked for.
        let life_ms = minted.expires_at_ms.saturating_sub(at_ms);
        self.record.minted = Some(MintedToken { at_ms, next_ms: at_ms + rotation_ms.min(life_ms / 3 * 2) });
        self.record.done = true;
        Ok(Some((IdentityParams::STEP, minted.params.encode())))
    }

    async fn answer(&mut self) -> Result<Option<Sent>, StepError> {
        if self.record.request.is_none() {
            let challenge = read::<Challenge>(&mut self.record.challenge)?;
            let request = self.nodes.origin.answer(&self.record.peer(), &challenge).await?;
            self.record.request = Some(SecretBlob::new(request.encode()));
        }
        let request = self.record.request.as_ref().ok_or(StepError::Gone("the request"))?;
        Ok(Some((TenantRequest::STEP, request.expose().to_vec())))
    }

    async fn identity(&mut self) -> Result<Option<Sent>, StepError> {
        let params = read::<IdentityParams>(&mut self.record.identity)?;
        let api_server = self.remote.network.api_server.as_str();
        self.nodes.origin.accept_identity(&self.record.peer(), api_server, &params).await?;
        self.record.done = true;
        Ok(None)
    }

    /// Opens an envelope; `None` if that failed and was reported.
    async fn open(&self, context: &Context, envelope: &v1::Envelope) -> Result<Option<SecretBlob>, StepError> {
        match seal::open(&context.federation, envelope, &self.keys.hpke_secret, &self.remote.identity_key) {
            Ok(opened) => Ok(Some(SecretBlob::new(opened.to_vec()))),
            Err(error) => {
                peering_report::fail_envelope(context, envelope, &error.to_string()).await?;
                Ok(None)
            }
        }
    }

    /// Stores the result and sends the next message. A temporary error is returned, and the envelope tried again; a
    /// permanent one is stored, so that leases can be refused.
    async fn finish(
        mut self,
        context: &Context,
        opened: Option<&v1::Envelope>,
        done: Result<Option<Sent>, StepError>,
    ) -> Result<(), StepError> {
        let sealed = match done {
            Ok(sent) => {
                self.record.failed = None;
                sent.map(|(step, content)| self.seal_next(context, step, &content)).transpose()?
            }
            Err(StepError::Delivery(DeliveryError::Permanent { code, message })) => {
                self.fail(context, code, &message);
                None
            }
            Err(error) => return Err(error),
        };
        self.keep(context, opened, sealed).await
    }

    fn seal_next(&mut self, context: &Context, step: &str, content: &[u8]) -> Result<v1::Envelope, StepError> {
        self.record.last_sequence += 1;
        let (envelope, sealed) = self.seal(context, step, self.record.last_sequence, content)?;
        self.record.sealed = Some(sealed);
        Ok(envelope)
    }

    fn seal(
        &self,
        context: &Context,
        step: &str,
        sequence: u64,
        content: &[u8],
    ) -> Result<(v1::Envelope, SealedMessage), StepError> {
        let binding = Binding {
            federation: context.federation.clone(),
            peering: self.keys.peering.clone(),
            epoch: self.keys.epoch,
            lease: String::new(),
            step: step.to_owned(),
            sequence,
            from: context.cluster.clone(),
            to: self.remote.cluster.clone(),
        };
        let expires_at_ms = context.clock.unix_ms().saturating_add(ENVELOPE_LIFE_MS);
        let sealed = SealedMessage { epoch: self.keys.epoch, expires_at_ms, refused: false };
        let envelope =
            seal::seal(&binding, content, &self.remote.hpke_public, &context.identity, context.entropy.as_ref());
        let envelope = envelope
            .map_err(|error| DeliveryError::temporary(format!("seal the {step} message"), error.to_string()))?;
        Ok((v1::Envelope { expires_at_ms, ..envelope }, sealed))
    }

    fn note_failure(&mut self, context: &Context, code: &str, message: &str) {
        tracing::warn!(peering = self.keys.peering, code, message, "the exchange of the two Liqos cannot go on");
        let message = super::shortened(&format!("{code}: {message}"));
        self.record.failed = Some(LiqoFailure { message, at_ms: context.clock.unix_ms() });
    }

    fn fail(&mut self, context: &Context, code: &str, message: &str) {
        self.note_failure(context, code, message);
        if self.record.side == Side::Donor && self.record.request.is_none() {
            // The origin must answer again.
            self.record.sealed = None;
        }
    }

    async fn keep(
        self,
        context: &Context,
        opened: Option<&v1::Envelope>,
        sealed: Option<v1::Envelope>,
    ) -> Result<(), StepError> {
        let (record, opened) = (self.record, opened.cloned());
        let update = context.store.update(move |change| {
            let peering = record.peering.clone();
            change.put_liqo(record);
            if let Some(envelope) = &opened {
                note_opened(change, envelope);
            }
            if let Some(envelope) = sealed {
                change.send(ReportKey::Liqo(peering), Body::Envelope(envelope));
            }
        });
        Ok(update.await?)
    }
}
