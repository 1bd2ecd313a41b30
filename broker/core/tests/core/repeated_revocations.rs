//! Evictions and suspensions that are repeated, and what is left open of them.

use comity_core::command::{EvictCluster, LeaseOutcome, MarkClusters, ReclaimLeases, SuspendInstitution};
use comity_core::refusal::Code;
use comity_core::{Actor, Command};
use comity_types::{EndReason, InstitutionId, LeaseId, LeaseState, LeaseTreatment};

use super::federation::{Federation, cluster};
use super::revocations::{ADMIN, effects, evict, lent, refusal_of, replace, resume, suspend};

/// `west` with an operator, olga, uses a lease on `north`.
fn lent_with_operator() -> (Federation, LeaseId) {
    let (mut federation, _, lease, _) = lent();
    federation.with_terms(
        "contact: \"ops@west.example\"",
        "contact: \"ops@west.example\", operators: [\"spiffe://test.example/user/olga\"]",
    );
    (federation, lease)
}

fn olga() -> Actor {
    Actor::User("spiffe://test.example/user/olga".to_owned())
}

fn admin() -> Actor {
    Actor::User(ADMIN.to_owned())
}

#[test]
fn an_operators_eviction_cannot_be_tightened_by_a_maintainer() {
    let (mut federation, lease) = lent_with_operator();
    assert_eq!(refusal_of(&mut federation, olga(), evict("west", LeaseTreatment::Finish)), None);
    let [invite, join] = replace("west", "by-olga", "ed25519:west");
    assert_eq!(refusal_of(&mut federation, olga(), invite.clone()), None);
    assert_eq!(federation.state.leases[&lease].state, LeaseState::Suspect, "it runs on");
    let preview = EvictCluster { cluster: cluster("west"), leases: LeaseTreatment::Stop };
    let preview = preview.effects(&federation.state, &admin()).unwrap();
    assert_eq!((preview.leases, preview.invitations), (1, 1));

    assert_eq!(refusal_of(&mut federation, admin(), evict("west", LeaseTreatment::Stop)), None);
    assert_eq!(federation.state.leases[&lease].end_reason, Some(EndReason::OriginRevoked));
    assert_eq!(federation.refused(join).code, Code::InvalidToken, "open invitations are void");
    let refusal = refusal_of(&mut federation, olga(), invite).unwrap();
    assert_eq!(refusal.code, Code::PermissionDenied, "the eviction is the maintainer's now");
    let again = refusal_of(&mut federation, admin(), evict("west", LeaseTreatment::Stop)).unwrap();
    assert!(again.reason.contains("evicted already, by spiffe://test.example/user/admin"), "{again}");
    assert!(again.remedy.contains("wait: its leases were told to stop"), "{again}");
    federation.report_lease("north", lease, LeaseOutcome::Clean);
    let again = refusal_of(&mut federation, admin(), evict("west", LeaseTreatment::Stop)).unwrap();
    assert!(again.remedy.contains("its leases have ended"), "{again}");
}

#[test]
fn a_repeated_eviction_only_tightens() {
    let (mut federation, lease) = lent_with_operator();
    assert_eq!(refusal_of(&mut federation, olga(), evict("west", LeaseTreatment::Drain)), None);
    let since = federation.state.clusters[&cluster("west")].evicted.clone().unwrap().since;
    for leases in [LeaseTreatment::Finish, LeaseTreatment::Drain] {
        let refusal = refusal_of(&mut federation, olga(), evict("west", leases)).unwrap();
        assert_eq!((refusal.code, refusal.field.as_str()), (Code::WrongState, "cluster"), "{refusal}");
        assert!(refusal.reason.ends_with("with `--leases drain`"), "{refusal}");
        assert!(refusal.remedy.contains("choose `--leases stop`"), "{refusal}");
    }
    let refusal = refusal_of(&mut federation, admin(), evict("west", LeaseTreatment::Finish)).unwrap();
    assert!(refusal.remedy.contains("evict it with `--leases drain` or tighter"), "{refusal}");
    assert_eq!(refusal_of(&mut federation, admin(), evict("west", LeaseTreatment::Drain)), None, "takes it over");
    assert_eq!(federation.state.leases[&lease].state, LeaseState::Reclaiming, "its notice goes on");

    // What a maintainer evicted stays a maintainer's, also if an operator tightens it.
    assert_eq!(refusal_of(&mut federation, olga(), evict("west", LeaseTreatment::Stop)), None);
    assert_eq!(federation.state.leases[&lease].state, LeaseState::Ending);
    let evicted = federation.state.clusters[&cluster("west")].evicted.clone().unwrap();
    assert_eq!((evicted.since, evicted.by_maintainer, evicted.by.as_str()), (since, true, ADMIN));
    assert_eq!(evicted.leases, LeaseTreatment::Stop);
}

