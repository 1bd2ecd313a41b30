//! Plans the next steps. Pure: steps depend only on the desired state, own records, running state, local policy and
//! time.
//!
//! ```text
//! desired (broker) ─┐
//! records (disk) ───┼─▶ plan ─▶ steps ─▶ execute ─▶ records, outbox, cluster, fabric ─▶ plan again
//! live (memory) ────┘
//! ```
//!
//! A plan has no memory: the same inputs give the same steps after a restart at any point, and an empty plan when all
//! is done. It never takes anything down because the broker is silent before the lease's end and the outage grace.

mod donor_lease;
mod lease;
mod liqo;
mod origin_lease;
mod peering;

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};

use comity_agent_liqo::network::NetworkSeen;
use comity_agent_model::delivery_kind::DeliveryKind;
use comity_agent_model::local_policy::LocalPolicy;
use comity_agent_model::node_service::NodeService;
use comity_agent_model::side::Side;
use comity_agent_state::record::{Records, ReportKey};
use comity_proto::v1;

use crate::keys::bundle::Expected;

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

/// Unwanted objects that one plan removes, at most.
const GARBAGE_PER_PLAN: usize = 1;

/// One idempotent action. Fields are named as in the protocol.
#[expect(missing_docs, reason = "the fields carry the protocol's own names, which the protocol documents")]
#[derive(Clone, Debug, PartialEq)]
pub enum Step {
    /// Generates keys for an epoch, or sends the existing ones again.
    MakeKeys { peering: String, epoch: u32, side: Side },
    /// Donor: verifies the origin's keys, makes the pre-shared key and seals it.
    SendPsk { expected: Expected, bundle: v1::KeyBundle },
    /// Origin: verifies the donor's keys, opens the pre-shared key and seals the proof.
    OpenPsk { expected: Expected, bundle: v1::KeyBundle, envelope: v1::Envelope },
    /// Origin: seals the proof again after the broker refused the first.
    SendProof { peering: String, epoch: u32 },
    /// Donor: checks the proof, or reports the check again.
    CheckProof { peering: String, epoch: u32, envelope: Option<v1::Envelope> },
    /// Brings the tunnel up; the donor exposes its API in it.
    ConfigureFabric { peering: String, epoch: u32 },
    /// Waits for the tunnel's handshake and reports it.
    ReportEstablished { peering: String, epoch: u32 },
    /// Reports that an epoch failed.
    FailPeering { peering: String, epoch: u32, code: &'static str, message: String },
    /// Takes a peering down and reports it.
    ClosePeering { peering: String, epoch: u32 },
    /// Takes down a peering that the broker no longer knows, or forgets keys of epochs before this one.
    ForgetPeering { peering: String, before: Option<u32> },
    /// Donor: makes Liqo's challenge and seals it.
    LiqoChallenge { peering: String, epoch: u32 },
    /// Donor: makes the origin a tenant of Liqo and seals its identity; without an envelope, uses the one opened
    /// before.
    LiqoAdmit { peering: String, epoch: u32, envelope: Option<v1::Envelope> },
    /// Donor: makes a token for the origin and seals it; repeated before each token ends. Replaces the key exchange.
    LiqoMint { peering: String, epoch: u32 },
    /// Origin: signs the challenge and seals the answer; without an envelope, uses the one opened before.
    LiqoAnswer { peering: String, epoch: u32, envelope: Option<v1::Envelope> },
    /// Origin: makes its identity at the donor; without an envelope, uses the one opened before.
    LiqoIdentity { peering: String, epoch: u32, envelope: Option<v1::Envelope> },
    /// Records the other side's Liqo network; without an envelope, sends this side's.
    LiqoNetwork { peering: String, epoch: u32, envelope: Option<v1::Envelope> },
    /// Removes the network and the tenant or identity, and forgets the exchange.
    LiqoRemove { peering: String },
    /// Donor: admits a lease. Runs at once, in order of fencing tokens.
    AdmitLease { lease: String, fencing_token: u64, milli: u64, delivery: DeliveryKind },
    /// Reports that this side cannot or will not serve a lease.
    RefuseLease { lease: String, fencing_token: u64, code: &'static str, message: String },
    /// Donor: makes the lease's namespace with its contents, or grants its virtual node.
    PrepareLease { lease: Box<v1::Lease>, ends_at_ms: u64 },
    /// Donor: issues a credential and seals it: the first of an epoch, or a renewal.
    SealCredential { lease: Box<v1::Lease>, ends_at_ms: u64, epoch: u32, renewal: bool },
    /// Reports again that this side is ready.
    ReportLease { lease: String, fencing_token: u64 },
    /// Origin: reports that the work on a lease under reclaim is saved.
    ReportCheckpointed { lease: String, fencing_token: u64 },
    /// Origin: opens a credential and keeps it.
    OpenCredential { lease: String, fencing_token: u64, envelope: v1::Envelope },
    /// Origin: opens the loopback port and writes the kubeconfig, or accepts the virtual node.
    AcceptCredential { lease: Box<v1::Lease> },
    /// Origin: tests the credential through the tunnel, and reports the lease ready.
    Probe { lease: Box<v1::Lease> },
    /// Takes down this side of a lease (both if `None`); reports to the broker if `report` is its fencing token.
    RemoveLease { lease: String, side: Option<Side>, report: Option<u64> },
    /// Forgets the records of a lease that was taken down and acknowledged.
    ForgetLease { lease: String },
    /// Acknowledges an envelope that nobody needs.
    DiscardEnvelope { ack: v1::EnvelopeAck },
}

impl Step {
    /// One of [`STEP_NAMES`].
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

    /// W3C trace context of the lease's submission; empty for steps that carry no lease.
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

    /// Key for mutual exclusion: steps with the same object never run at the same time; others never wait for each
    /// other.
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

/// A lease that this process connected.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LiveLease {
    /// Epoch of its credential.
    pub epoch: u32,
    /// Sequence of its credential.
    pub sequence: u64,
    /// Epoch of the tunnel that its port forwards into.
    pub tunnel_epoch: u32,
}

/// State in memory: what runs in this process, and recent observations.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Live {
    /// Tunnels in the fabric, with their epochs.
    pub tunnels: BTreeMap<String, u32>,
    /// Leases whose forward and kubeconfig stand.
    pub accepted: BTreeMap<String, LiveLease>,
    /// Reports acknowledged just now, which the desired state may not show yet.
    pub settling: BTreeSet<ReportKey>,
    /// Leases under reclaim whose work is saved.
    pub saved: BTreeSet<String>,
    /// Networks between Liqos, by the peering that carries them.
    pub networks: BTreeMap<String, NetworkSeen>,
    /// Objects that the broker no longer wants, as [`Desired`](comity_agent_model::desired::Desired) confirmed.
    pub unwanted: BTreeSet<String>,
}

/// Input of a plan.
#[derive(Clone, Copy)]
pub struct Snapshot<'a> {
    /// This cluster.
    pub cluster: &'a str,
    /// Desired state from the broker.
    pub desired: &'a v1::DesiredState,
    /// Whether the stream that brought it is connected.
    pub is_live: bool,
    /// Own records.
    pub records: &'a Records,
    /// What runs.
    pub live: &'a Live,
    /// Where others reach this cluster's fabric now.
    pub endpoints: &'a [String],
    /// This cluster's network, as key bundles carry it.
    pub network: Option<&'a v1::ClusterNetwork>,
    /// Whether virtual nodes can be lent and borrowed now.
    pub service: &'a NodeService,
    /// Own limits.
    pub policy: &'a LocalPolicy,
    /// Wall-clock time in milliseconds since 1970.
    pub now_ms: u64,
    /// How long leases outlive their end while no broker can be reached, in milliseconds.
    pub outage_grace_ms: u64,
}

