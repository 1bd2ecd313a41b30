//! Evicted clusters, revoked users and suspended institutions.

use comity_core::command::{
    CancelRequest, EvictCluster, Expire, InviteCluster, JoinCluster, LeaseOutcome, MarkClusters, PeeringOutcome,
    RecordCertificate, RecordIssuer, RenewLease, ResumeInstitution, RevokeUser, SuspendInstitution,
};
use comity_core::demand::Share;
use comity_core::log::LOG_FORMAT;
use comity_core::member_certificate::{CertificateHolder, MemberCertificate, RootUse};
use comity_core::refusal::Code;
use comity_core::revocation::{RevocationEffects, UserRevocationEffects};
use comity_core::{Actor, Command, LogEnvelope, Millis, Refusal, Reply, ReplyBody, Timestamp, scheduler};
use comity_types::{
    EndReason, InstitutionId, LeaseId, LeaseState, LeaseTreatment, PeeringId, PeeringState, RequestId, RequestState,
};

use super::federation::{Federation, cluster, spec};
use super::invitations::{hash, invite_user, join_user};

pub(super) const ADMIN: &str = "spiffe://test.example/user/admin";
const ALICE: &str = "spiffe://test.example/user/alice";

pub(super) fn evict(name: &str, leases: LeaseTreatment) -> Command {
    Command::EvictCluster(EvictCluster { cluster: cluster(name), leases })
}

pub(super) fn suspend(name: &str, leases: LeaseTreatment) -> Command {
    let institution = InstitutionId::parse(name, "institution").unwrap();
    Command::SuspendInstitution(SuspendInstitution { institution, leases })
}

pub(super) fn resume(name: &str) -> Command {
    Command::ResumeInstitution(ResumeInstitution { institution: InstitutionId::parse(name, "institution").unwrap() })
}

pub(super) fn revoke(user: &str) -> Command {
    Command::RevokeUser(RevokeUser { user: user.to_owned(), allow_unknown: false, leases: LeaseTreatment::Finish })
}

pub(super) fn effects(federation: &mut Federation, command: Command) -> RevocationEffects {
    match federation.ok(command).reply {
        Ok(ReplyBody::Revoked(effects)) => effects,
        other => panic!("{other:?}"),
    }
}

/// The refusal of a command by `actor` with a certificate from before all revocations, or `None`.
pub(super) fn refusal_of(federation: &mut Federation, actor: Actor, command: Command) -> Option<Refusal> {
    reply_to(federation, actor, 0, command).err()
}

/// The reply to a command by `actor` with a certificate of `generation`.
pub(super) fn reply_to(federation: &mut Federation, actor: Actor, generation: u64, command: Command) -> Reply {
    federation.now += 1;
    let entry = LogEnvelope {
        format: LOG_FORMAT,
        actor,
        generation,
        time: Timestamp(federation.now),
        traceparent: String::new(),
        idempotency: None,
        command,
    };
    federation.state.apply(&entry).unwrap().reply
}

/// `west` uses a lease on `north`.
pub(super) fn lent() -> (Federation, RequestId, LeaseId, PeeringId) {
    let (mut federation, request, lease, peering) = Federation::placed();
    federation.shake_hands(peering, 1);
    federation.activate(lease);
    (federation, request, lease, peering)
}

pub(super) fn replace(name: &str, secret: &str, identity: &str) -> [Command; 2] {
    [
        Command::InviteCluster(InviteCluster {
            cluster: cluster(name),
            secret_sha256: hash(secret),
            ttl: Millis::from_hours(1),
            replace: true,
        }),
        Command::JoinCluster(JoinCluster {
            cluster: cluster(name),
            secret_sha256: hash(secret),
            identity_key: identity.to_owned(),
            certificate_not_after: Timestamp(u64::MAX >> 1),
        }),
    ]
}

