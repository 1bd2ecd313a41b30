//! Steps of a lease that this cluster lends.

use comity_proto::v1;

use super::lease::{Held, ends, refuse};
use super::liqo::{Standing, standing};
use super::{Step, View};
use crate::delivery::DeliveryKind;
use crate::model::local_policy::Ask;
use crate::model::side::Side;
use crate::state::record::{DonorRecord, ReportKey, SealedCredential};

pub(super) fn plan(view: &View<'_>, lease: &v1::Lease, lent_milli: &mut u64, steps: &mut Vec<Step>) {
    let record = view.records.donors.get(&lease.id);
    if record.is_some_and(|record| lease.fencing_token < record.fencing_token) {
        // A directive of the past: whoever sent it has not heard of the later one.
        return;
    }
    let held = record.map(|record| Held { removed: record.removed, clean_acked: record.clean_acked });
    if ends(view, lease, Side::Donor, held, steps) {
        return;
    }
    match record {
        Some(record) if !record.removed => serve(view, lease, record, steps),
        _ => admit(view, lease, record.is_some(), lent_milli, steps),
    }
}

/// Thousandths of GPUs that a placement takes.
fn milli(lease: &v1::Lease) -> u64 {
    let nodes = lease.placement.iter().flat_map(|placement| &placement.nodes);
    nodes.flat_map(|node| &node.devices).map(|device| u64::from(device.milli)).sum()
}

fn admit(view: &View<'_>, lease: &v1::Lease, known: bool, lent_milli: &mut u64, steps: &mut Vec<Step>) {
    if !view.is_live || (!known && lease.fencing_token <= view.records.fence) {
        // Not known here, and older than one that is: it was here and is over.
        return;
    }
    let delivery = DeliveryKind::of(lease);
    if let (DeliveryKind::VirtualNode, Err(reason)) = (delivery, &view.service.lends) {
        let message = format!("this cluster lends no virtual nodes now: {reason}");
        steps.push(refuse(lease, "virtual-node-unavailable", message));
        return;
    }
    let milli = milli(lease);
    let institution = view.directive(&lease.peering).map_or("", |directive| directive.peer_institution.as_str());
    let ask = Ask { origin: &lease.origin, institution, milli, term_ms: lease.term_ms, lent_milli: *lent_milli };
    match view.policy.check(&ask) {
        Ok(()) => {
            *lent_milli = lent_milli.saturating_add(milli);
            let (lease, fencing_token) = (lease.id.clone(), lease.fencing_token);
            steps.push(Step::AdmitLease { lease, fencing_token, milli, delivery });
        }
        Err(message) => steps.push(refuse(lease, "local-policy", message)),
    }
}

fn serve(view: &View<'_>, lease: &v1::Lease, record: &DonorRecord, steps: &mut Vec<Step>) {
    let mut ends_at_ms = match lease.expires_at_ms {
        // Not active yet: the term begins within the hold.
        0 => lease.hold_until_ms.saturating_add(lease.term_ms),
        end => end,
    };
    if let Some(longest) = view.policy.max_lease_ms() {
        let limit = record.admitted_at_ms.saturating_add(longest);
        if view.now_ms >= limit && view.is_live {
            steps.push(refuse(
                lease,
                "local-policy",
                "the lease has lasted as long as this cluster lends (sharing.maxLeaseSeconds)".to_owned(),
            ));
            return;
        }
        ends_at_ms = ends_at_ms.min(limit);
    }
    if record.namespace.is_none() {
        let ready = match record.delivery {
            DeliveryKind::Namespace => Standing::Done,
            DeliveryKind::VirtualNode => standing(view, &lease.peering),
        };
        match ready {
            Standing::Done => steps.push(Step::PrepareLease { lease: Box::new(lease.clone()), ends_at_ms }),
            Standing::Waits => {}
            Standing::Impossible(code, reason) => steps.push(refuse(lease, code, reason)),
        }
        return;
    }
    let Some(epoch) = view.usable_epoch(&lease.peering) else { return };
    if view.is_reported(&ReportKey::Credential(lease.id.clone())) {
        return;
    }
    match &record.sealed {
        Some(sealed) if sealed.epoch == epoch && !is_renewal_due(sealed, ends_at_ms, view.now_ms) => {
            if !lease.donor_ready && !view.is_reported(&ReportKey::Ready(lease.id.clone())) {
                steps.push(Step::ReportLease { lease: lease.id.clone(), fencing_token: lease.fencing_token });
            }
        }
        sealed => {
            let renewal = sealed.as_ref().is_some_and(|sealed| sealed.epoch == epoch);
            steps.push(Step::SealCredential { lease: Box::new(lease.clone()), ends_at_ms, epoch, renewal });
        }
    }
}

/// A credential that ends before its lease is renewed after two thirds of its life. One that was cut short by the
/// lease's end of its day is renewed only once the lease itself was.
fn is_renewal_due(sealed: &SealedCredential, lease_end_ms: u64, now_ms: u64) -> bool {
    let life = sealed.expires_at_ms.saturating_sub(sealed.issued_at_ms);
    let due = sealed.issued_at_ms.saturating_add(life / 3 * 2);
    let reaches_its_lease = sealed.expires_at_ms >= sealed.lease_end_ms;
    let lease_grew = lease_end_ms > sealed.lease_end_ms;
    sealed.expires_at_ms < lease_end_ms && now_ms >= due && (!reaches_its_lease || lease_grew)
}
