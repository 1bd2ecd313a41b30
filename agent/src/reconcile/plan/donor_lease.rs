//! Steps of a lease that this cluster lends.

use std::time::Duration;

use comity_agent_model::lease::Lease;
use comity_agent_model::local_policy::LeaseTerms;
use comity_agent_state::record::{DonorRecord, ReportKey, SealedCredential};
use comity_types::{Delivery, LeaseState, Side};

use super::lease_end::{TakeDown, ends, refuse};
use super::liqo_exchange::{ExchangeState, exchange_state};
use super::{Snapshot, Step, local_use};
use crate::reconcile::steps::lease::{AdmitLease, PrepareLease, ReopenLease, ReportLease, ReportUse, SealCredential};
use crate::usage::LeaseUse;

/// Idle time that is reported, at least: half the shortest time after which a lease is released.
const REPORTED_IDLE: Duration = Duration::from_secs(5);

pub(super) fn plan(snapshot: &Snapshot<'_>, lease: &Lease, lent_milli: &mut u64, steps: &mut Vec<Step>) {
    let record = snapshot.records.donors.get(&lease.id);
    if record.is_some_and(|record| lease.fencing_token < record.fencing_token) {
        // A stale directive: its sender has not seen the later one.
        return;
    }
    let held = record.map(|record| TakeDown { removed: record.removed, clean_acked: record.clean_acked });
    if ends(snapshot, lease, Side::Donor, held, steps) {
        return;
    }
    if is_set_up(snapshot, lease) {
        // Until the nodes are known, nobody can tell whether its GPUs are still free.
        let Some(nodes) = snapshot.nodes else { return };
        if let Some(message) = local_use::shortage(snapshot, nodes, lease) {
            steps.push(refuse(lease, "local-use", message));
            return;
        }
    }
    match record {
        Some(record) if !record.removed => {
            serve(snapshot, lease, record, steps);
            report_use(snapshot, lease, steps);
            if record.namespace.is_some() && snapshot.live.unmarked.contains(&lease.id) {
                steps.push(ReopenLease { lease: Box::new(lease.clone()) }.into());
            }
        }
        _ => admit(snapshot, lease, record.is_some(), lent_milli, steps),
    }
}

/// Whether the lease has yet to become active, as a connected broker says.
fn is_set_up(snapshot: &Snapshot<'_>, lease: &Lease) -> bool {
    snapshot.is_live && lease.state.is_some_and(LeaseState::is_held)
}

/// Size of the placement in thousandths of GPUs.
fn milli(lease: &Lease) -> u64 {
    let nodes = lease.placement.iter().flat_map(|placement| &placement.nodes);
    nodes.flat_map(|node| &node.devices).map(|device| u64::from(device.milli)).sum()
}

fn admit(snapshot: &Snapshot<'_>, lease: &Lease, known: bool, lent_milli: &mut u64, steps: &mut Vec<Step>) {
    if !snapshot.is_live || (!known && lease.fencing_token <= snapshot.records.fence) {
        // Unknown, and older than a lease that was admitted: it ended here before.
        return;
    }
    let delivery = lease.delivery;
    if let (Delivery::VirtualNode, Err(reason)) = (delivery, &snapshot.service.lends) {
        let message = format!("this cluster lends no virtual nodes now: {reason}");
        steps.push(refuse(lease, "virtual-node-unavailable", message));
        return;
    }
    let milli = milli(lease);
    let institution = snapshot.directive(lease.peering).map_or("", |directive| directive.peer_institution.as_str());
    let terms = LeaseTerms {
        origin: lease.origin.as_str(),
        institution,
        milli,
        term_ms: lease.term_ms,
        lent_milli: *lent_milli,
    };
    match snapshot.policy.check(&terms) {
        Ok(()) => {
            *lent_milli = lent_milli.saturating_add(milli);
            let (lease, fencing_token) = (lease.id, lease.fencing_token);
            steps.push(AdmitLease { lease, fencing_token, milli, delivery }.into());
        }
        Err(message) => steps.push(refuse(lease, "local-policy", message)),
    }
}

fn serve(snapshot: &Snapshot<'_>, lease: &Lease, record: &DonorRecord, steps: &mut Vec<Step>) {
    let mut ends_at_ms = match lease.expires_at_ms {
        // Not active yet: the term begins within the hold.
        0 => lease.hold_until_ms.saturating_add(lease.term_ms),
        end => end,
    };
    if let Some(longest) = snapshot.policy.max_lease_ms() {
        let limit = record.admitted_at_ms.saturating_add(longest);
        if snapshot.now_ms >= limit && snapshot.is_live {
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
            Delivery::Namespace => ExchangeState::Ready,
            Delivery::VirtualNode => exchange_state(snapshot, lease.peering),
        };
        match ready {
            ExchangeState::Ready => steps.push(PrepareLease { lease: Box::new(lease.clone()), ends_at_ms }.into()),
            ExchangeState::Pending => {}
            ExchangeState::Impossible(code, reason) => steps.push(refuse(lease, code, reason)),
        }
        return;
    }
    let Some(epoch) = snapshot.usable_epoch(lease.peering) else { return };
    if snapshot.is_reported(&ReportKey::Credential(lease.id)) {
        return;
    }
    match &record.sealed {
        Some(sealed) if sealed.epoch == epoch && !is_renewal_due(sealed, ends_at_ms, snapshot.now_ms) => {
            if !lease.donor_ready && !snapshot.is_reported(&ReportKey::Ready(lease.id)) {
                steps.push(ReportLease { lease: lease.id, fencing_token: lease.fencing_token }.into());
            }
        }
        sealed => {
            let renewal = sealed.as_ref().is_some_and(|sealed| sealed.epoch == epoch);
            steps.push(SealCredential { lease: Box::new(lease.clone()), ends_at_ms, epoch, renewal }.into());
        }
    }
}

/// Reports a change of the use of a lease that is released when idle. Use that the broker knows is not reported again,
/// and idle time only once it lasts, so that short pods one after another cost no reports.
fn report_use(snapshot: &Snapshot<'_>, lease: &Lease, steps: &mut Vec<Step>) {
    let is_counted = lease.release_idle_ms > 0 && lease.state == Some(LeaseState::Active) && snapshot.is_live;
    let Some(LeaseUse { idle_since, is_reported }) = snapshot.live.uses.of(lease.id).filter(|_| is_counted) else {
        return;
    };
    let is_known_idle = lease.idle_since_ms > 0;
    let is_due = match idle_since {
        None => is_known_idle,
        Some(since) => (!is_known_idle || !is_reported) && snapshot.live.elapsed.saturating_sub(since) >= REPORTED_IDLE,
    };
    if is_due && !snapshot.is_reported(&ReportKey::Use(lease.id)) {
        steps.push(ReportUse { lease: lease.id, fencing_token: lease.fencing_token, idle_since }.into());
    }
}

/// A credential that ends before its lease is renewed after two thirds of its life. One that was issued up to the
/// lease's end is renewed only after the lease itself was.
fn is_renewal_due(sealed: &SealedCredential, lease_end_ms: u64, now_ms: u64) -> bool {
    let life = sealed.expires_at_ms.saturating_sub(sealed.issued_at_ms);
    let due = sealed.issued_at_ms.saturating_add(life / 3 * 2);
    let reaches_its_lease = sealed.expires_at_ms >= sealed.lease_end_ms;
    let lease_grew = lease_end_ms > sealed.lease_end_ms;
    sealed.expires_at_ms < lease_end_ms && now_ms >= due && (!reaches_its_lease || lease_grew)
}
