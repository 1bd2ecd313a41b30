//! Steps of a lease that this cluster borrows.

use comity_agent_model::envelope::Envelope;
use comity_agent_model::lease::Lease;
use comity_agent_state::record::{OriginRecord, ReportKey};
use comity_agent_workload::reclaim::reclaim_of;
use comity_types::{Delivery, Side};

use super::lease_end::{TakeDown, ends, refusal, refuse};
use super::liqo_exchange::{ExchangeState, exchange_state};
use super::signed_terms::{self, SignedTerms};
use super::{Snapshot, Step, borrowing};
use crate::reconcile::bound_peering::BoundPeering;
use crate::reconcile::envelope::CREDENTIAL;
use crate::reconcile::live::LiveLease;
use crate::reconcile::steps::lease::{AcceptCredential, OpenCredential, Probe, ReportCheckpointed};

pub(super) fn plan(snapshot: &Snapshot<'_>, lease: &Lease, steps: &mut Vec<Step>) {
    let record = snapshot.records.origins.get(&lease.id);
    let held =
        record.map(|record| TakeDown { removed: record.removed, clean_acked: record.clean_acked, own_end_ms: None });
    if ends(snapshot, lease, Side::Origin, held, steps) {
        return;
    }
    let bound = match BoundPeering::of(snapshot.binding(), lease, Side::Origin) {
        Ok(bound) => bound,
        Err(unbound) => return steps.extend(refusal(lease, unbound)),
    };
    if record.is_some_and(|record| record.removed) && snapshot.is_live {
        // An outage outlasted the lease and its grace, and the donor will not seal a credential for it again.
        let message = "the credential was destroyed when the outage grace ended; ask for a new lease".to_owned();
        steps.push(refuse(lease, "credential-lost", message));
        return;
    }
    if let Some(refusal) = borrowing::obstacle(snapshot, lease, &bound, record.map(AsRef::as_ref)) {
        if snapshot.is_live {
            steps.push(refuse(lease, refusal.code, refusal.message));
        }
        return;
    }
    match signed_terms::check_data(snapshot, lease, record.map(AsRef::as_ref)) {
        SignedTerms::Permit => {}
        SignedTerms::Wait => return,
        SignedTerms::Refuse(code, message) => {
            return steps.extend(snapshot.is_live.then(|| refuse(lease, code, message)));
        }
    }
    if lease.delivery == Delivery::VirtualNode && !lease.origin_ready {
        let reason = match (&snapshot.service.borrows, exchange_state(snapshot, bound.peering())) {
            (Err(reason), _) => {
                Some(("virtual-node-unavailable", format!("this cluster borrows no virtual nodes now: {reason}")))
            }
            (Ok(()), ExchangeState::Impossible(code, reason)) => Some((code, reason)),
            (Ok(()), ExchangeState::Ready | ExchangeState::Pending) => None,
        };
        if let Some((code, reason)) = reason.filter(|_| snapshot.is_live) {
            steps.push(refuse(lease, code, reason));
            return;
        }
    }
    let reported = ReportKey::Checkpointed(lease.id);
    if reclaim_of(lease).is_some() && snapshot.live.saved.contains(&lease.id) && !snapshot.is_reported(&reported) {
        steps.push(ReportCheckpointed { lease: lease.id, fencing_token: lease.fencing_token }.into());
    }
    open(snapshot, lease, &bound, steps);
    if let Some(record) = record {
        accept(snapshot, lease, record, &bound, steps);
    }
}

fn open(snapshot: &Snapshot<'_>, lease: &Lease, bound: &BoundPeering, steps: &mut Vec<Step>) {
    let ours = |envelope: &&Envelope| {
        let key = &envelope.key;
        key.lease == Some(lease.id) && key.step == CREDENTIAL && key.peering == bound.peering()
    };
    for envelope in snapshot.desired.envelopes.iter().filter(ours) {
        let key = &envelope.key;
        let Some(record) = snapshot.records.peering(key.peering, key.epoch) else { continue };
        if record.has_opened(key) {
            snapshot.discard(envelope, steps);
            continue;
        }
        if snapshot.is_reported(&ReportKey::PeeringFailed(key.peering, key.epoch)) {
            continue;
        }
        match bound.epoch(snapshot.binding()) {
            Ok(epoch) if epoch.epoch() == key.epoch => {
                let (lease, fencing_token) = (lease.id, lease.fencing_token);
                steps.push(OpenCredential { lease, fencing_token, epoch, envelope: envelope.clone() }.into());
            }
            Ok(_) => {}
            Err(unbound) => steps.extend(refusal(lease, unbound)),
        }
    }
}

fn accept(snapshot: &Snapshot<'_>, lease: &Lease, record: &OriginRecord, bound: &BoundPeering, steps: &mut Vec<Step>) {
    let (Some(credential), Some(tunnel)) = (&record.credential, snapshot.live.tunnels.get(&bound.peering())) else {
        return;
    };
    if lease.delivery == Delivery::VirtualNode && exchange_state(snapshot, bound.peering()) != ExchangeState::Ready {
        return;
    }
    let wanted = LiveLease { epoch: credential.epoch, sequence: credential.sequence, tunnel_epoch: *tunnel };
    if snapshot.live.accepted.get(&lease.id) != Some(&wanted) {
        steps.push(AcceptCredential { lease: Box::new(lease.clone()), bound: bound.clone() }.into());
    } else if !lease.origin_ready && !snapshot.is_reported(&ReportKey::Ready(lease.id)) {
        steps.push(Probe { lease: Box::new(lease.clone()), bound: bound.clone() }.into());
    }
}
