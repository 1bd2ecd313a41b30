//! Commands that were under way when their user or cluster was revoked, and tokens made before that.

use std::collections::BTreeMap;

use comity_core::broker_record::BrokerRole;
use comity_core::command::{ApplyPolicy, Expire, InviteCluster, JoinCluster, SubmitRequest, check_invite};
use comity_core::demand::Share;
use comity_core::invite::Invite;
use comity_core::refusal::Code;
use comity_core::{Actor, Command, InviteSubject, Millis, Records, Refusal, ReplyBody, State, Timestamp};
use comity_types::LeaseTreatment;

use super::federation::{Federation, cluster, spec, terms};
use super::invitations::{assign, hash, invite_broker, invite_user, join_broker, join_user};
use super::revocations::{ADMIN, replace, reply_to, resume, revoke, suspend};

const ERIN: &str = "spiffe://test.example/user/erin";
const MAINTAINERS: &str = "maintainers: [\"spiffe://test.example/user/admin\"]";

/// admin and erin maintain the federation and operate its brokers.
fn two_maintainers() -> Federation {
    let mut federation = Federation::ready();
    let both = format!("maintainers: {:?}\n  brokerOperators: {:?}", [ADMIN, ERIN], [ADMIN, ERIN]);
    let source = terms(MAINTAINERS, &both);
    federation.ok(Command::ApplyPolicy(ApplyPolicy { source, force: true, expected_hash: None }));
    federation.ok(assign(1, BrokerRole::Voter));
    federation
}

fn user(id: &str) -> Actor {
    Actor::User(id.to_owned())
}

fn invite_cluster(name: &str) -> Command {
    Command::InviteCluster(InviteCluster {
        cluster: cluster(name),
        secret_sha256: hash(name),
        ttl: Millis::from_hours(1),
        replace: true,
    })
}

fn join_cluster(name: &str) -> Command {
    Command::JoinCluster(JoinCluster {
        cluster: cluster(name),
        secret_sha256: hash(name),
        identity_key: format!("ed25519:{name}"),
        certificate_not_after: Timestamp(u64::MAX >> 1),
    })
}

/// The same federation with these open invitations.
fn with_invites(federation: &mut Federation, invites: BTreeMap<String, Invite>) {
    let mut records: Records = (*federation.state).clone();
    records.invites = invites;
    federation.state = State::from(records);
}

#[test]
fn a_revoked_users_commands_under_way_are_refused() {
    let mut federation = two_maintainers();
    reply_to(&mut federation, user(ERIN), 0, invite_user("mallory")).unwrap();
    reply_to(&mut federation, user(ADMIN), 0, revoke("erin")).unwrap();
    let source = terms(MAINTAINERS, &format!("maintainers: [{ERIN:?}]"));
    let before = federation.state.revision;
    for command in [
        invite_user("mallory"),
        invite_cluster("south"),
        invite_broker(None, "2"),
        revoke("admin"),
        Command::SubmitRequest(SubmitRequest { spec: spec(1, Share::Whole, "big"), submitted_by: ERIN.to_owned() }),
        Command::ApplyPolicy(ApplyPolicy { source, force: true, expected_hash: None }),
        Command::Expire(Expire {}),
    ] {
        let refusal = reply_to(&mut federation, user(ERIN), 0, command.clone()).unwrap_err();
        assert_eq!(refusal.code, Code::Revoked, "{command:?}: {refusal}");
    }
    assert_eq!((federation.state.revision, federation.state.invites.len()), (before, 0));
    reply_to(&mut federation, user(ADMIN), 0, invite_user("erin")).unwrap();
    // The joining user has no certificate yet: the token counts.
    let joined = reply_to(&mut federation, user(ERIN), 0, join_user("erin", "erin")).unwrap();
    let ReplyBody::Certificate { generation, .. } = joined else { panic!("{joined:?}") };
    reply_to(&mut federation, user(ERIN), generation, invite_user("mallory")).unwrap();
    assert!(reply_to(&mut federation, user(ERIN), generation - 1, invite_user("other")).is_err());
}

#[test]
fn a_suspended_users_commands_under_way_are_refused() {
    let mut federation = Federation::ready();
    federation.ok(suspend("western", LeaseTreatment::Finish));
    let submitted_by = "spiffe://test.example/user/alice".to_owned();
    let alice = Actor::User(submitted_by.clone());
    let submit = Command::SubmitRequest(SubmitRequest { spec: spec(1, Share::Whole, "big"), submitted_by });
    let reply = reply_to(&mut federation, alice.clone(), 0, submit);
    assert_eq!(reply.map_err(|refusal| refusal.code), Err(Code::Revoked));
    let reply = reply_to(&mut federation, alice, 0, Command::Expire(Expire {}));
    assert_eq!(reply.map_err(|refusal| refusal.code), Err(Code::Revoked));
    reply_to(&mut federation, user(ADMIN), 0, Command::Expire(Expire {})).unwrap();
}