#[test]
fn a_repeated_suspension_only_tightens() {
    let (mut federation, _, lease, _) = lent();
    federation.ok(suspend("western", LeaseTreatment::Finish));
    assert_eq!(federation.state.leases[&lease].state, LeaseState::Suspect);
    let refusal = federation.refused(suspend("western", LeaseTreatment::Finish));
    assert!(refusal.remedy.contains("choose `--leases drain` or `--leases stop`"), "{refusal}");
    federation.ok(suspend("western", LeaseTreatment::Drain));
    assert_eq!(federation.state.leases[&lease].state, LeaseState::Reclaiming);
    assert_eq!(federation.refused(suspend("western", LeaseTreatment::Finish)).code, Code::WrongState);
    let done = effects(&mut federation, suspend("western", LeaseTreatment::Stop));
    assert_eq!(done.leases, 1);
    assert_eq!(federation.state.leases[&lease].state, LeaseState::Ending);
    assert_eq!(federation.refused(suspend("western", LeaseTreatment::Drain)).code, Code::WrongState);
    federation.ok(resume("western"));
    federation.ok(suspend("western", LeaseTreatment::Finish));
}

#[test]
fn open_invitations_outlive_a_suspension() {
    let (mut federation, _) = lent_with_operator();
    let [by_olga, join] = replace("west", "by-olga", "ed25519:thief");
    let [by_admin, other_join] = replace("west", "by-admin", "ed25519:thief");
    let [north, north_join] = replace("north", "north", "ed25519:north");
    assert_eq!(refusal_of(&mut federation, olga(), by_olga), None);
    for invite in [by_admin, north] {
        assert_eq!(refusal_of(&mut federation, admin(), invite), None);
    }
    let command = SuspendInstitution {
        institution: InstitutionId::parse("western", "institution").unwrap(),
        leases: LeaseTreatment::Finish,
    };
    assert_eq!(command.effects(&federation.state, &admin()).unwrap().invitations, 2);
    let done = effects(&mut federation, Command::SuspendInstitution(command));
    assert_eq!(done.invitations, 2);
    federation.ok(resume("western"));
    for join in [join, other_join] {
        assert_eq!(federation.refused(join).code, Code::InvalidToken);
    }
    federation.ok(north_join);
}

#[test]
fn a_request_whose_drain_ended_names_no_replacement() {
    let (mut federation, request, lease, _) = lent();
    federation.ok(evict("north", LeaseTreatment::Drain));
    let next = federation.place();
    let message = |federation: &Federation| federation.state.requests[&request].message.clone();
    assert_eq!(message(&federation), format!("{} is to replace {lease}, which is being reclaimed", next[0]));
    for command in replace("north", "back", "ed25519:north") {
        federation.ok(command);
    }
    federation.ok(Command::MarkClusters(MarkClusters { heard: vec![cluster("north")], silent: Vec::new() }));
    federation.ok(Command::ReclaimLeases(ReclaimLeases { spare: vec![lease], reclaims: Vec::new() }));
    assert_eq!(federation.state.leases[&lease].state, LeaseState::Active);
    assert_eq!(federation.state.leases[&next[0]].end_reason, Some(EndReason::NotNeeded));
    assert_eq!(message(&federation), format!("served by {lease}"));
}
