//! The audit log: every decision on a request or lease, and every administrative act, has a record that no history can
//! be without.

use std::collections::BTreeMap;

use comity_audit::{ACTS, AuditRecord, Entry, NonceKey, SealedRecord, Verifier};
use comity_core::command::{
    BeginTerm, CancelRequest, Expire, ReclaimLeases, RecordAuditExport, ReleaseLease, ResumeInstitution, SubmitRequest,
    SuspendInstitution,
};
use comity_core::demand::Share;
use comity_core::log::LOG_FORMAT;
use comity_core::refusal::Code;
use comity_core::reply::Idempotency;
use comity_core::{Actor, Applied, Command, LogEnvelope, Millis, State, Timestamp, scheduler};
use comity_types::LeaseTreatment;
use comity_types::{InstitutionId, LeaseId, LeaseState, RequestId, RequestState};
use proptest::prelude::*;

use super::determinism::{event, happen};
use super::federation::{Federation, spec};
use super::reclaim::{GRACE, urgent, yielding};

const ADMIN: &str = "spiffe://test.example/user/admin";
const ALICE: &str = "spiffe://test.example/user/alice";

fn record(sealed: &SealedRecord) -> AuditRecord {
    match Entry::parse(&sealed.line).unwrap() {
        Entry::Record(record, parsed) => {
            assert_eq!(parsed, *sealed);
            *record
        }
        Entry::Withheld { .. } => panic!("{}", sealed.line),
    }
}

fn records(applied: &Applied) -> Vec<AuditRecord> {
    applied.audit.iter().map(record).collect()
}

/// "act subject" of each record.
fn acts(applied: &Applied) -> Vec<String> {
    records(applied).iter().map(|record| format!("{} {}", record.act, record.subject.id)).collect()
}

/// "kind name:line" of each citation.
fn cites(record: &AuditRecord) -> Vec<String> {
    record.reasons.iter().map(|cited| format!("{} {}:{}", cited.kind, cited.name, cited.line)).collect()
}

fn apply_as(federation: &mut Federation, user: &str, key: Option<&str>, command: Command) -> Applied {
    federation.now += 1;
    let entry = LogEnvelope {
        format: LOG_FORMAT,
        actor: Actor::User(user.to_owned()),
        generation: federation.state.certificate_generation,
        time: Timestamp(federation.now),
        traceparent: String::new(),
        idempotency: key.map(|key| Idempotency {
            caller: user.to_owned(),
            key: key.to_owned(),
            body_sha256: "ab".to_owned(),
        }),
        command,
    };
    federation.state.apply(&entry).unwrap()
}

/// What an entry decided about requests and leases, from the states before and after it: id and act.
fn decisions(before: &State, after: &State) -> Vec<(String, &'static str)> {
    let mut decided = Vec::new();
    for (id, request) in &after.requests {
        let was = before.requests.get(id).map(|request| request.state);
        if was.is_none() {
            decided.push((id.to_string(), "request-submitted"));
        }
        match request.state {
            now if was.unwrap_or(RequestState::Queued) == now => {}
            RequestState::Queued => decided.push((id.to_string(), "request-queued-again")),
            RequestState::Completed => decided.push((id.to_string(), "request-completed")),
            RequestState::Cancelled => decided.push((id.to_string(), "request-cancelled")),
            RequestState::Failed => decided.push((id.to_string(), "request-failed")),
            RequestState::Placed => {}
        }
    }
    for (id, lease) in &after.leases {
        let was = before.leases.get(id);
        if was.is_none() {
            decided.push((id.to_string(), "lease-placed"));
        }
        let state = was.map(|lease| lease.state);
        let reason = was.and_then(|lease| lease.reclaim.as_ref()).map(|reclaim| &reclaim.reason);
        let reason_now = lease.reclaim.as_ref().map(|reclaim| &reclaim.reason);
        match (state, lease.state) {
            (Some(LeaseState::Reclaiming), LeaseState::Reclaiming) if reason == reason_now => {}
            (_, LeaseState::Reclaiming) => decided.push((id.to_string(), "lease-reclaimed")),
            (Some(LeaseState::Reclaiming), LeaseState::Active | LeaseState::Suspect) => {
                decided.push((id.to_string(), "lease-reclaim-cancelled"));
            }
            (Some(LeaseState::Ending | LeaseState::Ended), _) => {}
            (_, LeaseState::Ending | LeaseState::Ended) => decided.push((id.to_string(), "lease-ended")),
            _ => {}
        }
    }
    decided
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 32, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn every_decision_has_a_record_and_all_replicas_have_the_same(
        events in proptest::collection::vec((event(), prop_oneof![8 => 0..2_000_u64, 1 => 0..700_000_u64]), 1..90)
    ) {
        let federation = happen(&events);
        let (mut state, mut replica, mut verifier) = (State::default(), State::default(), Verifier::default());
        for entry in &federation.log {
            let before = state.clone();
            let applied = state.apply(entry).unwrap();
            prop_assert_eq!(&applied.audit, &replica.apply(entry).unwrap().audit);
            let made = records(&applied);
            for (subject, act) in decisions(&before, &state) {
                let found = made.iter().any(|record| record.subject.id == subject && record.act == act);
                prop_assert!(found, "{} has no record of {act} {subject}: {made:?}", entry.command.name());
            }
            for sealed in &applied.audit {
                verifier.push(&Entry::parse(&sealed.line).unwrap()).unwrap();
            }
            for record in &made {
                prop_assert_eq!((record.time_ms, record.revision), (state.log_time.0, state.revision));
                prop_assert_eq!(&record.actor, &entry.actor.name());
            }
        }
        prop_assert_eq!(verifier.head_at(verifier.size()), Some(state.audit.tree_head()));
        prop_assert_eq!(&state.audit, &federation.state.audit);
    }
}

