//! Steps `liqo-challenge`, `liqo-admit`, `liqo-answer`, `liqo-identity` and `liqo-remove`: the keys of the two Liqos are
//! exchanged once per peering, so that the origin's Liqo may call the donor's API server.

use std::sync::Arc;

use comity_proto::v1;
use comity_proto::v1::agent_message::Body;

use super::{Context, StepError, authenticate, note_opened, peering_report};
use crate::delivery::{DeliveryError, VirtualNodes};
use crate::liqo::{Challenge, IdentityParams, LiqoPeer, TenantRequest, messages::Message};
use crate::record::{LiqoFailure, LiqoRecord, PeeringRecord, RemoteKeys, ReportKey, SealedMessage, SecretBlob, Side};
use crate::seal::{self, Binding};

/// How long the broker keeps a message of the exchange unread; then it is sealed again, if it is still needed.
const ENVELOPE_LIFE_MS: u64 = 3_600_000;

pub(super) async fn challenge(context: &Context, peering: &str, epoch: u32) -> Result<(), StepError> {
    let mut exchange = Exchange::begin(context, peering, epoch)?;
    match exchange.nodes.donor.challenge(&exchange.record.peer()).await {
        Ok(challenge) => {
            exchange.record.challenge = Some(SecretBlob::new(challenge.encode()));
            exchange.send(context, None, Some((Challenge::STEP, challenge.encode()))).await
        }
        Err(error) => exchange.fail(context, None, error).await,
    }
}

pub(super) async fn admit(
    context: &Context,
    peering: &str,
    epoch: u32,
    envelope: Option<&v1::Envelope>,
) -> Result<(), StepError> {
    let mut exchange = Exchange::begin(context, peering, epoch)?;
    if let Some(envelope) = envelope {
        let Some(opened) = exchange.open(context, envelope).await? else { return Ok(()) };
        exchange.record.request = Some(opened);
        exchange.record.done = false;
    }
    if !exchange.record.done {
        let request = match decode::<TenantRequest>(exchange.record.request.as_ref()) {
            Ok(request) => request,
            Err(error) => {
                exchange.record.request = None;
                return exchange.fail(context, envelope, error).await;
            }
        };
        match exchange.nodes.donor.admit_tenant(&exchange.record.peer(), &request).await {
            Ok(identity) => exchange.record.identity = Some(SecretBlob::new(identity.encode())),
            Err(error) => return exchange.fail(context, envelope, error).await,
        }
        exchange.record.done = true;
    }
    let identity = exchange.record.identity.as_ref().ok_or(StepError::Gone("the identity"))?.expose().to_vec();
    exchange.send(context, envelope, Some((IdentityParams::STEP, identity))).await
}

pub(super) async fn answer(
    context: &Context,
    peering: &str,
    epoch: u32,
    envelope: Option<&v1::Envelope>,
) -> Result<(), StepError> {
    let mut exchange = Exchange::begin(context, peering, epoch)?;
    if let Some(envelope) = envelope {
        let Some(opened) = exchange.open(context, envelope).await? else { return Ok(()) };
        exchange.record.challenge = Some(opened);
        exchange.record.request = None;
    }
    if exchange.record.request.is_none() {
        let challenge = match decode::<Challenge>(exchange.record.challenge.as_ref()) {
            Ok(challenge) => challenge,
            Err(error) => {
                exchange.record.challenge = None;
                return exchange.fail(context, envelope, error).await;
            }
        };
        match exchange.nodes.origin.answer(&exchange.record.peer(), &challenge).await {
            Ok(request) => exchange.record.request = Some(SecretBlob::new(request.encode())),
            Err(error) => return exchange.fail(context, envelope, error).await,
        }
    }
    let request = exchange.record.request.as_ref().ok_or(StepError::Gone("the request"))?.expose().to_vec();
    exchange.send(context, envelope, Some((TenantRequest::STEP, request))).await
}

pub(super) async fn identity(
    context: &Context,
    peering: &str,
    epoch: u32,
    envelope: Option<&v1::Envelope>,
) -> Result<(), StepError> {
    let mut exchange = Exchange::begin(context, peering, epoch)?;
    if let Some(envelope) = envelope {
        let Some(opened) = exchange.open(context, envelope).await? else { return Ok(()) };
        exchange.record.identity = Some(opened);
        exchange.record.done = false;
    }
    let params = match decode::<IdentityParams>(exchange.record.identity.as_ref()) {
        Ok(params) => params,
        Err(error) => {
            exchange.record.identity = None;
            return exchange.fail(context, envelope, error).await;
        }
    };
    let api_server = exchange.remote.network.api_server.as_str();
    match exchange.nodes.origin.accept_identity(&exchange.record.peer(), api_server, &params).await {
        Ok(()) => exchange.record.done = true,
        Err(error) => return exchange.fail(context, envelope, error).await,
    }
    exchange.send(context, envelope, None).await
}

