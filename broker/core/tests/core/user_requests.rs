//! Requests and leases of a revoked user.

use comity_core::command::{ApplyPolicy, CheckpointLease, Expire, LeaseOutcome, RevokeUser};
use comity_core::demand::{RequestSpec, Share};
use comity_core::proposal::ProposedReclaim;
use comity_core::reclaim::ReclaimReason;
use comity_core::revocation::{RevocationEffects, UserRevocationEffects};
use comity_core::scheduler::Planner;
use comity_core::{Actor, Command, ReplyBody, explain};
use comity_policy::SourceFile;
use comity_types::{EndReason, LeaseId, LeaseState, LeaseTreatment, RequestState};

use super::federation::{Federation, RIVALS, spec, terms};
use super::reclaim::{MINUTE, at, urgent, yielding};
use super::revocations::{ADMIN, effects, evict, lent, reply_to};
use super::spread::gang;

/// Revokes alice and treats her leases.
pub(super) fn revoke_alice(federation: &mut Federation, leases: LeaseTreatment) -> UserRevocationEffects {
    let command = RevokeUser { user: "alice".to_owned(), allow_unknown: false, leases };
    match federation.ok(Command::RevokeUser(command)).reply {
        Ok(ReplyBody::UserRevoked(effects)) => effects,
        other => panic!("{other:?}"),
    }
}

#[test]
fn requests_of_a_revoked_user_end_as_asked() {
    let own = |leases, requests| Some(RevocationEffects { leases, requests, ..RevocationEffects::default() });
    let (mut federation, request, lease, _) = lent();
    let waiting = federation.submit(spec(64, Share::Whole, "big"));
    let state = |federation: &Federation, id| federation.state.requests[&id].state;
    let done = revoke_alice(&mut federation, LeaseTreatment::Finish);
    assert_eq!((done.leases, done.own), (1, None));
    assert_eq!(federation.state.leases[&lease].state, LeaseState::Active, "it is the tenant's");
    assert_eq!(state(&federation, waiting), RequestState::Queued);

    let done = revoke_alice(&mut federation, LeaseTreatment::Drain);
    assert_eq!((done.leases, done.own), (0, own(1, 1)));
    assert_eq!(state(&federation, waiting), RequestState::Cancelled);
    let reclaim = federation.state.leases[&lease].reclaim.clone().unwrap();
    assert_eq!(federation.state.leases[&lease].state, LeaseState::Reclaiming);
    assert!(reclaim.deadline == reclaim.since.after(reclaim.grace) && reclaim.grace.0 > 0, "{reclaim:?}");
    // Nobody spares it, and its request does not move.
    assert!(comity_core::feasibility::spared(&federation.state).is_empty());
    assert!(federation.place().is_empty());
    federation.now = reclaim.deadline.0;
    federation.ok(Command::Expire(Expire {}));
    assert_eq!(federation.state.leases[&lease].end_reason, Some(EndReason::Cancelled));
    assert_eq!(state(&federation, request), RequestState::Cancelled);
    assert!(federation.place().is_empty());

    let (mut federation, request, lease, _) = lent();
    let done = revoke_alice(&mut federation, LeaseTreatment::Stop);
    assert_eq!((done.leases, done.own), (0, own(1, 0)));
    let held = &federation.state.leases[&lease];
    assert_eq!((held.state, held.end_reason), (LeaseState::Ending, Some(EndReason::Cancelled)));
    assert!(held.message.contains("was revoked"), "{}", held.message);
    assert_eq!(state(&federation, request), RequestState::Cancelled);
}

#[test]
fn a_lease_under_reclaim_does_not_move_once_its_user_is_drained() {
    let (mut federation, request, lease, _) = lent();
    federation.ok(evict("north", LeaseTreatment::Drain));
    let deadline = federation.state.leases[&lease].reclaim.as_ref().unwrap().deadline;
    let moving = federation.place();
    let done = revoke_alice(&mut federation, LeaseTreatment::Drain);
    assert_eq!(done.own.map(|own| (own.leases, own.starting)), Some((1, 1)));
    assert_eq!(federation.state.leases[&moving[0]].state, LeaseState::Ending);
    let reclaim = federation.state.leases[&lease].reclaim.clone().unwrap();
    assert_eq!(reclaim.deadline, deadline, "its notice goes on");
    assert!(federation.place().is_empty());
    federation.now = deadline.0;
    federation.ok(Command::Expire(Expire {}));
    assert_eq!(federation.state.leases[&lease].end_reason, Some(EndReason::Cancelled));
    assert_eq!(federation.state.requests[&request].state, RequestState::Cancelled);
}

