//! Runs the steps of a plan, one kind a file. Every step may run twice, or stop at any point.

mod accept_credential;
mod authenticate;
mod configure_fabric;
mod lease_report;
mod liqo;
mod make_keys;
mod open_credential;
mod peering_report;
mod prepare_lease;
mod probe;
mod remove_lease;
mod report_established;
mod seal_credential;
mod take_down_peering;

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use comity_agent_delivery::{Credential, DonorDelivery, OriginDelivery, VirtualNodes};
use comity_agent_fabric::{Exposure, Fabric, FabricError, LocalForward};
use comity_agent_liqo::network::Networks;
use comity_agent_model::delivery_error::DeliveryError;
use comity_agent_model::node_service::NodeService;
use comity_agent_state::record::ReportKey;
use comity_agent_state::store::{Change, Store, StoreError};
use comity_agent_workload::reclaim::Saved;
use comity_proto::v1;
use comity_proto::v1::agent_message::Body;
use comity_runtime::{Clock, Entropy, IdentityKey, IdentitySignature, SecretString};
use liqo::Turn;
use tokio::sync::{Notify, watch};

use crate::config::AccessSettings;
use crate::keys::bundle::PinnedKeys;
use crate::metrics::Metrics;
use crate::reconcile::fault::CrashPoint;
use crate::reconcile::plan::{Live, LiveLease, Step, ack_key, ack_of};

/// Bytes of a message for people.
const MAX_MESSAGE_BYTES: usize = 512;

