//! Steps of a lease that this cluster borrows.

use comity_proto::v1;

use super::{LiveLease, Step, View, is_past_grace, is_wanted};
use crate::record::{OriginRecord, ReportKey, Side};

pub(super) fn plan(view: &View<'_>, lease: &v1::Lease, steps: &mut Vec<Step>) {
    let record = view.records.origins.get(&lease.id);
    if lease.state() == v1::LeaseState::Ending {
        let known = record.is_some_and(|record| record.clean_acked);
        if !known && !view.is_reported(&ReportKey::Clean(lease.id.clone())) {
            steps.push(Step::RemoveLease {
                lease: lease.id.clone(),
                side: Some(Side::Origin),
                report: Some(lease.fencing_token),
            });
        }
        return;
    }
    if !is_wanted(lease) || view.is_reported(&ReportKey::LeaseFailed(lease.id.clone())) {
        return;
    }
    if is_past_grace(view, lease) {
        if record.is_some_and(|record| !record.removed) {
            steps.push(Step::RemoveLease { lease: lease.id.clone(), side: Some(Side::Origin), report: None });
        }
        return;
    }
    if record.is_some_and(|record| record.removed) && view.is_live {
        // Taken down in an outage that outlasted the lease and its grace: the donor does not seal for it again.
        steps.push(Step::RefuseLease {
            lease: lease.id.clone(),
            fencing_token: lease.fencing_token,
            code: "credential-lost",
            message: "the credential was destroyed when the outage grace ended; ask for a new lease".to_owned(),
        });
        return;
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
    let wanted = LiveLease { epoch: credential.epoch, sequence: credential.sequence, tunnel_epoch: *tunnel };
    if view.live.accepted.get(&lease.id) != Some(&wanted) {
        steps.push(Step::AcceptCredential { lease: Box::new(lease.clone()) });
    } else if !lease.origin_ready && !view.is_reported(&ReportKey::Ready(lease.id.clone())) {
        steps.push(Step::Probe { lease: Box::new(lease.clone()) });
    }
}
