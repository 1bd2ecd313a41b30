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

mod borrowing;
mod donor_lease;
mod lease_end;
mod liqo_exchange;
mod local_use;
mod one_peering;
mod origin_lease;
mod placement_check;
mod signed_terms;

use std::collections::BTreeSet;

use comity_agent_model::desired_state::DesiredState;
use comity_agent_model::envelope::Envelope;
use comity_agent_model::lease::Lease;
use comity_agent_model::local_policy::LocalPolicy;
use comity_agent_model::local_policy::borrowing_policy::BorrowingPolicy;
use comity_agent_model::node_service::NodeService;
use comity_agent_model::object_id::ObjectId;
use comity_agent_model::peering::PeeringDirective;
use comity_agent_state::record::{Records, ReportKey};
use comity_proto::v1;
use comity_types::{LeaseId, PeeringId};

use self::placement_check::Ledger;
use crate::observe::LocalReserve;
use crate::reconcile::bound_peering::BindingFacts;
use crate::reconcile::envelope::is_known;
use crate::reconcile::live::Live;
use crate::reconcile::steps::lease::{ForgetLease, RemoveLease};
use crate::reconcile::steps::liqo::LiqoRemove;
use crate::reconcile::steps::peering::ForgetPeering;
use crate::reconcile::steps::{DiscardEnvelope, Step};
use crate::signed_policy::SignedPolicy;

/// Unwanted objects that one plan removes, at most.
const UNWANTED_REMOVALS_PER_PLAN: usize = 1;

/// Input of a plan.
#[derive(Clone, Copy)]
pub struct Snapshot<'a> {
    /// This cluster.
    pub cluster: &'a str,
    /// Desired state from the broker.
    pub desired: &'a DesiredState,
    /// Whether the stream that brought it is connected.
    pub is_live: bool,
    /// Own records.
    pub records: &'a Records,
    /// Running parts.
    pub live: &'a Live,
    /// Where others reach this cluster's fabric now.
    pub endpoints: &'a [String],
    /// This cluster's network, as key bundles carry it.
    pub network: Option<&'a v1::ClusterNetwork>,
    /// Whether virtual nodes can be lent and borrowed now.
    pub service: &'a NodeService,
    /// Own limits on lending.
    pub policy: &'a LocalPolicy,
    /// Capacity of each node that is not lent.
    pub reserve: LocalReserve,
    /// Whether every cluster needs a voucher of a pinned institution.
    pub require_vouchers: bool,
    /// Own limits on borrowing.
    pub borrowing: &'a BorrowingPolicy,
    /// The policy as its owners signed it.
    pub(crate) signed_policy: &'a SignedPolicy,
    /// This cluster's nodes now; `None` until they are known.
    pub nodes: Option<&'a [v1::Node]>,
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
    fn discard(&self, envelope: &Envelope, steps: &mut Vec<Step>) {
        let key = envelope.key.clone();
        if !self.is_reported(&ReportKey::EnvelopeAck(key.clone())) {
            steps.push(DiscardEnvelope { key }.into());
        }
    }

    fn directive(&self, peering: PeeringId) -> Option<&PeeringDirective> {
        self.desired.peerings.iter().find(|directive| directive.peering.id == peering)
    }

    /// What the peering of a lease is checked against.
    fn binding(&self) -> BindingFacts<'_> {
        let Self { cluster, desired, records, require_vouchers, .. } = *self;
        BindingFacts { cluster, desired, records, require_vouchers }
    }
}