#[test]
fn a_lease_has_a_record_for_each_decision_with_the_lines_behind_it() {
    let mut federation = Federation::ready();
    let submit = SubmitRequest { spec: spec(2, Share::Whole, "big"), submitted_by: ALICE.to_owned() };
    let submitted = apply_as(&mut federation, ALICE, None, Command::SubmitRequest(submit));
    assert_eq!(acts(&submitted), ["request-submitted req-1"]);
    let record = &records(&submitted)[0];
    assert_eq!(cites(record), ["Tenant team:45", "Tenant team:47", "Tenant team:46"]);
    assert_eq!((record.actor.as_str(), record.outcome.as_str()), (ALICE, "done"));
    assert_eq!((record.tenant.as_str(), &record.institutions[..]), ("team", &["western".to_owned()][..]));
    assert_eq!(record.policy, federation.state.policy.as_ref().unwrap().bundle.hash);

    let placements = scheduler::plan(&federation.state, 8).placements;
    let placed = federation.ok(Command::PlaceRequests(comity_core::command::PlaceRequests { placements }));
    assert_eq!(acts(&placed), ["lease-placed lease-1"]);
    let record = &records(&placed)[0];
    assert_eq!(record.request, "req-1");
    assert_eq!(record.institutions, ["lenders", "western"]);
    let cited: Vec<&str> = record.reasons.iter().map(|cited| cited.kind.as_str()).collect();
    assert_eq!(cited, ["Tenant", "Cluster", "Agreement", "Cluster"]);
    assert!(cites(record).contains(&"Agreement loan:52".to_owned()), "{:?}", cites(record));

    let release = Command::ReleaseLease(ReleaseLease { lease: LeaseId(1) });
    let released = apply_as(&mut federation, ALICE, None, release.clone());
    assert_eq!(acts(&released), ["lease-ended lease-1", "request-completed req-1"]);
    let causes: Vec<String> = records(&released).into_iter().map(|record| record.cause).collect();
    assert_eq!(causes, ["released", "its lease ended: released"]);
    assert_eq!(acts(&apply_as(&mut federation, ALICE, None, release)), [""; 0], "nothing more ends");
}

#[test]
fn a_withdrawn_permission_and_a_preemption_cite_the_policy_behind_them() {
    let mut federation = Federation::ready();
    let (_, lease) = federation.running(spec(1, Share::Whole, "big"));
    federation.with_terms("borrowers: [western]", "borrowers: [lenders]");
    let donor = federation.state.leases[&lease].placement.donor.clone();
    let reclaims = scheduler::reclaims_at(&federation.state, &donor, federation.state.log_time);
    let applied = federation.ok(Command::ReclaimLeases(ReclaimLeases { spare: Vec::new(), reclaims }));
    assert_eq!(acts(&applied), [format!("lease-reclaimed {lease}")]);
    let record = &records(&applied)[0];
    assert_eq!(record.cause, "policy does not allow it any more (no-agreement)");
    assert_eq!(cites(record).last().map(String::as_str), Some("Federation test:4"));
    federation.now += GRACE;
    let ended = federation.ok(Command::Expire(Expire {}));
    assert_eq!(records(&ended)[0].cause, "reclaimed: policy does not allow it any more (no-agreement)");

    let mut federation = Federation::with_preemption();
    for shares in [8, 8, 4] {
        federation.running(yielding(shares, 0));
    }
    federation.submit(urgent(8));
    let reclaims = scheduler::plan(&federation.state, 8).reclaims;
    let applied = federation.ok(Command::ReclaimLeases(ReclaimLeases { spare: Vec::new(), reclaims }));
    let preempted = records(&applied).into_iter().find(|record| record.act == "lease-reclaimed").expect("a victim");
    assert_eq!(preempted.cause, "req-4 of higher priority needs its place");
    let cited: Vec<String> = preempted.reasons.iter().map(|cited| format!("{} {}", cited.kind, cited.name)).collect();
    assert_eq!(cited, ["PriorityClass urgent", "PriorityClass normal", "Federation test"]);
}

