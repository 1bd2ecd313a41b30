//! Shifts log time and every timestamp made by it. Each type is destructured in full, so that a new timestamp field
//! cannot be forgotten here.

use comity_types::RequestState;

use crate::model::broker_record::BrokerRecord;
use crate::model::cluster::Cluster;
use crate::model::envelope::Envelope;
use crate::model::idempotency::StoredReply;
use crate::model::invite::Invite;
use crate::model::lease::Lease;
use crate::model::meter::Meter;
use crate::model::peering::Peering;
use crate::model::policy_record::PolicyRecord;
use crate::model::provenance::{PolicySource, Provenance, PullFailure};
use crate::model::reclaim::Reclaim;
use crate::model::reply::{Change, ReplyBody};
use crate::model::request::Request;
use crate::model::revocation::{Exclusion, Revocation};
use crate::model::time::Timestamp;
use crate::state::Records;
use crate::state::transition::Transition;

impl Transition<'_> {
    /// Shifts log time and all timestamps made by it by `ms`; `time_shift_ms` is the new sum of all shifts. Times that
    /// people set stay.
    pub(crate) fn rebase(&mut self, ms: i64, time_shift_ms: i64) {
        let revision = self.revision;
        let Records {
            revision: _,
            log_time,
            policy,
            provenance,
            clusters,
            invites,
            requests,
            leases,
            peerings,
            envelopes,
            idempotency,
            fairness,
            reclaims,
            gpu_time,
            last_overdue,
            brokers,
            certificate_generation: _,
            revoked_users,
            // Its times are those of certificates, which nothing moves.
            certificates: _,
            suspensions,
            time_shift_ms: sum_of_shifts,
            term_began,
            // Records of the past keep their times.
            audit: _,
            audit_exported: _,
            nonce_key: _,
            next_request: _,
            next_lease: _,
            next_peering: _,
            derived: _,
        } = &mut self.state.records;
        let changes = &mut self.changes;
        self.touched = true;
        *sum_of_shifts = time_shift_ms;
        for time in [&mut *log_time, last_overdue, term_began] {
            shift(time, ms);
        }
        let now = *log_time;
        for BrokerRecord { role: _, raft_address: _, client_address: _, since } in brokers.values_mut() {
            shift(since, ms);
        }
        for Revocation { void_before: _, at, by: _ } in revoked_users.values_mut() {
            shift(at, ms);
        }
        for Exclusion { since, by: _, by_maintainer: _, leases: _ } in suspensions.values_mut() {
            shift(since, ms);
        }
        if let Some(PolicyRecord { bundle: _, source: _, applied_at, applied_by: _, signed_by: _, removed: _ }) = policy
        {
            shift(applied_at, ms);
        }
        let Provenance { source, commit: _, began: _, artifact: _, taken_names: _ } = provenance;
        if let Some(source) = source {
            shift_source(source, ms);
        }
        for (id, cluster) in clusters.iter_mut() {
            shift_cluster(cluster, ms);
            cluster.revision = revision;
            changes.insert(Change::Cluster(id.clone()));
        }
        for Invite { subject, inviter: _, generation: _, expires_at } in invites.values_mut() {
            shift(expires_at, ms);
            changes.insert(Change::Invite(subject.clone()));
        }
        for (id, request) in requests.iter_mut() {
            shift_request(request, ms, now);
            request.revision = revision;
            changes.insert(Change::Request(*id));
        }
        for (id, lease) in leases.iter_mut() {
            shift_lease(lease, ms);
            lease.revision = revision;
            changes.insert(Change::Lease(*id));
        }
        for (id, peering) in peerings.iter_mut() {
            shift_peering(peering, ms);
            peering.revision = revision;
            changes.insert(Change::Peering(*id));
        }
        for (_, Envelope { key, from: _, encapsulated_key: _, ciphertext: _, expires_at }) in envelopes.iter_mut() {
            shift(expires_at, ms);
            changes.insert(Change::Envelopes(key.to.clone()));
        }
        for (_, record) in idempotency.iter_mut() {
            shift_answer(record, ms);
        }
        fairness.shift(ms);
        reclaims.shift(ms);
        gpu_time.move_back(policy.as_ref().map(|record| &*record.bundle), now);
        self.now = now;
        self.state.rebuild_derived();
        self.tolerate_gpu_time();
    }
}

fn shift(time: &mut Timestamp, ms: i64) {
    *time = time.shifted(ms);
}

