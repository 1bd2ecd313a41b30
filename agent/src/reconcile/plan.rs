//! What has to be done next. Pure: desired state, own records, what runs, local policy and the time go in; steps come
//! out.
//!
//! ```text
//! desired (broker) ─┐
//! records (disk) ───┼─▶ plan ─▶ steps ─▶ execute ─▶ records, outbox, cluster, fabric ─▶ plan again
//! live (memory) ────┘
//! ```
//!
//! A plan holds no memory of its own: after a restart at any point the same inputs give the same steps, and when all is
//! done it is empty. What it never plans: taking something down because the broker is silent, before the lease's end
//! and the outage grace.

mod donor_lease;
mod lease;
mod liqo;
mod origin_lease;
mod peering;

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};

use comity_proto::v1;

use crate::delivery::{DeliveryKind, NodeService};
use crate::keys::bundle::Expected;
use crate::liqo::network::NetworkSeen;
use crate::model::local_policy::LocalPolicy;
use crate::model::side::Side;
use crate::state::record::{Records, ReportKey};

/// Names of the steps, for metrics, logs and crash points.
pub const STEP_NAMES: [&str; 29] = [
    "make-keys",
    "send-psk",
    "open-psk",
    "send-proof",
    "check-proof",
    "configure-fabric",
    "report-established",
    "fail-peering",
    "close-peering",
    "forget-peering",
    "liqo-challenge",
    "liqo-admit",
    "liqo-mint",
    "liqo-answer",
    "liqo-identity",
    "liqo-network",
    "liqo-remove",
    "admit-lease",
    "refuse-lease",
    "prepare-lease",
    "seal-credential",
    "renew-credential",
    "report-lease",
    "report-checkpointed",
    "open-credential",
    "accept-credential",
    "probe",
    "remove-lease",
    "discard-envelope",
];

/// Steps of taking down what nobody wants any more, in one plan.
const GARBAGE_PER_PLAN: usize = 1;