#[test]
fn a_stopped_lease_and_its_peering_end_without_the_evicted_origin() {
    let (mut federation, request, lease, peering) = lent();
    let waiting = federation.submit(spec(64, Share::Whole, "big"));
    let done = effects(&mut federation, evict("west", LeaseTreatment::Stop));
    assert_eq!((done.clusters, done.leases, done.requests), (vec![cluster("west")], 1, 1));
    let held = &federation.state.leases[&lease];
    assert_eq!((held.state, held.end_reason), (LeaseState::Ending, Some(EndReason::OriginRevoked)));
    assert_eq!(federation.state.peerings[&peering].state, PeeringState::Draining, "the tunnel goes at once");
    for request in [request, waiting] {
        assert_eq!(federation.state.requests[&request].state, RequestState::Cancelled);
    }
    // The donor is offline for a day, and nothing of that is forgotten.
    federation.now += 86_400_000;
    federation.ok(Command::Expire(Expire {}));
    assert_eq!(federation.state.leases_of(&cluster("north")).count(), 1);
    federation.report_lease("north", lease, LeaseOutcome::Clean);
    federation.report_peering("north", peering, 1, PeeringOutcome::Closed);
    assert_eq!(federation.state.leases[&lease].state, LeaseState::Ended);
    assert_eq!(federation.state.peerings[&peering].state, PeeringState::Closed);
}

#[test]
fn a_request_leaves_an_evicted_donor() {
    let (mut federation, request, lease, peering) = lent();
    federation.ok(evict("north", LeaseTreatment::Stop));
    assert_eq!(federation.state.leases[&lease].end_reason, Some(EndReason::DonorRevoked));
    assert_eq!(federation.state.occupancy().lent_milli(&cluster("north")), 0, "nobody reports that it is free");
    assert_eq!(federation.state.requests[&request].state, RequestState::Queued);
    federation.report_lease("west", lease, LeaseOutcome::Clean);
    federation.report_peering("west", peering, 1, PeeringOutcome::Closed);
    assert_eq!(federation.state.peerings[&peering].state, PeeringState::Closed);
    let next = federation.place();
    assert_eq!(federation.state.leases[&next[0]].placement.donor, cluster("south"));
}

#[test]
fn a_lease_that_finishes_runs_to_its_end_and_is_not_renewed() {
    for evicted in ["west", "north"] {
        let (mut federation, _, lease, peering) = lent();
        federation.ok(evict(evicted, LeaseTreatment::Finish));
        assert_eq!(federation.state.leases[&lease].state, LeaseState::Suspect);
        assert_eq!(federation.state.peerings[&peering].state, PeeringState::Established);
        let renew = RenewLease { lease, duration: Millis(0), may_shorten: false };
        assert_eq!(federation.refused(Command::RenewLease(renew)).code, Code::Revoked);
        // Its last words do not bring it back, and its silence is no failure.
        federation.ok(Command::MarkClusters(MarkClusters { heard: vec![cluster(evicted)], silent: Vec::new() }));
        assert!(!federation.state.clusters[&cluster(evicted)].connected);
        federation.now = federation.state.leases[&lease].expires_at.unwrap().0;
        let reclaims = scheduler::reclaims_at(&federation.state, &cluster("north"), Timestamp(federation.now));
        assert!(reclaims.is_empty(), "{reclaims:?}");
        federation.ok(Command::Expire(Expire {}));
        assert_eq!(federation.state.leases[&lease].end_reason, Some(EndReason::Expired));
        assert_eq!(federation.state.peerings[&peering].state, PeeringState::Draining);
        let other = if evicted == "west" { "north" } else { "west" };
        federation.report_lease(other, lease, LeaseOutcome::Clean);
        federation.report_peering(other, peering, 1, PeeringOutcome::Closed);
        assert_eq!(federation.state.peerings[&peering].state, PeeringState::Closed);
    }
}

#[test]
fn a_drained_lease_gets_the_donors_notice() {
    let (mut federation, request, lease, _) = lent();
    federation.ok(evict("north", LeaseTreatment::Drain));
    let reclaim = federation.state.leases[&lease].reclaim.clone().unwrap();
    assert_eq!(federation.state.leases[&lease].state, LeaseState::Reclaiming);
    assert_eq!(reclaim.deadline, reclaim.since.after(reclaim.grace));
    assert!(comity_core::feasibility::spared(&federation.state).is_empty());
    // Meanwhile its request moves.
    let next = federation.place();
    assert_eq!(federation.state.leases[&next[0]].moved_from, Some(lease));
    federation.now = reclaim.deadline.0;
    federation.ok(Command::Expire(Expire {}));
    assert_eq!(federation.state.leases[&lease].end_reason, Some(EndReason::DonorRevoked));
    let request = &federation.state.requests[&request];
    assert!(matches!(request.state, RequestState::Placed | RequestState::Queued), "{request:?}");
}