type EndsLease = fn(&mut Federation, LeaseId);

#[test]
fn a_drained_request_ends_although_its_donor_fails_first() {
    let ends: [(EndsLease, EndReason); 2] = [
        (|federation, _| drop(federation.ok(evict("north", LeaseTreatment::Stop))), EndReason::DonorRevoked),
        (
            |federation, lease| {
                let failed = LeaseOutcome::Failed { code: "x".into(), message: "y".into(), highest_fencing_token: 0 };
                federation.report_lease("north", lease, failed);
            },
            EndReason::DonorFailed,
        ),
    ];
    for (end, reason) in ends {
        let (mut federation, request, lease, _) = lent();
        revoke_alice(&mut federation, LeaseTreatment::Drain);
        end(&mut federation, lease);
        assert_eq!(federation.state.leases[&lease].end_reason, Some(reason));
        assert_eq!(federation.state.requests[&request].state, RequestState::Cancelled, "{reason}");
        assert!(federation.place().is_empty(), "{reason}");
    }
}

#[test]
fn a_request_keeps_the_room_that_a_drained_lease_was_to_make() {
    let mut federation = Federation::with_preemption();
    let (_, drained) = federation.running(at("south", yielding(4, 0)));
    for _ in 0..4 {
        federation.submit_as("carol", at("north", yielding(4, 0)));
    }
    federation.place().into_iter().for_each(|lease| federation.run(lease));
    federation.now += 10 * MINUTE;
    federation.ok(Command::CheckpointLease(CheckpointLease { lease: drained }));
    let asked = federation.submit_as("bob", urgent(3));
    let reclaims = Planner::default().plan(&federation.state, 10).reclaims;
    let reason = ReclaimReason::Preempted { by: asked };
    assert_eq!(reclaims, [ProposedReclaim { lease: drained, reason }], "its work is saved");
    federation.reclaim(reclaims);

    revoke_alice(&mut federation, LeaseTreatment::Drain);
    let reclaim = federation.state.leases[&drained].reclaim.clone().unwrap();
    assert_eq!(reclaim.reason, ReclaimReason::UserRevoked { by: Some(asked) });
    // No other lease is reclaimed for the request, and nobody passes it.
    federation.submit_as("carol", at("south", spec(1, Share::Whole, "big")));
    let plan = Planner::default().plan(&federation.state, 10);
    assert!(plan.reclaims.is_empty() && plan.placements.is_empty(), "{plan:?}");
    let told = explain::explain_waiting(&federation.state, asked).unwrap();
    assert_eq!(told.reclaims.and_then(|reclaims| reclaims.until()), Some(reclaim.deadline));
    federation.expire_at(reclaim.deadline.0);
    assert_eq!(federation.state.leases[&drained].end_reason, Some(EndReason::Cancelled));
    federation.stop(drained);
    federation.place();
    assert_eq!(federation.state.requests[&asked].state, RequestState::Placed);
}

