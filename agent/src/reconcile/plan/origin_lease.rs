//! Steps of a lease that this cluster borrows.

use comity_proto::v1;

use super::lease::{Held, ends, refuse};
use super::liqo::{Standing, standing};
use super::{LiveLease, Step, View};
use crate::delivery::DeliveryKind;
use crate::model::side::Side;
use crate::state::record::{OriginRecord, ReportKey};
use crate::workload::reclaim::reclaim_of;

pub(super) fn plan(view: &View<'_>, lease: &v1::Lease, steps: &mut Vec<Step>) {
    let record = view.records.origins.get(&lease.id);
    let held = record.map(|record| Held { removed: record.removed, clean_acked: record.clean_acked });
    if ends(view, lease, Side::Origin, held, steps) {
        return;
    }
    if record.is_some_and(|record| record.removed) && view.is_live {
        // Taken down in an outage that outlasted the lease and its grace: the donor does not seal for it again.
        let message = "the credential was destroyed when the outage grace ended; ask for a new lease".to_owned();
        steps.push(refuse(lease, "credential-lost", message));
        return;
    }
    if DeliveryKind::of(lease) == DeliveryKind::VirtualNode && !lease.origin_ready {
        let reason = match (&view.service.borrows, standing(view, &lease.peering)) {
            (Err(reason), _) => {
                Some(("virtual-node-unavailable", format!("this cluster borrows no virtual nodes now: {reason}")))
            }
            (Ok(()), Standing::Impossible(code, reason)) => Some((code, reason)),
            (Ok(()), Standing::Done | Standing::Waits) => None,
        };
        if let Some((code, reason)) = reason.filter(|_| view.is_live) {
            steps.push(refuse(lease, code, reason));
            return;
        }
    }
    let reported = ReportKey::Checkpointed(lease.id.clone());
    if reclaim_of(lease).is_some() && view.live.saved.contains(&lease.id) && !view.is_reported(&reported) {
        steps.push(Step::ReportCheckpointed { lease: lease.id.clone(), fencing_token: lease.fencing_token });
    }
    open(view, lease, steps);
    if let Some(record) = record {
        accept(view, lease, record, steps);
    }
}

fn open(view: &View<'_>, lease: &v1::Lease, steps: &mut Vec<Step>) {
    let ours = |e: &&v1::Envelope| e.lease == lease.id && e.step == "credential" && e.peering == lease.peering;
    for envelope in view.desired.envelopes.iter().filter(ours) {
        let Some(record) = view.records.peering(&envelope.peering, envelope.epoch) else { continue };
        if record.has_opened(&envelope.lease, &envelope.step, envelope.sequence) {
            view.discard(envelope, steps);
        } else if record.remote.is_some() && view.usable_epoch(&lease.peering) == Some(envelope.epoch) {
            let (lease, fencing_token) = (lease.id.clone(), lease.fencing_token);
            steps.push(Step::OpenCredential { lease, fencing_token, envelope: envelope.clone() });
        }
    }
}

fn accept(view: &View<'_>, lease: &v1::Lease, record: &OriginRecord, steps: &mut Vec<Step>) {
    let (Some(credential), Some(tunnel)) = (&record.credential, view.live.tunnels.get(&lease.peering)) else { return };
    if DeliveryKind::of(lease) == DeliveryKind::VirtualNode && standing(view, &lease.peering) != Standing::Done {
        return;
    }
    let wanted = LiveLease { epoch: credential.epoch, sequence: credential.sequence, tunnel_epoch: *tunnel };
    if view.live.accepted.get(&lease.id) != Some(&wanted) {
        steps.push(Step::AcceptCredential { lease: Box::new(lease.clone()) });
    } else if !lease.origin_ready && !view.is_reported(&ReportKey::Ready(lease.id.clone())) {
        steps.push(Step::Probe { lease: Box::new(lease.clone()) });
    }
}