#[test]
fn a_lease_that_is_not_in_force_stops_in_any_case() {
    for treatment in [LeaseTreatment::Finish, LeaseTreatment::Drain, LeaseTreatment::Stop] {
        let (mut federation, _, lease, _) = Federation::placed();
        federation.ok(evict("west", treatment));
        assert_eq!(federation.state.leases[&lease].state, LeaseState::Ending, "{treatment:?}");
    }
}

#[test]
fn an_evicted_cluster_is_refused_by_every_command_and_joins_again_with_a_new_token() {
    let mut federation = Federation::ready();
    let [invite, join] = replace("west", "early", "ed25519:thief");
    federation.ok(invite);
    federation.ok(evict("west", LeaseTreatment::Stop));
    assert_eq!(federation.refused(join).code, Code::InvalidToken, "open invitations are void too");
    assert_eq!(federation.refused(evict("west", LeaseTreatment::Stop)).code, Code::WrongState);
    let renew = Command::RecordCertificate(RecordCertificate {
        cluster: cluster("west"),
        identity_key: "ed25519:west".to_owned(),
        not_after: Timestamp(u64::MAX >> 1),
    });
    assert_eq!(federation.refused(renew.clone()).code, Code::Revoked);
    let of_west = Actor::Cluster(cluster("west"));
    let refusal = refusal_of(&mut federation, of_west.clone(), Command::Expire(Expire {}));
    assert_eq!(refusal.map(|refusal| refusal.code), Some(Code::Revoked), "a broker that lags let it through");
    let submit = comity_core::command::check_submission(
        &federation.state,
        &spec(1, Share::Whole, "big"),
        Timestamp(federation.now),
    );
    assert_eq!(submit.unwrap_err().code, Code::Revoked);

    let generation = federation.state.certificate_generation;
    let state = &federation.state;
    assert!(state.check_cluster_certificate(&cluster("west"), generation).is_err());
    for command in replace("west", "again", "ed25519:west") {
        federation.ok(command);
    }
    let state = &federation.state;
    assert!(state.check_cluster_certificate(&cluster("west"), generation).is_err(), "from before it joined again");
    assert!(state.check_cluster_certificate(&cluster("west"), state.certificate_generation).is_ok());
    federation.ok(renew);
    let new = federation.state.certificate_generation;
    assert!(reply_to(&mut federation, of_west, new, Command::Expire(Expire {})).is_ok());
}

#[test]
fn an_agent_that_replaces_another_voids_its_certificates() {
    let mut federation = Federation::ready();
    assert!(federation.state.check_cluster_certificate(&cluster("west"), 0).is_ok());
    for command in replace("west", "new", "ed25519:new") {
        federation.ok(command);
    }
    let refusal = federation.state.check_cluster_certificate(&cluster("west"), 0).unwrap_err();
    assert!(refusal.reason.contains("another agent joined in its place"), "{refusal}");
    assert!(federation.state.check_cluster_certificate(&cluster("north"), 0).is_ok(), "others keep theirs");
    let renew = |identity_key: &str| {
        Command::RecordCertificate(RecordCertificate {
            cluster: cluster("west"),
            identity_key: identity_key.to_owned(),
            not_after: Timestamp(u64::MAX >> 1),
        })
    };
    assert_eq!(federation.refused(renew("ed25519:west")).field, "identity_proof");
    federation.ok(renew("ed25519:new"));
}

#[test]
fn a_revoked_user_needs_a_new_token() {
    let mut federation = Federation::with_policy();
    federation.ok(invite_user("alice"));
    federation.ok(revoke("alice"));
    assert_eq!(federation.refused(join_user("alice", "alice")).code, Code::InvalidToken);
    let refusal = federation.state.check_user_certificate("alice", ALICE, 0).unwrap_err();
    assert!(refusal.remedy.contains("comity user add alice"), "{refusal}");
    assert!(federation.state.check_user_certificate("admin", ADMIN, 0).is_ok());
    federation.ok(invite_user("alice"));
    let Ok(ReplyBody::Certificate { generation, .. }) = federation.ok(join_user("alice", "alice")).reply else {
        panic!("no certificate")
    };
    assert!(federation.state.check_user_certificate("alice", ALICE, generation).is_ok());
    // Once every older certificate has expired, the record goes.
    federation.now += comity_core::limits::REVOCATION_KEPT_MS + 1;
    federation.ok(invite_user("bob"));
    federation.ok(revoke("bob"));
    assert_eq!(federation.state.revoked_users.keys().collect::<Vec<_>>(), ["bob"]);
}