#[test]
fn of_two_maintainers_who_revoke_each_other_at_once_one_is_left() {
    let mut federation = two_maintainers();
    reply_to(&mut federation, user(ADMIN), 0, revoke("erin")).unwrap();
    let refusal = reply_to(&mut federation, user(ERIN), 0, revoke("admin")).unwrap_err();
    assert_eq!(refusal.code, Code::Revoked, "{refusal}");
    assert_eq!(federation.state.revoked_users.keys().collect::<Vec<_>>(), ["erin"]);
    reply_to(&mut federation, user(ADMIN), 0, invite_user("erin")).unwrap();
}

#[test]
fn a_replaced_agents_commands_under_way_are_refused() {
    let mut federation = Federation::ready();
    let of_west = || Actor::Cluster(cluster("west"));
    for command in replace("west", "new", "ed25519:new") {
        federation.ok(command);
    }
    let refusal = reply_to(&mut federation, of_west(), 0, Command::Expire(Expire {})).unwrap_err();
    assert!(refusal.code == Code::Revoked && refusal.reason.contains("another agent joined"), "{refusal}");
    let new = federation.state.certificate_generation;
    reply_to(&mut federation, of_west(), new, Command::Expire(Expire {})).unwrap();
}

#[test]
fn tokens_of_a_revoked_users_earlier_certificates_admit_nobody() {
    let mut federation = two_maintainers();
    for command in [invite_user("mallory"), invite_cluster("south"), invite_broker(None, "2")] {
        reply_to(&mut federation, user(ERIN), 0, command).unwrap();
    }
    let outlived = federation.state.invites.clone();
    federation.ok(revoke("erin"));
    assert!(federation.state.invites.is_empty());
    with_invites(&mut federation, outlived);
    let reason = |refusal: Refusal| {
        assert_eq!(refusal.code, Code::InvalidToken, "{refusal}");
        assert!(refusal.reason.contains("may not invite any more: the certificates of user erin were"), "{refusal}");
    };
    for join in [join_user("mallory", "mallory"), join_cluster("south"), join_broker(2, "2")] {
        reason(federation.refused(join));
    }
    // Nor do they after the user came back.
    reply_to(&mut federation, user(ADMIN), 0, invite_user("erin")).unwrap();
    let joined = federation.ok(join_user("erin", "erin")).reply.unwrap();
    let ReplyBody::Certificate { generation, .. } = joined else { panic!("{joined:?}") };
    reason(federation.refused(join_user("mallory", "mallory")));
    reply_to(&mut federation, user(ERIN), generation, invite_user("bob")).unwrap();
    federation.ok(join_user("bob", "bob"));
}

#[test]
fn tokens_of_a_suspended_operator_admit_nobody_until_the_institution_is_resumed() {
    let mut federation = Federation::ready();
    federation.with_terms(
        "contact: \"ops@west.example\"",
        "contact: \"ops@west.example\", operators: [\"spiffe://test.example/user/olga\"]",
    );
    reply_to(&mut federation, user("spiffe://test.example/user/olga"), 0, invite_cluster("west")).unwrap();
    let outlived = federation.state.invites.clone();
    federation.ok(suspend("western", LeaseTreatment::Finish));
    assert!(federation.state.invites.is_empty());
    with_invites(&mut federation, outlived);
    let subject = InviteSubject::Cluster(cluster("west"));
    let now = Timestamp(federation.now);
    let refusal = check_invite(&federation.state, now, &hash("west"), &subject).map(drop).unwrap_err();
    assert!(refusal.code == Code::InvalidToken && refusal.reason.contains("western was suspended"), "{refusal}");
    assert_eq!(federation.refused(join_cluster("west")).code, Code::InvalidToken);
    federation.ok(resume("western"));
    federation.ok(join_cluster("west"));
}

#[test]
fn a_first_maintainer_is_revoked_before_a_bundle_is_in_force() {
    let mut federation = Federation { state: State::default(), log: Vec::new(), now: 1_000_000 };
    reply_to(&mut federation, user(ERIN), 0, invite_user("mallory")).unwrap();
    let own = reply_to(&mut federation, user(ERIN), 0, revoke("erin")).unwrap_err();
    assert_eq!(own.code, Code::WrongState, "{own}");
    reply_to(&mut federation, user(ADMIN), 0, revoke("erin")).unwrap();
    assert!(federation.state.invites.is_empty());
    assert!(reply_to(&mut federation, user(ERIN), 0, invite_user("mallory")).is_err());
}
