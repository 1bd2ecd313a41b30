//! A new leader's term after an outage, and rebases of log time.

use comity_audit::NonceKey;
use comity_core::command::{BeginTerm, Expire, InviteCluster, RebaseTime};
use comity_core::demand::{RequestSpec, Share};
use comity_core::log::LogEnvelope;
use comity_core::refusal::Code;
use comity_core::{Command, Millis, ReplyBody, State, Timestamp, scheduler, snapshot};
use comity_types::{LeaseId, LeaseState};
use proptest::prelude::*;

use super::determinism::{event, happen};
use super::federation::{Federation, cluster, spec};

const MINUTE: u64 = 60_000;
const HOUR: u64 = 60 * MINUTE;

fn begins(federation: &mut Federation, outage: u64) {
    federation.ok(Command::BeginTerm(BeginTerm { broker: 2, outage: Millis(outage), nonce_key: NonceKey::default() }));
}

fn rebased(federation: &mut Federation, by_ms: i64) {
    let from_shift_ms = federation.state.time_shift_ms;
    federation.ok(Command::RebaseTime(RebaseTime { from_shift_ms, by_ms }));
}

/// A federation with an active lease of half an hour.
fn active() -> (Federation, LeaseId) {
    let (mut federation, _, lease, peering) = Federation::placed();
    federation.shake_hands(peering, 1);
    federation.activate(lease);
    (federation, lease)
}

fn end(federation: &Federation, lease: LeaseId) -> Timestamp {
    federation.state.leases[&lease].expires_at.unwrap()
}

#[test]
fn a_change_of_the_leader_on_an_idle_federation_changes_no_term() {
    let (mut federation, lease) = active();
    let before = end(&federation, lease);
    federation.now += 20 * MINUTE;
    begins(&mut federation, 800);
    assert_eq!(end(&federation, lease), before);
    federation.now += 10 * MINUTE;
    federation.ok(Command::Expire(Expire {}));
    assert_eq!(federation.state.leases[&lease].state, LeaseState::Ending);
}

#[test]
fn after_an_outage_every_lease_is_lengthened_by_its_length() {
    let (mut federation, lease) = active();
    let (before, term) = (end(&federation, lease), federation.state.leases[&lease].term);
    federation.now += 25 * MINUTE;
    federation.ok(Command::Expire(Expire {}));
    // All brokers are down past the lease's end; the first command of the new leader comes before any expiry.
    federation.now += 5 * HOUR;
    begins(&mut federation, 5 * HOUR);
    federation.ok(Command::Expire(Expire {}));
    assert_eq!(federation.state.leases[&lease].state, LeaseState::Active);
    assert_eq!(end(&federation, lease), before.after(Millis(5 * HOUR)));
    assert_eq!(federation.state.leases[&lease].term, term);
}

#[test]
fn one_outage_counts_once_though_two_leaders_report_it() {
    let (mut federation, lease) = active();
    let before = end(&federation, lease);
    federation.now += 10 * MINUTE;
    begins(&mut federation, 5 * MINUTE);
    federation.now += 1_000;
    begins(&mut federation, 5 * MINUTE + 1_000);
    assert_eq!(end(&federation, lease), before.after(Millis(5 * MINUTE)));
}

#[test]
fn an_outage_of_unknown_length_gives_no_more_than_a_full_term() {
    let (mut federation, lease) = active();
    federation.now += 20 * MINUTE;
    begins(&mut federation, u64::MAX);
    let (now, term) = (federation.state.log_time, federation.state.leases[&lease].term);
    assert_eq!(end(&federation, lease), now.after(term));
}

#[test]
fn holds_and_handshake_steps_are_lengthened_and_ending_leases_are_not() {
    let (mut federation, _, lease, peering) = Federation::placed();
    let (held, step) = (federation.state.leases[&lease].hold_until, federation.state.peerings[&peering].deadline);
    federation.now += MINUTE;
    begins(&mut federation, 10_000);
    assert_eq!(federation.state.leases[&lease].hold_until, held.after(Millis(10_000)));
    assert_eq!(federation.state.peerings[&peering].deadline, step.map(|step| step.after(Millis(10_000))));

    federation.ok(Command::ReleaseLease(comity_core::command::ReleaseLease { lease }));
    let ending = federation.state.leases[&lease].clone();
    federation.now += MINUTE;
    begins(&mut federation, 10_000);
    assert_eq!(federation.state.leases[&lease], ending);
}

#[test]
fn a_rebase_moves_log_time_both_ways_and_keeps_remaining_times() {
    for by in [10 * 365 * 24 * HOUR as i64, -(15 * MINUTE as i64)] {
        let (mut federation, lease) = active();
        let left = end(&federation, lease).since(federation.state.log_time);
        let before = federation.state.log_time;
        rebased(&mut federation, by);
        // The entry itself comes a millisecond later.
        assert_eq!(federation.state.log_time, Timestamp(before.0 + 1).shifted(by));
        assert_eq!(end(&federation, lease).since(federation.state.log_time).0, left.0 - 1);
        federation.ok(Command::Expire(Expire {}));
        assert_eq!(federation.state.leases[&lease].state, LeaseState::Active);
        federation.now += 30 * MINUTE;
        federation.ok(Command::Expire(Expire {}));
        assert_eq!(federation.state.leases[&lease].state, LeaseState::Ending, "time goes on from there");
    }
}

#[test]
fn an_entry_stamped_before_a_rebase_and_stored_after_it_moves_nothing() {
    let (mut federation, lease) = active();
    let late = LogEnvelope { time: Timestamp(federation.now + 2), ..federation.log.last().unwrap().clone() };
    rebased(&mut federation, -(10 * MINUTE as i64));
    let left = end(&federation, lease).since(federation.state.log_time);
    federation.state.apply(&late).unwrap();
    assert!(left.0 - end(&federation, lease).since(federation.state.log_time).0 <= 1);
}