#[test]
fn invitations_that_a_revoked_user_made_are_void() {
    let mut federation = Federation::with_policy();
    let invited = refusal_of(&mut federation, Actor::User(ADMIN.to_owned()), invite_user("mallory"));
    assert_eq!(invited, None);
    federation.ok(invite_user("alice"));
    federation.ok(revoke("admin"));
    assert_eq!(federation.refused(join_user("mallory", "mallory")).code, Code::InvalidToken);
    federation.ok(join_user("alice", "alice"));
}

#[test]
fn a_user_whom_nothing_names_is_not_revoked_by_mistake() {
    let mut federation = Federation::with_policy();
    let refusal = federation.refused(revoke("alcie"));
    assert_eq!((refusal.code, refusal.field.as_str()), (Code::NotFound, "user"), "{refusal}");
    let mut unknown =
        RevokeUser { user: "issued-on-a-broker".to_owned(), allow_unknown: false, leases: LeaseTreatment::Finish };
    assert_eq!(federation.refused(Command::RevokeUser(unknown.clone())).code, Code::NotFound);
    unknown.allow_unknown = true;
    federation.ok(Command::RevokeUser(unknown.clone()));
    // Its revocation names it from now on.
    unknown.allow_unknown = false;
    federation.ok(Command::RevokeUser(unknown));
    // An invitation, a certificate or a role names a user.
    federation.ok(invite_user("bob"));
    federation.ok(revoke("bob"));
    federation.ok(Command::RecordIssuer(RecordIssuer {
        holder: CertificateHolder::User("carol".to_owned()),
        certificate: MemberCertificate { root_sha256: "aa".to_owned(), not_after: Timestamp(u64::MAX >> 1) },
    }));
    federation.ok(revoke("carol"));
    federation.ok(revoke("alice"));
}

#[test]
fn what_the_revocation_of_a_user_ends_and_leaves_is_counted() {
    let (mut federation, _, lease, _) = lent();
    federation.ok(invite_user("alice"));
    let counted = |federation: &Federation, user: &str| {
        let command = RevokeUser { user: user.to_owned(), allow_unknown: false, leases: LeaseTreatment::Finish };
        command.effects(&federation.state, &Actor::User(ADMIN.to_owned())).unwrap()
    };
    assert_eq!(
        counted(&federation, "alice"),
        UserRevocationEffects { invitations: 1, leases: 1, own: None, none_may_invite: false }
    );
    let Ok(ReplyBody::UserRevoked(effects)) = federation.ok(revoke("alice")).reply else { panic!("not revoked") };
    assert_eq!(effects, UserRevocationEffects { invitations: 1, leases: 1, own: None, none_may_invite: false });
    assert_eq!(federation.state.leases[&lease].state, LeaseState::Active, "it is the tenant's");
    assert_eq!(
        counted(&federation, "alice"),
        UserRevocationEffects { invitations: 0, leases: 1, own: None, none_may_invite: false }
    );
}

#[test]
fn operator_undoes_a_maintainers_eviction() {
    let mut federation = Federation::ready();
    federation.with_terms(
        "contact: \"ops@west.example\"",
        "contact: \"ops@west.example\", operators: [\"spiffe://test.example/user/olga\"]",
    );
    let olga = || Actor::User("spiffe://test.example/user/olga".to_owned());
    let admin = || Actor::User(ADMIN.to_owned());
    assert_eq!(refusal_of(&mut federation, admin(), evict("west", LeaseTreatment::Stop)), None);
    let [invite, join] = replace("west", "again", "ed25519:west");
    let refusal = refusal_of(&mut federation, olga(), invite.clone()).unwrap();
    assert_eq!((refusal.code, refusal.field.as_str()), (Code::PermissionDenied, "cluster"), "{refusal}");
    assert!(refusal.reason.contains("evicted by the maintainer spiffe://test.example/user/admin"), "{refusal}");
    assert_eq!(federation.refused(join.clone()).code, Code::InvalidToken);
    assert_eq!(refusal_of(&mut federation, admin(), invite).map(|refusal| refusal.code), None);
    federation.ok(join);

    // What its own operators evicted, they invite again.
    assert_eq!(refusal_of(&mut federation, olga(), evict("west", LeaseTreatment::Stop)), None);
    let [invite, join] = replace("west", "by-olga", "ed25519:west");
    assert_eq!(refusal_of(&mut federation, olga(), invite), None);
    federation.ok(join);
}