#[test]
fn a_gang_that_has_not_started_ends_at_once_and_is_counted_so() {
    let with_gang = |active: usize| {
        let mut federation = Federation::ready();
        federation.nodes(2, &[("north", 3), ("south", 2)]);
        let request = federation.submit(gang(4, 4, 6));
        let parts = federation.place();
        assert_eq!(parts.len(), 2);
        parts[..active].iter().for_each(|part| federation.run(*part));
        (federation, request, parts)
    };
    let counts = |done: RevocationEffects| (done.leases, done.starting);
    let (mut federation, request, parts) = with_gang(1);
    let done = revoke_alice(&mut federation, LeaseTreatment::Drain);
    assert_eq!(done.own.map(counts), Some((0, 2)));
    for part in parts {
        assert_eq!(federation.state.leases[&part].end_reason, Some(EndReason::Cancelled));
    }
    assert_eq!(federation.state.requests[&request].state, RequestState::Cancelled);

    let (mut federation, _, parts) = with_gang(1);
    let done = effects(&mut federation, evict("west", LeaseTreatment::Finish));
    assert_eq!(counts(done), (0, 2));
    for part in parts {
        assert_eq!(federation.state.leases[&part].end_reason, Some(EndReason::OriginRevoked));
    }

    // All parts of a gang that runs get the notice.
    let (mut federation, _, parts) = with_gang(2);
    let done = revoke_alice(&mut federation, LeaseTreatment::Drain);
    assert_eq!(done.own.map(counts), Some((2, 0)));
    for part in parts {
        assert_eq!(federation.state.leases[&part].state, LeaseState::Reclaiming);
    }
}

#[test]
fn requests_of_others_survive_the_revocation_of_a_user() {
    let (mut federation, _, lease, _) = lent();
    let command = RevokeUser { user: "bob".to_owned(), allow_unknown: true, leases: LeaseTreatment::Stop };
    federation.ok(Command::RevokeUser(command));
    assert_eq!(federation.state.leases[&lease].state, LeaseState::Active);
}

#[test]
fn an_operator_ends_leases_of_other_institutions() {
    let bobs = "{id: \"spiffe://test.example/user/bob\", role: submitter}";
    let policy = |rivals: String| {
        let contact = "contact: \"ops@west.example\"";
        let operated = format!("{contact}, operators: [\"spiffe://test.example/user/olga\"]");
        let mut source = terms(contact, &operated);
        source.files.push(SourceFile { path: "more.yaml".into(), text: rivals });
        Command::ApplyPolicy(ApplyPolicy { source, force: false, expected_hash: None })
    };
    let both = RIVALS.replace(bobs, &format!("{bobs}, {}", bobs.replace("bob", "alice")));
    let mut federation = Federation::with_rivals();
    federation.ok(policy(both));
    let rivals = |count| RequestSpec { priority: None, ..urgent(count) };
    let (own, own_lease) = federation.running(spec(2, Share::Whole, "big"));
    let (others, others_lease) = federation.running(rivals(2));
    let waiting = [federation.submit(spec(64, Share::Whole, "big")), federation.submit(rivals(64))];
    // alice leaves the rivals, so that all her roles are in the institution that olga operates.
    federation.ok(policy(RIVALS.to_owned()));

    let command = RevokeUser { user: "alice".to_owned(), allow_unknown: false, leases: LeaseTreatment::Stop };
    let counted = |federation: &Federation, user: &str| {
        let own = command.effects(&federation.state, &Actor::User(user.to_owned())).unwrap().own.unwrap();
        (own.leases, own.requests)
    };
    let olga = "spiffe://test.example/user/olga";
    assert_eq!((counted(&federation, olga), counted(&federation, ADMIN)), ((1, 1), (2, 2)));
    let revoked = |federation: &mut Federation, user: &str| {
        reply_to(federation, Actor::User(user.to_owned()), 0, Command::RevokeUser(command.clone())).unwrap();
    };
    let state = |federation: &Federation, id| federation.state.requests[&id].state;
    revoked(&mut federation, olga);
    assert_eq!(federation.state.leases[&own_lease].end_reason, Some(EndReason::Cancelled));
    assert_eq!([own, waiting[0]].map(|id| state(&federation, id)), [RequestState::Cancelled; 2]);
    assert_eq!(federation.state.leases[&others_lease].state, LeaseState::Active);
    assert_eq!([others, waiting[1]].map(|id| state(&federation, id)), [RequestState::Placed, RequestState::Queued]);
    // A maintainer ends those as well.
    revoked(&mut federation, ADMIN);
    assert_eq!(federation.state.leases[&others_lease].end_reason, Some(EndReason::Cancelled));
    assert_eq!(state(&federation, waiting[1]), RequestState::Cancelled);
}
