//! Steps of a lease that this cluster lends.

use std::time::Duration;

use comity_agent_model::lease::Lease;
use comity_agent_model::local_policy::LeaseTerms;
use comity_agent_state::record::{DonorRecord, ReportKey, SealedCredential};
use comity_types::{Delivery, LOCAL_POLICY, LeaseState, MAX_FENCING_TOKEN_STEP, Side};

use super::lease_end::{TakeDown, ends, refusal, refuse};
use super::liqo_exchange::{ExchangeState, exchange_state};
use super::placement_check::{Ledger, Objection, OwnCapacity};
use super::signed_terms::{EndBound, SignedTerms};
use super::{Snapshot, Step, local_use, placement_check, signed_terms};
use crate::reconcile::bound_peering::{BoundPeering, Institution};
use crate::reconcile::steps::lease::{AdmitLease, PrepareLease, ReopenLease, ReportLease, ReportUse, SealCredential};
use crate::signed_policy::lease_permit::{SIGNED_POLICY, class_of, recorded};
use crate::usage::LeaseUse;

/// Idle time that is reported, at least: half the shortest time after which a lease is released.
const REPORTED_IDLE: Duration = Duration::from_secs(5);

pub(super) fn plan(snapshot: &Snapshot<'_>, lease: &Lease, ledger: &mut Ledger<'_>, steps: &mut Vec<Step>) {
    let record = snapshot.records.donors.get(&lease.id);
    let is_ended = record.is_some_and(|record| record.removed) && lease.state == Some(LeaseState::Ending);
    if record.is_some_and(|record| lease.fencing_token < record.fencing_token) && !is_ended {
        // A stale directive: its sender has not seen the later one. It tears nothing down.
        return;
    }
    let highest = record.map_or(0, |record| record.fencing_token).max(snapshot.records.fence);
    // An ending lease is reported as clean, so that the broker can end it: the store keeps the fence where it is.
    let is_too_high = lease.fencing_token > highest.saturating_add(MAX_FENCING_TOKEN_STEP);
    if is_too_high && lease.state != Some(LeaseState::Ending) {
        if snapshot.is_live && !snapshot.is_reported(&ReportKey::LeaseFailed(lease.id)) {
            let message = format!(
                "the fencing token {} lies further above {highest}, the highest one here, than {MAX_FENCING_TOKEN_STEP}; \
                 the broker group goes on from {highest}",
                lease.fencing_token
            );
            steps.push(refuse(lease, "token-too-high", message));
        }
        return;
    }
    let held = record.map(|record| TakeDown {
        removed: record.removed,
        clean_acked: record.clean_acked,
        own_end_ms: own_end_ms(snapshot, record),
    });
    if ends(snapshot, lease, Side::Donor, held, steps) {
        return;
    }
    let bound = match BoundPeering::of(snapshot.binding(), lease, Side::Donor) {
        Ok(bound) => bound,
        Err(unbound) => return steps.extend(refusal(lease, unbound)),
    };
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
            if !lease.placement.as_ref().is_some_and(|placement| record.capacity.is_of(placement)) {
                let message = "its placement is another one than the one that was admitted".to_owned();
                return steps.push(refuse(lease, "placement-disagrees", message));
            }
            serve(snapshot, lease, record, &bound, steps);
            report_use(snapshot, lease, steps);
            if record.namespace.is_some() && snapshot.live.unmarked.contains(&lease.id) {
                steps.push(ReopenLease { lease: Box::new(lease.clone()) }.into());
            }
        }
        // A broker that says otherwise was restored from an older state, or lies. An honest one learns of it so.
        Some(record) if record.ended => {
            let message = "it ended here before, and does not return; request a new lease".to_owned();
            steps.extend(snapshot.is_live.then(|| refuse(lease, "lease-ended", message)));
        }
        _ => admit(snapshot, lease, bound, ledger, steps),
    }
}

/// Whether the lease has yet to become active, as a connected broker says.
fn is_set_up(snapshot: &Snapshot<'_>, lease: &Lease) -> bool {
    snapshot.is_live && lease.state.is_some_and(LeaseState::is_held)
}