impl Snapshot<'_> {
    /// Whether a report is in the outbox, or was acknowledged just now.
    fn is_reported(&self, key: &ReportKey) -> bool {
        self.live.settling.contains(key) || self.records.outbox.values().any(|outgoing| outgoing.key == *key)
    }

    /// Plans the acknowledgement of an envelope, unless it is in the outbox.
    fn discard(&self, envelope: &v1::Envelope, steps: &mut Vec<Step>) {
        let ack = ack_of(envelope);
        if !self.is_reported(&ack_key(&ack)) {
            steps.push(Step::DiscardEnvelope { ack });
        }
    }

    fn directive(&self, peering: &str) -> Option<&v1::PeeringDirective> {
        self.desired.peerings.iter().find(|directive| directive.peering.as_ref().is_some_and(|p| p.id == peering))
    }

    /// The peering's current epoch, if its tunnel may carry credentials.
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

/// The outbox key of an acknowledgement.
#[must_use]
pub fn ack_key(ack: &v1::EnvelopeAck) -> ReportKey {
    ReportKey::EnvelopeAck(ack.peering.clone(), ack.epoch, ack.lease.clone(), ack.step.clone(), ack.sequence)
}

/// The next steps: at most one for each object; none when reality matches the desired state.
#[must_use]
pub fn plan(snapshot: &Snapshot<'_>) -> Vec<Step> {
    let mut steps = Vec::new();
    for directive in &snapshot.desired.peerings {
        peering::plan(snapshot, directive, &mut steps);
        liqo::plan(snapshot, directive, &mut steps);
    }
    let mut leases: Vec<&v1::Lease> = snapshot.desired.leases.iter().collect();
    // In the order in which the broker granted them, so that the fence refuses only stale leases.
    leases.sort_by_key(|lease| lease.fencing_token);
    let mut lent_milli = snapshot.records.lent_milli();
    for lease in leases {
        if lease.placement.as_ref().is_some_and(|placement| placement.donor == snapshot.cluster) {
            donor_lease::plan(snapshot, lease, &mut lent_milli, &mut steps);
        } else if lease.origin == snapshot.cluster {
            origin_lease::plan(snapshot, lease, &mut steps);
        }
    }
    discard_useless_envelopes(snapshot, &mut steps);
    garbage(snapshot, &mut steps);
    let mut objects = BTreeSet::new();
    steps.retain(|step| objects.insert(step.object().into_owned()));
    steps
}