#[test]
fn administrative_acts_name_who_may_do_them_by_which_line() {
    let mut federation = Federation::ready();
    let institution = InstitutionId::parse("lenders", "institution").unwrap();
    let suspend = SuspendInstitution { institution: institution.clone(), leases: LeaseTreatment::Drain };
    let suspended = apply_as(&mut federation, ADMIN, None, Command::SuspendInstitution(suspend));
    let record = &records(&suspended)[0];
    assert_eq!((record.act.as_str(), record.subject.id.as_str()), ("institution-suspended", "lenders"));
    assert_eq!((record.outcome.as_str(), record.cause.as_str()), ("done", "leases: drain"));
    assert_eq!(cites(record), ["Federation test:7"]);
    assert_eq!(record.institutions, ["lenders"]);

    // Who may not is recorded, too, and changes nothing but the log.
    let resume = Command::ResumeInstitution(ResumeInstitution { institution });
    let before = (federation.state.revision, federation.state.audit.size());
    let refused = apply_as(&mut federation, ALICE, None, resume.clone());
    let record = &records(&refused)[0];
    assert_eq!((record.act.as_str(), record.outcome.as_str()), ("institution-resumed", "permission-denied"));
    assert_eq!((record.actor.as_str(), cites(record)), (ALICE, Vec::new()));
    assert_eq!((federation.state.revision, federation.state.audit.size()), (before.0, before.1 + 1));
    assert_eq!(acts(&apply_as(&mut federation, ADMIN, None, resume)), ["institution-resumed lenders"]);
}

#[test]
fn a_repeated_call_is_recorded_once() {
    let mut federation = Federation::ready();
    let submit = SubmitRequest { spec: spec(1, Share::Whole, "big"), submitted_by: ALICE.to_owned() };
    let counts: Vec<usize> = (0..2)
        .map(|_| apply_as(&mut federation, ALICE, Some("1"), Command::SubmitRequest(submit.clone())).audit.len())
        .collect();
    assert_eq!(counts, [1, 0]);
    let missing = Command::CancelRequest(CancelRequest { request: RequestId(9) });
    let refused = apply_as(&mut federation, ALICE, None, missing);
    assert_eq!(records(&refused)[0].outcome, "not-found");
}

#[test]
fn the_golden_log_records_every_kind_of_act() {
    let text = include_str!("../data/log-1.json");
    let (mut state, mut seen) = (State::default(), BTreeMap::<String, usize>::new());
    for line in text.lines() {
        let applied = state.apply(&serde_json::from_str(line).unwrap()).unwrap();
        for record in records(&applied) {
            *seen.entry(record.act).or_default() += 1;
            let known = [&record.actor, &record.command, &record.subject.kind, &record.outcome];
            assert!(known.iter().all(|text| !text.is_empty()), "{}", record.index);
        }
    }
    // The log has no lease that fails or is spared.
    let absent = ["lease-reclaim-cancelled", "request-failed", "request-queued-again"];
    let expected: Vec<&str> = ACTS.into_iter().filter(|act| !absent.contains(act)).collect();
    assert_eq!(seen.keys().map(String::as_str).collect::<Vec<_>>(), expected);
}

#[test]
fn each_record_has_the_nonce_of_its_number_and_of_the_leaders_key() {
    let nonce_of = |nonce_key: NonceKey| {
        let mut federation = Federation::ready();
        federation.ok(Command::BeginTerm(BeginTerm { broker: 1, outage: Millis(0), nonce_key }));
        let submitted = Command::SubmitRequest(SubmitRequest {
            spec: spec(1, Share::Whole, "big"),
            submitted_by: ALICE.to_owned(),
        });
        let applied = apply_as(&mut federation, ALICE, None, submitted);
        let record = records(&applied).remove(0);
        assert_eq!(record.nonce, nonce_key.nonce(record.index));
        record.nonce
    };
    assert_ne!(nonce_of(NonceKey::of_bytes([1; 32])), nonce_of(NonceKey::of_bytes([2; 32])));
}

#[test]
fn what_a_collector_has_only_grows_and_is_within_the_log() {
    let mut federation = Federation::ready();
    let size = federation.state.audit.size();
    assert!(size > 1);
    let export = |until| Command::RecordAuditExport(RecordAuditExport { until });
    for (until, recorded) in [(size - 1, size - 1), (1, size - 1), (size, size)] {
        assert_eq!(federation.ok(export(until)).audit, []);
        assert_eq!(federation.state.audit_exported, recorded);
    }
    assert_eq!(federation.refused(export(size + 1)).field, "until");
    let by_user = apply_as(&mut federation, ADMIN, None, export(size)).reply.unwrap_err();
    assert_eq!(by_user.code, Code::PermissionDenied);
    assert_eq!(federation.state.audit_exported, size);
}