#[test]
fn a_rebase_counts_once_and_never_overflows() {
    let (mut federation, _) = active();
    let command = Command::RebaseTime(RebaseTime { from_shift_ms: 0, by_ms: 5_000 });
    federation.ok(command.clone());
    assert_eq!(federation.refused(command).code, Code::WrongState);
    assert_eq!(federation.state.time_shift_ms, 5_000);
    for by_ms in [i64::MIN, -i64::try_from(federation.state.log_time.0).unwrap() - 5_000] {
        let refusal = federation.refused(Command::RebaseTime(RebaseTime { from_shift_ms: 5_000, by_ms }));
        assert_eq!((refusal.code, refusal.field.as_str()), (Code::InvalidField, "by_ms"));
    }
}

#[test]
fn start_windows_keep_their_meaning_over_a_rebase() {
    let mut federation = Federation::ready();
    let now = federation.now;
    let window = RequestSpec {
        not_before: Some(Timestamp(now + HOUR)),
        start_by: Some(Timestamp(now + 3 * HOUR)),
        ..spec(1, Share::Whole, "big")
    };
    let request = federation.submit(window.clone());
    rebased(&mut federation, 2 * HOUR as i64);
    federation.ok(Command::Expire(Expire {}));
    assert!(!federation.state.requests[&request].early, "it is past the time that its owner wrote");
    rebased(&mut federation, -(2 * HOUR as i64));
    assert!(federation.state.requests[&request].early);
    assert!(scheduler::plan(&federation.state, 8).placements.is_empty());
    assert_eq!(federation.state.requests[&request].spec.start_by, window.start_by);
    rebased(&mut federation, 4 * HOUR as i64);
    federation.ok(Command::Expire(Expire {}));
    federation.ok(Command::Expire(Expire {}));
    assert_eq!(federation.state.requests[&request].state, comity_types::RequestState::Failed);
}

/// All times that brokers stamped, by object.
fn stamps(state: &State) -> Vec<(String, Timestamp)> {
    let mut stamps = Vec::new();
    let mut note = |name: String, times: &[Option<Timestamp>]| {
        stamps.extend(times.iter().flatten().map(|time| (name.clone(), *time)));
    };
    for (id, lease) in &state.leases {
        let ends = [lease.active_at, lease.expires_at, lease.ended_at, lease.checkpointed_at, lease.ending_at];
        note(format!("{id}"), &[Some(lease.placed_at), Some(lease.hold_until)]);
        note(format!("{id}"), &ends);
        let notice = lease.reclaim.as_ref().map(|reclaim| [Some(reclaim.since), Some(reclaim.deadline)]);
        note(format!("{id} notice"), &notice.unwrap_or_default());
    }
    for (id, peering) in &state.peerings {
        note(format!("{id}"), &[peering.deadline, peering.retry_at, peering.idle_since]);
    }
    for (key, envelope) in &state.envelopes {
        note(format!("{key:?}"), &[Some(envelope.expires_at)]);
    }
    for (id, request) in &state.requests {
        note(format!("{id}"), &[Some(request.submitted_at)]);
    }
    for (name, record) in &state.idempotency {
        note(format!("answer {name}"), &[Some(record.at)]);
    }
    for (id, member) in &state.clusters {
        note(format!("{id}"), &[Some(member.joined_at), Some(member.since)]);
        member.refused_donors.values().for_each(|at| note(format!("{id} refused"), &[Some(*at)]));
        for (node, health) in member.health.nodes() {
            note(format!("{id} {node}"), &[health.until(), health.gone_since]);
        }
    }
    stamps
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 32, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn no_remaining_time_changes_when_log_time_is_rebased(
        events in proptest::collection::vec((event(), prop_oneof![8 => 0..2_000_u64, 1 => 0..70_000_u64]), 1..60),
        by in prop_oneof![-50_000..50_000_i64, Just(315_360_000_000_i64)],
    ) {
        let mut federation = happen(&events);
        // Makes up for the millisecond by which the next entry advances time.
        federation.ok(Command::Expire(Expire {}));
        federation.now -= 1;
        let before = (stamps(&federation.state), federation.state.next_due(), federation.state.log_time);
        let windows = |state: &State| {
            state.requests.values().map(|held| (held.spec.not_before, held.spec.start_by)).collect::<Vec<_>>()
        };
        let written = windows(&federation.state);
        rebased(&mut federation, by);
        let state = &federation.state;
        prop_assert_eq!(state.log_time, before.2.shifted(by));
        let wanted: Vec<_> = before.0.into_iter().map(|(name, time)| (name, time.shifted(by))).collect();
        prop_assert_eq!(stamps(state), wanted);
        prop_assert_eq!(windows(state), written);
        let restored = snapshot::decode(&snapshot::encode(state).unwrap()).unwrap();
        prop_assert_eq!(restored.next_due(), state.next_due());
    }
}

#[test]
fn join_tokens_keep_the_time_they_have_left() {
    let (mut federation, _) = active();
    let applied = federation.ok(Command::InviteCluster(InviteCluster {
        cluster: cluster("south"),
        secret_sha256: "0".repeat(64),
        ttl: Millis(HOUR),
        replace: true,
    }));
    let Ok(ReplyBody::Invited { expires_at, .. }) = applied.reply else { panic!("{applied:?}") };
    let now = federation.state.log_time;
    federation.now -= 1;
    rebased(&mut federation, -(10 * MINUTE as i64));
    let after = federation.state.invites.values().next().unwrap().expires_at;
    assert_eq!(after.since(federation.state.log_time), expires_at.since(now));
}