#[test]
fn who_may_revoke() {
    let mut federation = Federation::ready();
    let alice = || Actor::User(ALICE.to_owned());
    for command in [evict("west", LeaseTreatment::Stop), suspend("western", LeaseTreatment::Stop), revoke("bob")] {
        let refusal = refusal_of(&mut federation, alice(), command).unwrap();
        assert_eq!(refusal.code, Code::PermissionDenied, "{refusal}");
    }
    federation.with_terms(
        "contact: \"ops@west.example\"",
        "contact: \"ops@west.example\", operators: [\"spiffe://test.example/user/olga\"]",
    );
    let olga = || Actor::User("spiffe://test.example/user/olga".to_owned());
    let refused = |federation: &mut Federation, command| refusal_of(federation, olga(), command).map(|it| it.code);
    let denied = Some(Code::PermissionDenied);
    assert_eq!(refused(&mut federation, evict("north", LeaseTreatment::Stop)), denied);
    assert_eq!(refused(&mut federation, revoke("admin")), denied);
    assert_eq!(refused(&mut federation, revoke("stranger")), denied);
    assert_eq!(refused(&mut federation, suspend("western", LeaseTreatment::Stop)), denied);
    assert_eq!(refused(&mut federation, evict("west", LeaseTreatment::Stop)), None);
    assert_eq!(refused(&mut federation, revoke("alice")), None);
    // The last maintainer stays able to invite.
    let own = refusal_of(&mut federation, Actor::User(ADMIN.to_owned()), revoke("admin")).unwrap();
    assert_eq!(own.code, Code::WrongState);
}

#[test]
fn a_suspended_institution_waits_and_goes_on_when_it_is_resumed() {
    let (mut federation, _, lease, peering) = lent();
    let waiting = federation.submit(spec(4, Share::Whole, "big"));
    let done = effects(&mut federation, suspend("western", LeaseTreatment::Stop));
    assert_eq!((done.clusters, done.leases), (vec![cluster("west")], 1));
    assert_eq!(federation.state.requests[&waiting].state, RequestState::Queued);
    assert!(federation.place().is_empty());
    let state = &federation.state;
    assert!(state.check_cluster_certificate(&cluster("west"), 0).unwrap_err().reason.contains("was suspended"));
    assert!(state.check_user_certificate("alice", ALICE, 0).is_err());
    assert!(state.check_user_certificate("admin", ADMIN, 0).is_ok());
    assert!(state.check_cluster_certificate(&cluster("north"), 0).is_ok());
    for command in replace("west", "new", "ed25519:new") {
        assert!(matches!(federation.refused(command).code, Code::Revoked | Code::InvalidToken));
    }
    federation.report_lease("north", lease, LeaseOutcome::Clean);
    federation.report_peering("north", peering, 1, PeeringOutcome::Closed);
    assert_eq!(federation.state.leases[&lease].state, LeaseState::Ended, "its own side cannot report");
    assert_eq!(federation.state.occupancy().lent_milli(&cluster("north")), 0);

    federation.ok(resume("western"));
    assert_eq!(federation.refused(resume("western")).code, Code::WrongState);
    federation.ok(Command::MarkClusters(MarkClusters { heard: vec![cluster("west")], silent: Vec::new() }));
    federation.report_lease("west", lease, LeaseOutcome::Clean);
    federation.report_peering("west", peering, 1, PeeringOutcome::Closed);
    assert_eq!(federation.state.peerings[&peering].state, PeeringState::Closed);
    let next = federation.place();
    assert_eq!(federation.state.leases[&next[0]].request, waiting);
    assert_ne!(federation.state.leases[&next[0]].peering, peering);
}