fn shift_source(source: &mut PolicySource, ms: i64) {
    let PolicySource {
        repository: _,
        branch: _,
        folder: _,
        interval: _,
        set_by: _,
        set_at,
        head: _,
        artifact: _,
        pulled_at,
        failure,
    } = source;
    shift(set_at, ms);
    shift_any([pulled_at], ms);
    if let Some(PullFailure { code: _, commit: _, reason: _, remedy: _, since }) = failure {
        shift(since, ms);
    }
}

fn shift_any<'t>(times: impl IntoIterator<Item = &'t mut Option<Timestamp>>, ms: i64) {
    for time in times.into_iter().flatten() {
        shift(time, ms);
    }
}

fn shift_cluster(cluster: &mut Cluster, ms: i64) {
    let Cluster {
        institution: _,
        identity_key: _,
        joined_at,
        // The certificate itself contains it.
        certificate_not_after: _,
        void_before: _,
        evicted,
        connected: _,
        since,
        offer: _,
        health,
        withdrawn_generation: _,
        last_fencing_token: _,
        refused_donors,
        revision: _,
    } = cluster;
    refused_donors.values_mut().for_each(|at| shift(at, ms));
    shift(joined_at, ms);
    shift(since, ms);
    if let Some(Exclusion { since, by: _, by_maintainer: _, leases: _ }) = evicted {
        shift(since, ms);
    }
    health.shift(ms);
}

/// People set start windows, so the shift may close a window that was open.
fn shift_request(request: &mut Request, ms: i64, now: Timestamp) {
    let Request {
        spec,
        state,
        lease: _,
        parts: _,
        submitted_at,
        traceparent: _,
        attempts: _,
        reclaims: _,
        failed_donors: _,
        early,
        retry_at,
        room_at: _,
        message,
        revision: _,
    } = request;
    shift(submitted_at, ms);
    retry_at.iter_mut().for_each(|time| shift(time, ms));
    let closed = spec.not_before.is_some_and(|opens| opens > now);
    if *state == RequestState::Queued && closed && !*early {
        *early = true;
        "waiting for its start window".clone_into(message);
    }
}

fn shift_lease(lease: &mut Lease, ms: i64) {
    let Lease {
        request: _,
        tenant: _,
        submitted_by: _,
        origin: _,
        placement: _,
        peering: _,
        gpus: _,
        topology: _,
        data: _,
        purpose: _,
        delivery: _,
        class: _,
        institution: _,
        agreement: _,
        term: _,
        state: _,
        end_reason: _,
        fencing_token: _,
        placed_at,
        hold_until,
        ends_by,
        meter,
        active_at,
        expires_at,
        ended_at,
        donor_side: _,
        origin_side: _,
        donor_namespace: _,
        target_namespace: _,
        secret_name: _,
        traceparent: _,
        reclaim,
        checkpointed_at,
        moved_from: _,
        moved_to: _,
        joins: _,
        release_idle: _,
        idle_since,
        ending_at,
        message: _,
        revision: _,
    } = lease;
    shift(placed_at, ms);
    shift(hold_until, ms);
    if let Meter::Counts { since } = meter {
        shift(since, ms);
    }
    shift_any([ends_by, active_at, expires_at, ended_at, checkpointed_at, idle_since, ending_at], ms);
    if let Some(Reclaim { reason: _, since, grace: _, deadline }) = reclaim {
        shift(since, ms);
        shift(deadline, ms);
    }
}

fn shift_peering(peering: &mut Peering, ms: i64) {
    let Peering {
        origin: _,
        donor: _,
        state: _,
        epoch: _,
        deadline,
        retry_at,
        failures: _,
        origin_keys: _,
        donor_keys: _,
        established: _,
        closed: _,
        leases: _,
        idle_since,
        rtt_us: _,
        message: _,
        revision: _,
    } = peering;
    shift_any([deadline, retry_at, idle_since], ms);
}

fn shift_answer(record: &mut StoredReply, ms: i64) {
    let StoredReply { institution: _, body_sha256: _, reply, at } = record;
    shift(at, ms);
    match reply {
        Ok(ReplyBody::Invited { subject: _, expires_at }) => shift(expires_at, ms),
        Ok(
            // The certificate itself contains its end.
            ReplyBody::Certificate { .. }
            | ReplyBody::Revoked(_)
            | ReplyBody::UserRevoked(_)
            | ReplyBody::Done
            | ReplyBody::BrokerJoined { .. }
            | ReplyBody::Request(_)
            | ReplyBody::Lease(_)
            | ReplyBody::Policy { .. }
            | ReplyBody::Placed { .. }
            | ReplyBody::Reclaimed { .. }
            | ReplyBody::Expired { .. },
        )
        | Err(_) => {}
    }
}