fn admit(snapshot: &Snapshot<'_>, lease: &Lease, bound: BoundPeering, ledger: &mut Ledger<'_>, steps: &mut Vec<Step>) {
    if !snapshot.is_live {
        return;
    }
    let (is_known, fence) = (snapshot.records.donors.contains_key(&lease.id), snapshot.records.fence);
    if !is_known && lease.fencing_token <= fence {
        // Unknown, and older than a lease that was admitted: it ended here before, or the later one was of a broker
        // that skipped tokens. An honest one that learns of the fence places the next lease above it.
        let message = format!(
            "its fencing token {} is not above {fence}, the highest one that this donor admitted; request a new lease",
            lease.fencing_token
        );
        return steps.push(refuse(lease, "token-too-low", message));
    }
    let delivery = lease.delivery;
    if let (Delivery::VirtualNode, Err(reason)) = (delivery, &snapshot.service.lends) {
        let message = format!("this cluster lends no virtual nodes now: {reason}");
        steps.push(refuse(lease, "virtual-node-unavailable", message));
        return;
    }
    let Some(nodes) = snapshot.nodes else { return };
    let own = OwnCapacity { nodes, reserve: snapshot.reserve, ledger };
    let capacity = match placement_check::check(own, lease) {
        Ok(capacity) => capacity,
        Err(Objection::Waits) => return,
        Err(Objection::Disagrees(reason)) => {
            let message = format!("by this donor's own count the placement {reason}");
            return steps.push(refuse(lease, "placement-disagrees", message));
        }
    };
    let terms = LeaseTerms {
        origin: lease.origin.as_str(),
        institution: bound.institution().name(),
        milli: capacity.milli(),
        term_ms: lease.term_ms,
        lent_milli: ledger.milli(),
    };
    match snapshot.policy.check(&terms) {
        Ok(()) => {
            let (tenant, class) = (recorded(&lease.tenant), recorded(class_of(lease)));
            let (id, fencing_token) = (lease.id, lease.fencing_token);
            let (data, purpose) = (lease.data.clone(), recorded(&lease.purpose));
            let admission =
                AdmitLease { lease: id, fencing_token, capacity, bound, delivery, tenant, class, data, purpose };
            let record = admission.record(snapshot.now_ms);
            match signed_terms::check(snapshot, lease, &record, &admission.bound, own) {
                SignedTerms::Permit => {}
                SignedTerms::Wait => return,
                SignedTerms::Refuse(code, message) => return steps.push(refuse(lease, code, message)),
            }
            ledger.admit(record);
            steps.push(admission.into());
        }
        Err(message) => steps.push(refuse(lease, LOCAL_POLICY, message)),
    }
}

/// Whether the lease may get its objects and its first credential: its origin's institution is known as well as it has
/// to be, and may borrow. When it was admitted, the origin's voucher may not have been there yet.
fn may_begin(snapshot: &Snapshot<'_>, lease: &Lease, bound: &BoundPeering) -> Result<bool, String> {
    let institution = bound.institution();
    if snapshot.require_vouchers && matches!(institution, Institution::Claimed(_)) {
        return Ok(false);
    }
    snapshot.policy.check_peer(lease.origin.as_str(), institution.name()).map(|()| true)
}

/// When a lease ends by this cluster's own limit.
fn own_end_ms(snapshot: &Snapshot<'_>, record: &DonorRecord) -> Option<u64> {
    snapshot.policy.max_lease_ms().map(|longest| record.admitted_at_ms.saturating_add(longest))
}

fn serve(snapshot: &Snapshot<'_>, lease: &Lease, record: &DonorRecord, bound: &BoundPeering, steps: &mut Vec<Step>) {
    let mut ends_at_ms = match lease.expires_at_ms {
        // Not active yet: the term begins within the hold.
        0 => lease.hold_until_ms.saturating_add(lease.term_ms),
        end => end,
    };
    if let Some(limit) = own_end_ms(snapshot, record) {
        if snapshot.now_ms >= limit && snapshot.is_live {
            steps.push(refuse(
                lease,
                LOCAL_POLICY,
                "the lease has lasted as long as this cluster lends (sharing.maxLeaseSeconds)".to_owned(),
            ));
            return;
        }
        ends_at_ms = ends_at_ms.min(limit);
    }
    if let Some(EndBound { latest_ms, withdrawn }) = signed_terms::end_bound(snapshot, lease, record, bound) {
        match withdrawn {
            Some(reason) if snapshot.now_ms >= latest_ms => {
                return steps.extend(snapshot.is_live.then(|| refuse(lease, SIGNED_POLICY, reason)));
            }
            _ => ends_at_ms = ends_at_ms.min(latest_ms),
        }
    }
    if record.sealed.is_none() {
        if snapshot.signed_policy.lacks_documents() {
            return;
        }
        match may_begin(snapshot, lease, bound) {
            Ok(true) => {}
            Ok(false) => return,
            Err(message) => return steps.push(refuse(lease, LOCAL_POLICY, message)),
        }
    }
    if record.namespace.is_none() {
        let ready = match record.delivery {
            Delivery::Namespace => ExchangeState::Ready,
            Delivery::VirtualNode => exchange_state(snapshot, bound.peering()),
        };
        match ready {
            ExchangeState::Ready => {
                steps.push(PrepareLease { lease: Box::new(lease.clone()), bound: bound.clone(), ends_at_ms }.into());
            }
            ExchangeState::Pending => {}
            ExchangeState::Impossible(code, reason) => steps.push(refuse(lease, code, reason)),
        }
        return;
    }
    let epoch = match bound.epoch(snapshot.binding()) {
        Ok(epoch) => epoch,
        Err(unbound) => return steps.extend(refusal(lease, unbound)),
    };
    if snapshot.is_reported(&ReportKey::Credential(lease.id)) {
        return;
    }
    match &record.sealed {
        Some(sealed) if sealed.epoch == epoch.epoch() && !is_renewal_due(sealed, ends_at_ms, snapshot.now_ms) => {
            if !lease.donor_ready && !snapshot.is_reported(&ReportKey::Ready(lease.id)) {
                steps.push(ReportLease { lease: lease.id, fencing_token: lease.fencing_token }.into());
            }
        }
        sealed => {
            let renewal = sealed.as_ref().is_some_and(|sealed| sealed.epoch == epoch.epoch());
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