#[test]
fn a_lease_of_a_suspended_origin_ends_once_its_donor_is_clean() {
    // Whichever comes first: the end, the donor's report or the suspension.
    let (mut federation, request, lease, _) = lent();
    federation.ok(Command::CancelRequest(CancelRequest { request }));
    federation.report_lease("north", lease, LeaseOutcome::Clean);
    assert_eq!(
        federation.state.leases[&lease].state,
        LeaseState::Ending,
        "an origin in good standing has yet to report"
    );
    federation.ok(suspend("western", LeaseTreatment::Finish));
    assert_eq!(federation.state.leases[&lease].state, LeaseState::Ended);

    let (mut federation, _, lease, _) = lent();
    federation.ok(suspend("western", LeaseTreatment::Finish));
    federation.now = federation.state.leases[&lease].expires_at.unwrap().0;
    federation.ok(Command::Expire(Expire {}));
    assert_eq!(federation.state.leases[&lease].state, LeaseState::Ending, "the donor has yet to report");
    federation.report_lease("north", lease, LeaseOutcome::Clean);
    assert_eq!(federation.state.leases[&lease].state, LeaseState::Ended);

    // A suspended donor alone knows when its GPUs are free.
    let (mut federation, _, lease, _) = lent();
    federation.ok(suspend("lenders", LeaseTreatment::Stop));
    federation.report_lease("west", lease, LeaseOutcome::Clean);
    assert_eq!(federation.state.leases[&lease].state, LeaseState::Ending);
}

#[test]
fn what_a_revocation_ends_is_counted_by_what_happens_to_it() {
    let counts = |effects: &RevocationEffects| (effects.leases, effects.starting, effects.requests);
    let (mut federation, request, lease, _) = lent();
    federation.submit(spec(2, Share::Whole, "big"));
    assert_eq!(federation.place().len(), 1, "not in force yet");
    let preview = |federation: &Federation| {
        let command = EvictCluster { cluster: cluster("west"), leases: LeaseTreatment::Finish };
        command.effects(&federation.state, &Actor::Leader(1)).unwrap()
    };
    assert_eq!(counts(&preview(&federation)), (1, 1, 0));
    federation.ok(Command::CancelRequest(CancelRequest { request }));
    assert_eq!(federation.state.leases[&lease].state, LeaseState::Ending);
    assert_eq!(counts(&preview(&federation)), (0, 1, 0), "one that is ending is past all treatment");
    let suspended = effects(&mut federation, suspend("western", LeaseTreatment::Finish));
    assert_eq!(counts(&suspended), (0, 1, 0));
}

#[test]
fn who_has_a_certificate_of_an_old_root_is_known_until_it_is_renewed_void_or_expired() {
    let (old, new) = ("01".repeat(32), "02".repeat(32));
    let mut federation = Federation::ready();
    let end = federation.now + 86_400_000;
    let record = |holder: CertificateHolder, root: &str, end: u64| {
        let certificate = MemberCertificate { root_sha256: root.to_owned(), not_after: Timestamp(end) };
        Command::RecordIssuer(RecordIssuer { holder, certificate })
    };
    let (of, user) =
        (|name| CertificateHolder::Cluster(cluster(name)), |name: &str| CertificateHolder::User(name.into()));
    for (number, holder) in [of("west"), of("north"), of("south"), user("alice"), user("bob")].into_iter().enumerate() {
        federation.ok(record(holder, &old, end + number as u64));
    }
    let uses = |federation: &Federation, root: &str| {
        let certificates = &federation.state.certificates;
        certificates.by_root(Timestamp(federation.now)).get(root).cloned().unwrap_or_default()
    };
    let all = uses(&federation, &old);
    assert_eq!((all.clusters.len(), all.users, all.last_not_after), (3, 2, Timestamp(end + 4)));

    federation.ok(record(of("north"), &new, end * 2));
    federation.ok(record(user("bob"), &new, end * 2));
    federation.ok(evict("south", LeaseTreatment::Stop));
    federation.ok(revoke("alice"));
    let left = uses(&federation, &old);
    assert_eq!((left.clusters, left.users), ([cluster("west")].into(), 0));
    assert_eq!((uses(&federation, &new).clusters.len(), uses(&federation, &new).users), (1, 1));

    federation.now = end;
    assert_eq!(uses(&federation, &old), RootUse::default());
    federation.ok(record(of("north"), &new, end * 3));
    assert_eq!(federation.state.certificates.clusters.len(), 1, "what has expired is forgotten");
}

#[test]
fn a_resumed_institution_keeps_what_was_being_drained() {
    let (mut federation, _, lease, _) = lent();
    federation.ok(suspend("lenders", LeaseTreatment::Drain));
    assert_eq!(federation.state.leases[&lease].state, LeaseState::Reclaiming);
    federation.ok(resume("lenders"));
    assert_eq!(comity_core::feasibility::spared(&federation.state), [lease]);
}