pub(super) async fn remove(context: &Context, peering: &str) -> Result<(), StepError> {
    let records = context.store.records();
    let Some(record) = records.liqo.get(peering) else { return Ok(()) };
    let nodes = virtual_nodes(context)?;
    match record.side {
        Side::Donor => nodes.donor.remove_tenant(&record.peer()).await?,
        Side::Origin => nodes.origin.remove_identity(&record.peer()).await?,
    }
    let peering = peering.to_owned();
    Ok(context.store.update(move |change| change.drop_liqo(&peering)).await?)
}

/// What both sides of virtual nodes are done with.
pub(super) fn virtual_nodes(context: &Context) -> Result<VirtualNodes, StepError> {
    let missing = || {
        let reason = "this agent does not use Liqo now; set liqo.enabled until nothing of it is left";
        StepError::Delivery(DeliveryError::temporary("serve a virtual node", reason))
    };
    context.virtual_nodes.clone().ok_or_else(missing)
}

fn decode<M: Message>(blob: Option<&SecretBlob>) -> Result<M, DeliveryError> {
    let missing = || DeliveryError::temporary(format!("read the {} message", M::STEP), "it is not there any more");
    M::decode(blob.ok_or_else(missing)?.expose())
}

/// One side's exchange in one epoch, while a step works on it.
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
        let own_id = context.network.as_ref().map_or("", |network| network.liqo_cluster_id.as_str());
        let record = match context.store.records().liqo.get(peering).map(Arc::as_ref) {
            Some(record) => record.clone(),
            None => {
                let liqo_id = remote.network.liqo_cluster_id.clone();
                let peer = LiqoPeer { peering: peering.to_owned(), cluster: remote.cluster.clone(), liqo_id };
                LiqoRecord::new(keys.side, &peer, own_id)
            }
        };
        Ok(Self { nodes: virtual_nodes(context)?, keys, remote, record })
    }

    /// Opens what the other side sealed; `None` where that failed, and was reported.
    async fn open(&self, context: &Context, envelope: &v1::Envelope) -> Result<Option<SecretBlob>, StepError> {
        match seal::open(&context.federation, envelope, &self.keys.hpke_secret, &self.remote.identity_key) {
            Ok(opened) => Ok(Some(SecretBlob::new(opened.to_vec()))),
            Err(error) => {
                peering_report::fail_envelope(context, envelope, &error.to_string()).await?;
                Ok(None)
            }
        }
    }

    /// Keeps what was done, and sends what follows from it.
    async fn send(
        mut self,
        context: &Context,
        opened: Option<&v1::Envelope>,
        message: Option<(&'static str, Vec<u8>)>,
    ) -> Result<(), StepError> {
        self.record.failed = None;
        let sealed = match message {
            Some((step, content)) => Some(self.seal(context, step, &content)?),
            None => None,
        };
        self.keep(context, opened, sealed).await
    }

    fn seal(&mut self, context: &Context, step: &str, content: &[u8]) -> Result<v1::Envelope, StepError> {
        self.record.last_sequence += 1;
        let binding = Binding {
            federation: context.federation.clone(),
            peering: self.keys.peering.clone(),
            epoch: self.keys.epoch,
            lease: String::new(),
            step: step.to_owned(),
            sequence: self.record.last_sequence,
            from: context.cluster.clone(),
            to: self.remote.cluster.clone(),
        };
        let expires_at_ms = context.clock.unix_ms().saturating_add(ENVELOPE_LIFE_MS);
        self.record.sealed = Some(SealedMessage { epoch: self.keys.epoch, expires_at_ms, refused: false });
        let envelope =
            seal::seal(&binding, content, &self.remote.hpke_public, &context.identity, context.entropy.as_ref());
        let envelope = envelope
            .map_err(|error| DeliveryError::temporary(format!("seal the {step} message"), error.to_string()))?;
        Ok(v1::Envelope { expires_at_ms, ..envelope })
    }

    /// What may go away is tried again with the same envelope; what will not is kept, so that leases can be refused for it.
    async fn fail(
        mut self,
        context: &Context,
        opened: Option<&v1::Envelope>,
        error: DeliveryError,
    ) -> Result<(), StepError> {
        let DeliveryError::Permanent { code, message } = error else { return Err(error.into()) };
        tracing::warn!(peering = self.keys.peering, code, message, "the key exchange of Liqo cannot go on");
        let message = super::shortened(&format!("{code}: {message}"));
        self.record.failed = Some(LiqoFailure { message, at_ms: context.clock.unix_ms() });
        if self.record.side == Side::Donor && self.record.request.is_none() {
            // The origin has to answer once more.
            self.record.sealed = None;
        }
        self.keep(context, opened, None).await
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