/// Whether a lease is past its end and the outage grace while no broker can be reached.
fn is_past_grace(snapshot: &Snapshot<'_>, lease: &v1::Lease) -> bool {
    lease.expires_at_ms > 0
        && !snapshot.is_live
        && snapshot.now_ms > lease.expires_at_ms.saturating_add(snapshot.outage_grace_ms)
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

/// Discards envelopes of another epoch, of an unknown step, or for a lease that is gone: nobody will open them.
fn discard_useless_envelopes(snapshot: &Snapshot<'_>, steps: &mut Vec<Step>) {
    for envelope in &snapshot.desired.envelopes {
        let epoch = snapshot.directive(&envelope.peering).and_then(|d| d.peering.as_ref()).map(|p| p.epoch);
        let lease_gone = !envelope.lease.is_empty()
            && !snapshot.desired.leases.iter().any(|lease| lease.id == envelope.lease && is_wanted(lease));
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
            snapshot.discard(envelope, steps);
        }
    }
}

/// Removes what was confirmed as unwanted, a little at a time; never while no broker is connected.
fn garbage(snapshot: &Snapshot<'_>, steps: &mut Vec<Step>) {
    let is_desired_lease = |id: &str| snapshot.desired.leases.iter().any(|lease| lease.id == id);
    for lease in snapshot.records.donors.keys().chain(snapshot.records.origins.keys()) {
        let done = snapshot.records.donors.get(lease).is_some_and(|record| record.clean_acked)
            || snapshot.records.origins.get(lease).is_some_and(|record| record.clean_acked);
        if snapshot.is_live && done && !is_desired_lease(lease) {
            steps.push(Step::ForgetLease { lease: lease.clone() });
        }
    }
    for peering in snapshot.records.closed.keys() {
        if snapshot.is_live
            && snapshot.directive(peering).is_none()
            && snapshot.records.epochs(peering).next().is_none()
        {
            steps.push(Step::ForgetPeering { peering: peering.clone(), before: None });
        }
    }
    if !snapshot.is_live {
        return;
    }
    let unwanted = snapshot
        .live
        .unwanted
        .iter()
        .filter(|object| !is_desired_lease(object) && snapshot.directive(object).is_none());
    for object in unwanted.take(GARBAGE_PER_PLAN) {
        steps.push(match object.starts_with("peer-") {
            true if snapshot.records.liqo.contains_key(object) => Step::LiqoRemove { peering: object.clone() },
            true => Step::ForgetPeering { peering: object.clone(), before: None },
            false => Step::RemoveLease { lease: object.clone(), side: None, report: None },
        });
    }
}

#[cfg(test)]
mod tests;