/// One thing to do. Each is idempotent. Fields are named as in the protocol.
#[expect(missing_docs, reason = "the fields carry the protocol's own names, which the protocol documents")]
#[derive(Clone, Debug, PartialEq)]
pub enum Step {
    /// Makes keys for an epoch, or shows again those that were made.
    MakeKeys { peering: String, epoch: u32, side: Side },
    /// Donor: verifies the origin's keys, makes the pre-shared key and seals it.
    SendPsk { expected: Expected, bundle: v1::KeyBundle },
    /// Origin: verifies the donor's keys, opens the pre-shared key and seals the proof.
    OpenPsk { expected: Expected, bundle: v1::KeyBundle, envelope: v1::Envelope },
    /// Origin: seals the proof again, the first was refused.
    SendProof { peering: String, epoch: u32 },
    /// Donor: checks the proof, or says again that it was checked.
    CheckProof { peering: String, epoch: u32, envelope: Option<v1::Envelope> },
    /// Brings the tunnel up; the donor exposes its API in it.
    ConfigureFabric { peering: String, epoch: u32 },
    /// Waits for the tunnel's handshake and reports it.
    ReportEstablished { peering: String, epoch: u32 },
    /// Reports that an epoch cannot go on.
    FailPeering { peering: String, epoch: u32, code: &'static str, message: String },
    /// Takes a peering down and reports it.
    ClosePeering { peering: String, epoch: u32 },
    /// Takes a peering down that the broker does not know any more, or forgets keys of epochs before this one.
    ForgetPeering { peering: String, before: Option<u32> },
    /// Donor: makes Liqo's challenge and seals it.
    LiqoChallenge { peering: String, epoch: u32 },
    /// Donor: makes the origin a tenant of Liqo and seals its identity; without an envelope, by what was opened before.
    LiqoAdmit { peering: String, epoch: u32, envelope: Option<v1::Envelope> },
    /// Donor: makes a token for the origin, which needs no keys exchanged then, and seals it; again and again.
    LiqoMint { peering: String, epoch: u32 },
    /// Origin: signs the challenge and seals the answer; without an envelope, by what was opened before.
    LiqoAnswer { peering: String, epoch: u32, envelope: Option<v1::Envelope> },
    /// Origin: makes its identity at the donor; without an envelope, by what was opened before.
    LiqoIdentity { peering: String, epoch: u32, envelope: Option<v1::Envelope> },
    /// Keeps what the other side tells of its Liqo's network; without an envelope, tells it what was seen of this
    /// side's.
    LiqoNetwork { peering: String, epoch: u32, envelope: Option<v1::Envelope> },
    /// Removes the network, the tenant, or the identity, and forgets the exchange.
    LiqoRemove { peering: String },
    /// Donor: takes a lease on. Carried out at once, in order of fencing tokens.
    AdmitLease { lease: String, fencing_token: u64, milli: u64, delivery: DeliveryKind },
    /// Reports that this side cannot or will not go on with a lease.
    RefuseLease { lease: String, fencing_token: u64, code: &'static str, message: String },
    /// Donor: makes the lease's namespace and what is in it.
    PrepareLease { lease: Box<v1::Lease>, ends_at_ms: u64 },
    /// Donor: gets a credential and seals it; the first one of an epoch, or a renewal.
    SealCredential { lease: Box<v1::Lease>, ends_at_ms: u64, epoch: u32, renewal: bool },
    /// Reports again that this side is ready.
    ReportLease { lease: String, fencing_token: u64 },
    /// Origin: reports that the work of a lease that is being reclaimed is saved.
    ReportCheckpointed { lease: String, fencing_token: u64 },
    /// Origin: opens a credential and keeps it.
    OpenCredential { lease: String, fencing_token: u64, envelope: v1::Envelope },
    /// Origin: opens the loopback port and writes the kubeconfig.
    AcceptCredential { lease: Box<v1::Lease> },
    /// Origin: uses the credential through the tunnel, and reports.
    Probe { lease: Box<v1::Lease> },
    /// Takes this side of a lease down; reports it where there is somebody to report to.
    RemoveLease { lease: String, side: Option<Side>, report: Option<u64> },
    /// Forgets the records of a lease of which nothing is left.
    ForgetLease { lease: String },
    /// Acknowledges an envelope that is of no use any more.
    DiscardEnvelope { ack: v1::EnvelopeAck },
}

impl Step {
    /// Its name, one of [`STEP_NAMES`].
    #[must_use]
    pub fn name(&self) -> &'static str {
        match self {
            Self::MakeKeys { .. } => "make-keys",
            Self::SendPsk { .. } => "send-psk",
            Self::OpenPsk { .. } => "open-psk",
            Self::SendProof { .. } => "send-proof",
            Self::CheckProof { .. } => "check-proof",
            Self::ConfigureFabric { .. } => "configure-fabric",
            Self::ReportEstablished { .. } => "report-established",
            Self::FailPeering { .. } => "fail-peering",
            Self::ClosePeering { .. } => "close-peering",
            Self::ForgetPeering { .. } => "forget-peering",
            Self::LiqoChallenge { .. } => "liqo-challenge",
            Self::LiqoAdmit { .. } => "liqo-admit",
            Self::LiqoMint { .. } => "liqo-mint",
            Self::LiqoAnswer { .. } => "liqo-answer",
            Self::LiqoIdentity { .. } => "liqo-identity",
            Self::LiqoNetwork { .. } => "liqo-network",
            Self::LiqoRemove { .. } => "liqo-remove",
            Self::AdmitLease { .. } => "admit-lease",
            Self::RefuseLease { .. } => "refuse-lease",
            Self::PrepareLease { .. } => "prepare-lease",
            Self::SealCredential { renewal: false, .. } => "seal-credential",
            Self::SealCredential { renewal: true, .. } => "renew-credential",
            Self::ReportLease { .. } => "report-lease",
            Self::ReportCheckpointed { .. } => "report-checkpointed",
            Self::OpenCredential { .. } => "open-credential",
            Self::AcceptCredential { .. } => "accept-credential",
            Self::Probe { .. } => "probe",
            Self::RemoveLease { .. } | Self::ForgetLease { .. } => "remove-lease",
            Self::DiscardEnvelope { .. } => "discard-envelope",
        }
    }

    /// Trace that it belongs to: that of the submission of the lease it works on, where the step carries the lease.
    #[must_use]
    pub fn traceparent(&self) -> &str {
        match self {
            Self::PrepareLease { lease, .. }
            | Self::SealCredential { lease, .. }
            | Self::AcceptCredential { lease }
            | Self::Probe { lease } => &lease.traceparent,
            _ => "",
        }
    }

    /// What it works on: steps on the same object never run at the same time, steps on different ones never wait for
    /// each other.
    #[must_use]
    pub fn object(&self) -> Cow<'_, str> {
        Cow::Borrowed(match self {
            // Beside the tunnel's own steps: neither waits for the other.
            Self::LiqoChallenge { peering, .. }
            | Self::LiqoAdmit { peering, .. }
            | Self::LiqoMint { peering, .. }
            | Self::LiqoAnswer { peering, .. }
            | Self::LiqoIdentity { peering, .. }
            | Self::LiqoNetwork { peering, .. }
            | Self::LiqoRemove { peering } => return Cow::Owned(format!("{peering}/liqo")),
            Self::SendPsk { expected, .. } | Self::OpenPsk { expected, .. } => &expected.peering,
            Self::MakeKeys { peering, .. }
            | Self::SendProof { peering, .. }
            | Self::CheckProof { peering, .. }
            | Self::ConfigureFabric { peering, .. }
            | Self::ReportEstablished { peering, .. }
            | Self::FailPeering { peering, .. }
            | Self::ClosePeering { peering, .. }
            | Self::ForgetPeering { peering, .. } => peering,
            Self::PrepareLease { lease, .. }
            | Self::SealCredential { lease, .. }
            | Self::AcceptCredential { lease }
            | Self::Probe { lease } => &lease.id,
            Self::AdmitLease { lease, .. }
            | Self::RefuseLease { lease, .. }
            | Self::ReportLease { lease, .. }
            | Self::ReportCheckpointed { lease, .. }
            | Self::OpenCredential { lease, .. }
            | Self::RemoveLease { lease, .. }
            | Self::ForgetLease { lease } => lease,
            Self::DiscardEnvelope { ack } if ack.lease.is_empty() => &ack.peering,
            Self::DiscardEnvelope { ack } => &ack.lease,
        })
    }
}