/// Why a step failed.
#[derive(Debug, thiserror::Error)]
pub enum StepError {
    /// The store failed.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The fabric failed.
    #[error(transparent)]
    Fabric(#[from] FabricError),
    /// The cluster failed.
    #[error(transparent)]
    Delivery(#[from] DeliveryError),
    /// Something that the step needs is gone; the next plan takes that into account.
    #[error("{0} is not there any more")]
    Gone(&'static str),
    /// The step took too long.
    #[error("not done within {}s", .0.as_secs())]
    Deadline(Duration),
}

/// A borrowed lease in this process, by delivery.
pub enum Borrowed {
    /// A namespace of the donor.
    Namespace {
        /// Keeps the loopback port open.
        forward: LocalForward,
        /// The kubeconfig, for the local API.
        kubeconfig: SecretString,
    },
    /// A node of this cluster.
    VirtualNode {
        /// Its name.
        node: String,
    },
}

/// A lease that is connected in this process.
pub struct Connected {
    /// Its credential and tunnel.
    pub lease: LiveLease,
    /// Its forward or node.
    pub borrowed: Borrowed,
}

/// How to use a lease, as the local API reports it.
#[derive(Clone, Debug)]
pub enum Access {
    /// Local address of the donor's API, and the kubeconfig for it.
    Kubeconfig(SocketAddr, SecretString),
    /// Name of the node; there is no kubeconfig.
    VirtualNode(String),
}

/// State of this process that a restart loses.
#[derive(Default)]
pub struct Running {
    /// Exposed APIs, by peering, with the epoch of their tunnel.
    pub exposures: BTreeMap<String, (u32, Exposure)>,
    /// Epoch of each tunnel.
    pub tunnels: BTreeMap<String, u32>,
    /// Connected leases.
    pub connected: BTreeMap<String, Connected>,
    /// Reports acknowledged just now, with the time until which that counts.
    pub settling: BTreeMap<ReportKey, Duration>,
}

/// Dependencies of the steps.
pub struct Context {
    /// Trust domain of the federation.
    pub federation: String,
    /// This cluster.
    pub cluster: String,
    /// Key that signs bundles and envelopes.
    pub identity: IdentityKey,
    /// The institution's signature over it.
    pub voucher: Option<IdentitySignature>,
    /// Institutions' keys that the operator pinned.
    pub pinned: PinnedKeys,
    /// Where others reach this cluster's fabric, "host:port".
    pub endpoints: Vec<String>,
    /// This cluster's network, as key bundles carry it; `None` if it has no Liqo.
    pub network: Option<v1::ClusterNetwork>,
    /// Where tenants reach borrowed clusters.
    pub access: AccessSettings,
    /// Keepalive interval of tunnels.
    pub keepalive: Duration,
    /// Records and outbox.
    pub store: Store,
    /// Tunnels.
    pub fabric: Fabric,
    /// The donor's side of deliveries.
    pub donor: Arc<dyn DonorDelivery>,
    /// The origin's side of deliveries.
    pub origin: Arc<dyn OriginDelivery>,
    /// Both sides of virtual nodes, where this cluster has Liqo.
    pub virtual_nodes: Option<VirtualNodes>,
    /// Whether virtual nodes can be lent and borrowed now.
    pub node_service: watch::Receiver<NodeService>,
    /// Observed state of the networks between Liqos.
    pub networks: watch::Sender<Networks>,
    /// Leases under reclaim whose work is saved.
    pub saved: watch::Sender<Saved>,
    /// Notified when a tunnel comes up: its reachability must be set again.
    pub reach_due: Notify,
    /// Time.
    pub clock: Arc<dyn Clock>,
    /// Randomness.
    pub entropy: Arc<dyn Entropy>,
    /// Counters.
    pub metrics: Metrics,
    /// Where tests crash this process.
    pub crash_points: Vec<CrashPoint>,
    /// State that a restart loses; empty at the start.
    pub running: Mutex<Running>,
}

impl Context {
    /// Locks the running state. Never held over an await.
    pub fn running(&self) -> MutexGuard<'_, Running> {
        // Each change is one insertion or removal, so a panic elsewhere leaves nothing half done.
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The running state as input of a plan.
    #[must_use]
    pub fn live(&self) -> Live {
        let now = self.clock.elapsed();
        let mut running = self.running();
        running.settling.retain(|_, until| *until > now);
        Live {
            tunnels: running.tunnels.clone(),
            accepted: running.connected.iter().map(|(id, lease)| (id.clone(), lease.lease.clone())).collect(),
            settling: running.settling.keys().cloned().collect(),
            networks: self.networks.borrow().clone(),
            saved: self.saved.borrow().leases(),
            unwanted: std::collections::BTreeSet::new(),
        }
    }

    /// How a connected lease is used.
    #[must_use]
    pub fn access(&self, lease: &str) -> Option<Access> {
        Some(match &self.running().connected.get(lease)?.borrowed {
            Borrowed::Namespace { forward, kubeconfig } => Access::Kubeconfig(forward.local_addr(), kubeconfig.clone()),
            Borrowed::VirtualNode { node } => Access::VirtualNode(node.clone()),
        })
    }

    /// The fabric alone, to end it.
    #[must_use]
    pub fn into_fabric(self) -> Fabric {
        self.fabric
    }

    fn held_credential(&self, lease: &str) -> Result<(Credential, LiveLease), StepError> {
        let records = self.store.records();
        let held = records.origins.get(lease).and_then(|record| record.credential.as_ref());
        let held = held.ok_or(StepError::Gone("the credential"))?;
        let live = LiveLease { epoch: held.epoch, sequence: held.sequence, tunnel_epoch: 0 };
        Ok((Credential::decode_stored(held.encoded.expose())?, live))
    }
}

/// Time limit of a step; steps that wait for a namespace to be deleted have the longest.
#[must_use]
pub fn deadline(step: &Step) -> Duration {
    Duration::from_secs(match step {
        Step::RemoveLease { .. } | Step::LiqoRemove { .. } => 300,
        Step::PrepareLease { .. } | Step::AcceptCredential { .. } => 60,
        // A little more than the patience with Liqo's controllers.
        Step::LiqoChallenge { .. }
        | Step::LiqoAdmit { .. }
        | Step::LiqoMint { .. }
        | Step::LiqoAnswer { .. }
        | Step::LiqoIdentity { .. } => 90,
        _ => 30,
    })
}

/// Runs a step.
///
/// # Errors
/// [`StepError`], to be retried after a pause. Permanent failures are reported to the broker instead.
pub async fn run(context: &Context, step: &Step) -> Result<(), StepError> {
    match step {
        Step::MakeKeys { peering, epoch, side } => make_keys::run(context, peering, *epoch, *side).await,
        Step::SendPsk { expected, bundle } => authenticate::send_psk(context, expected, bundle).await,
        Step::OpenPsk { expected, bundle, envelope } => {
            authenticate::open_psk(context, expected, bundle, envelope).await
        }
        Step::SendProof { peering, epoch } => authenticate::send_proof(context, peering, *epoch).await,
        Step::CheckProof { peering, epoch, envelope } => {
            authenticate::check_proof(context, peering, *epoch, envelope.as_ref()).await
        }
        Step::ConfigureFabric { peering, epoch } => configure_fabric::run(context, peering, *epoch).await,
        Step::ReportEstablished { peering, epoch } => report_established::run(context, peering, *epoch).await,
        Step::FailPeering { peering, epoch, code, message } => {
            peering_report::fail(context, peering, *epoch, code, message).await
        }
        Step::ClosePeering { peering, epoch } => take_down_peering::close(context, peering, *epoch).await,
        Step::ForgetPeering { peering, before } => take_down_peering::forget(context, peering, *before).await,
        Step::LiqoChallenge { peering, epoch } => liqo::take(context, Turn::Challenge, peering, *epoch, None).await,
        Step::LiqoAnswer { peering, epoch, envelope } => {
            liqo::take(context, Turn::Answer, peering, *epoch, envelope.as_ref()).await
        }
        Step::LiqoAdmit { peering, epoch, envelope } => {
            liqo::take(context, Turn::Admit, peering, *epoch, envelope.as_ref()).await
        }
        Step::LiqoIdentity { peering, epoch, envelope } => {
            liqo::take(context, Turn::Identity, peering, *epoch, envelope.as_ref()).await
        }
        Step::LiqoNetwork { peering, epoch, envelope } => {
            liqo::take_network(context, peering, *epoch, envelope.as_ref()).await
        }
        Step::LiqoMint { peering, epoch } => liqo::take(context, Turn::Mint, peering, *epoch, None).await,
        Step::LiqoRemove { peering } => liqo::remove(context, peering).await,
        Step::AdmitLease { lease, fencing_token, milli, delivery } => {
            prepare_lease::admit(context, lease, *fencing_token, *milli, *delivery).await
        }
        Step::RefuseLease { lease, fencing_token, code, message } => {
            lease_report::fail(context, lease, *fencing_token, code, message).await
        }
        Step::PrepareLease { lease, ends_at_ms } => prepare_lease::run(context, lease, *ends_at_ms).await,
        Step::SealCredential { lease, ends_at_ms, epoch, .. } => {
            seal_credential::run(context, lease, *ends_at_ms, *epoch).await
        }
        Step::ReportLease { lease, fencing_token } => lease_report::donor_ready(context, lease, *fencing_token).await,
        Step::ReportCheckpointed { lease, fencing_token } => {
            lease_report::checkpointed(context, lease, *fencing_token).await
        }
        Step::OpenCredential { lease, fencing_token, envelope } => {
            open_credential::run(context, lease, *fencing_token, envelope).await
        }
        Step::AcceptCredential { lease } => accept_credential::run(context, lease).await,
        Step::Probe { lease } => probe::run(context, lease).await,
        Step::RemoveLease { lease, side, report } => remove_lease::run(context, lease, *side, *report).await,
        Step::ForgetLease { lease } => remove_lease::forget(context, lease).await,
        Step::DiscardEnvelope { ack } => {
            let (key, ack) = (ack_key(ack), ack.clone());
            Ok(context.store.update(move |change| change.send(key, Body::EnvelopeAck(ack))).await?)
        }
    }
}

/// Records that an envelope was opened, and acknowledges it to the broker.
fn note_opened(change: &mut Change<'_>, envelope: &v1::Envelope) {
    change.change_peering(&envelope.peering, envelope.epoch, |record| {
        let opened = record
            .opened
            .entry(comity_agent_state::record::PeeringRecord::kind(&envelope.lease, &envelope.step))
            .or_insert(0);
        *opened = envelope.sequence.max(*opened);
    });
    let ack = ack_of(envelope);
    change.send(ack_key(&ack), Body::EnvelopeAck(ack));
}

/// Truncates a message to the broker's limit.
fn shortened(message: &str) -> String {
    let mut end = message.len().min(MAX_MESSAGE_BYTES);
    while !message.is_char_boundary(end) {
        end -= 1;
    }
    message[..end].to_owned()
}