/// The next steps: at most one for each object; none when reality matches the desired state.
#[must_use]
pub fn plan(snapshot: &Snapshot<'_>) -> Vec<Step> {
    let mut steps = Vec::new();
    for directive in &snapshot.desired.peerings {
        one_peering::plan(snapshot, directive, &mut steps);
        liqo_exchange::plan(snapshot, directive, &mut steps);
    }
    let mut leases: Vec<&Lease> = snapshot.desired.leases.iter().collect();
    // In the order in which the broker granted them, so that the fence refuses only stale leases.
    leases.sort_by_key(|lease| lease.fencing_token);
    let mut ledger = Ledger::of(snapshot.records, snapshot.desired);
    for lease in leases {
        if lease.placement.as_ref().is_some_and(|placement| placement.donor.as_str() == snapshot.cluster) {
            donor_lease::plan(snapshot, lease, &mut ledger, &mut steps);
        } else if lease.origin.as_str() == snapshot.cluster {
            origin_lease::plan(snapshot, lease, &mut steps);
        }
    }
    discard_useless_envelopes(snapshot, &mut steps);
    remove_unwanted(snapshot, &mut steps);
    let mut objects = BTreeSet::new();
    steps.retain(|step| objects.insert(step.object()));
    steps
}

/// Discards envelopes of an epoch without keys here, of an unknown step, or for a lease that is gone: nobody will open
/// them. Those of a skipped lease or peering stay, as the objects themselves do, and those of another epoch with keys:
/// the broker may have named a wrong one.
fn discard_useless_envelopes(snapshot: &Snapshot<'_>, steps: &mut Vec<Step>) {
    let is_skipped = |object| snapshot.desired.skipped.contains(&object);
    for envelope in &snapshot.desired.envelopes {
        let key = &envelope.key;
        if is_skipped(ObjectId::Peering(key.peering)) || key.lease.is_some_and(|id| is_skipped(ObjectId::Lease(id))) {
            continue;
        }
        let has_keys = snapshot.records.peering(key.peering, key.epoch).is_some();
        let is_current = snapshot.directive(key.peering).map(|directive| directive.peering.epoch) == Some(key.epoch);
        let is_wanted = |id| snapshot.desired.leases.iter().any(|lease| lease.id == id && lease.is_wanted());
        let lease_gone = key.lease.is_some_and(|lease| !is_wanted(lease));
        if !(is_current || has_keys) || lease_gone || !is_known(&key.step) {
            snapshot.discard(envelope, steps);
        }
    }
}

/// Forgets finished leases and peerings, and removes one object that is confirmed as unwanted; only while a broker is
/// connected.
fn remove_unwanted(snapshot: &Snapshot<'_>, steps: &mut Vec<Step>) {
    let is_desired_lease = |id: LeaseId| snapshot.desired.leases.iter().any(|lease| lease.id == id);
    for &lease in snapshot.records.donors.keys().chain(snapshot.records.origins.keys()) {
        let done = snapshot.records.donors.get(&lease).is_some_and(|record| record.clean_acked)
            || snapshot.records.origins.get(&lease).is_some_and(|record| record.clean_acked);
        if snapshot.is_live && done && !is_desired_lease(lease) {
            steps.push(ForgetLease { lease }.into());
        }
    }
    for &peering in snapshot.records.closed.keys() {
        if snapshot.is_live
            && snapshot.directive(peering).is_none()
            && snapshot.records.epochs(peering).next().is_none()
        {
            steps.push(forget_peering(peering));
        }
    }
    if !snapshot.is_live {
        return;
    }
    let is_desired = |object: ObjectId| match object {
        ObjectId::Lease(lease) => is_desired_lease(lease),
        ObjectId::Peering(peering) => snapshot.directive(peering).is_some(),
    };
    let unwanted = snapshot.live.unwanted.iter().copied().filter(|object| !is_desired(*object));
    for object in unwanted.take(UNWANTED_REMOVALS_PER_PLAN) {
        steps.push(match object {
            ObjectId::Peering(peering) if snapshot.records.liqo.contains_key(&peering) => LiqoRemove { peering }.into(),
            ObjectId::Peering(peering) => forget_peering(peering),
            ObjectId::Lease(lease) => RemoveLease { lease, side: None, report: None }.into(),
        });
    }
}

fn forget_peering(peering: PeeringId) -> Step {
    ForgetPeering { peering, keep: None }.into()
}

#[cfg(test)]
mod tests;