/// A kubeconfig that was written by this process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LiveLease {
    /// Epoch of the credential in it.
    pub epoch: u32,
    /// Sequence of that credential.
    pub sequence: u64,
    /// Epoch of the tunnel that its port leads into.
    pub tunnel_epoch: u32,
}

/// What runs in this process, and what of the outside was seen.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Live {
    /// Tunnels in the fabric, with their epochs.
    pub tunnels: BTreeMap<String, u32>,
    /// Leases whose forward and kubeconfig stand.
    pub accepted: BTreeMap<String, LiveLease>,
    /// Reports that were acknowledged a moment ago: the desired state may not show them yet.
    pub settling: BTreeSet<ReportKey>,
    /// Leases that are being reclaimed and whose work says that it is saved.
    pub saved: BTreeSet<String>,
    /// Networks between Liqos, by the peering that carries them.
    pub networks: BTreeMap<String, NetworkSeen>,
    /// Objects that nobody wants any more, as [`Desired`](crate::model::desired::Desired) confirmed.
    pub unwanted: BTreeSet<String>,
}

/// Everything a plan is made from.
#[derive(Clone, Copy)]
pub struct View<'a> {
    /// This cluster.
    pub cluster: &'a str,
    /// What the broker wants.
    pub desired: &'a v1::DesiredState,
    /// Whether it was received on a stream that stands.
    pub is_live: bool,
    /// Own records.
    pub records: &'a Records,
    /// What runs.
    pub live: &'a Live,
    /// Where others reach this cluster's fabric now.
    pub endpoints: &'a [String],
    /// What others must know of this cluster's network.
    pub network: Option<&'a v1::ClusterNetwork>,
    /// Whether virtual nodes can be lent and borrowed now.
    pub service: &'a NodeService,
    /// Own limits.
    pub policy: &'a LocalPolicy,
    /// Wall-clock time in milliseconds since 1970.
    pub now_ms: u64,
    /// How long leases go on after their end while no broker can be reached, in milliseconds.
    pub outage_grace_ms: u64,
}

impl View<'_> {
    /// Whether a report is on its way, or was acknowledged a moment ago.
    fn is_reported(&self, key: &ReportKey) -> bool {
        self.live.settling.contains(key) || self.records.outbox.values().any(|outgoing| outgoing.key == *key)
    }

    /// An envelope acknowledgement, unless it is on its way.
    fn discard(&self, envelope: &v1::Envelope, steps: &mut Vec<Step>) {
        let ack = ack_of(envelope);
        if !self.is_reported(&ack_key(&ack)) {
            steps.push(Step::DiscardEnvelope { ack });
        }
    }

    fn directive(&self, peering: &str) -> Option<&v1::PeeringDirective> {
        self.desired.peerings.iter().find(|directive| directive.peering.as_ref().is_some_and(|p| p.id == peering))
    }

    /// Epoch of a peering whose tunnel may carry credentials now.
    fn usable_epoch(&self, peering: &str) -> Option<u32> {
        let peering = self.directive(peering)?.peering.as_ref()?;
        let stands = matches!(peering.state(), v1::PeeringState::Establishing | v1::PeeringState::Established);
        let complete = self.records.peering(&peering.id, peering.epoch).is_some_and(|record| record.is_complete());
        (stands && complete).then_some(peering.epoch)
    }
}

/// The acknowledgement of an envelope.
#[must_use]
pub fn ack_of(envelope: &v1::Envelope) -> v1::EnvelopeAck {
    v1::EnvelopeAck {
        peering: envelope.peering.clone(),
        epoch: envelope.epoch,
        lease: envelope.lease.clone(),
        step: envelope.step.clone(),
        sequence: envelope.sequence,
    }
}

/// Its name in the outbox.
#[must_use]
pub fn ack_key(ack: &v1::EnvelopeAck) -> ReportKey {
    ReportKey::EnvelopeAck(ack.peering.clone(), ack.epoch, ack.lease.clone(), ack.step.clone(), ack.sequence)
}

/// What has to be done next: at most one step for each object, and nothing when all is as it should be.
#[must_use]
pub fn plan(view: &View<'_>) -> Vec<Step> {
    let mut steps = Vec::new();
    for directive in &view.desired.peerings {
        peering::plan(view, directive, &mut steps);
        liqo::plan(view, directive, &mut steps);
    }
    let mut leases: Vec<&v1::Lease> = view.desired.leases.iter().collect();
    // A donor takes leases on in the order in which the broker granted them, so that its fence refuses only the past.
    leases.sort_by_key(|lease| lease.fencing_token);
    let mut lent_milli = view.records.lent_milli();
    for lease in leases {
        if lease.placement.as_ref().is_some_and(|placement| placement.donor == view.cluster) {
            donor_lease::plan(view, lease, &mut lent_milli, &mut steps);
        } else if lease.origin == view.cluster {
            origin_lease::plan(view, lease, &mut steps);
        }
    }
    envelopes_without_use(view, &mut steps);
    garbage(view, &mut steps);
    let mut objects = BTreeSet::new();
    steps.retain(|step| objects.insert(step.object().into_owned()));
    steps
}

/// Whether a lease ended so long ago that it is taken down although no broker says so.
fn is_past_grace(view: &View<'_>, lease: &v1::Lease) -> bool {
    lease.expires_at_ms > 0 && !view.is_live && view.now_ms > lease.expires_at_ms.saturating_add(view.outage_grace_ms)
}

fn is_wanted(lease: &v1::Lease) -> bool {
    matches!(
        lease.state(),
        v1::LeaseState::Placed
            | v1::LeaseState::Connecting
            | v1::LeaseState::Active
            | v1::LeaseState::Suspect
            | v1::LeaseState::Reclaiming
    )
}

/// Envelopes of another epoch, or for a lease that is not there: nobody will open them.
fn envelopes_without_use(view: &View<'_>, steps: &mut Vec<Step>) {
    for envelope in &view.desired.envelopes {
        let epoch = view.directive(&envelope.peering).and_then(|d| d.peering.as_ref()).map(|p| p.epoch);
        let lease_gone = !envelope.lease.is_empty()
            && !view.desired.leases.iter().any(|lease| lease.id == envelope.lease && is_wanted(lease));
        let strange = !matches!(
            envelope.step.as_str(),
            "psk"
                | "proof"
                | "credential"
                | "liqo-challenge"
                | "liqo-tenant"
                | "liqo-identity"
                | "liqo-server"
                | "liqo-client"
        );
        if epoch != Some(envelope.epoch) || lease_gone || strange {
            view.discard(envelope, steps);
        }
    }
}

/// What was confirmed to be wanted by nobody, a little at a time; never while no broker is heard.
fn garbage(view: &View<'_>, steps: &mut Vec<Step>) {
    let is_desired_lease = |id: &str| view.desired.leases.iter().any(|lease| lease.id == id);
    for lease in view.records.donors.keys().chain(view.records.origins.keys()) {
        let done = view.records.donors.get(lease).is_some_and(|record| record.clean_acked)
            || view.records.origins.get(lease).is_some_and(|record| record.clean_acked);
        if view.is_live && done && !is_desired_lease(lease) {
            steps.push(Step::ForgetLease { lease: lease.clone() });
        }
    }
    for peering in view.records.closed.keys() {
        if view.is_live && view.directive(peering).is_none() && view.records.epochs(peering).next().is_none() {
            steps.push(Step::ForgetPeering { peering: peering.clone(), before: None });
        }
    }
    if !view.is_live {
        return;
    }
    let unwanted =
        view.live.unwanted.iter().filter(|object| !is_desired_lease(object) && view.directive(object).is_none());
    for object in unwanted.take(GARBAGE_PER_PLAN) {
        steps.push(match object.starts_with("peer-") {
            true if view.records.liqo.contains_key(object) => Step::LiqoRemove { peering: object.clone() },
            true => Step::ForgetPeering { peering: object.clone(), before: None },
            false => Step::RemoveLease { lease: object.clone(), side: None, report: None },
        });
    }
}

#[cfg(test)]
mod tests;
