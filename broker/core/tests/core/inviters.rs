//! Who may invite, revoke, and make somebody able to invite brokers: policy decides when a token is made and again when
//! it is used.

use comity_core::broker_record::BrokerRole;
use comity_core::command::{AdmitBroker, ApplyPolicy, Expire, InviteCluster, JoinCluster, RevokeUser, check_joined};
use comity_core::idempotency::joining_broker;
use comity_core::log::LOG_FORMAT;
use comity_core::refusal::Code;
use comity_core::{Actor, Command, Idempotency, LogEnvelope, Millis, Refusal, Reply, ReplyBody, Timestamp};
use comity_types::LeaseTreatment;

use super::federation::{Federation, cluster, terms};
use super::invitations::{assign, hash, invite_broker, invite_user, join_broker, join_user, revoke};

const ADMIN: &str = "spiffe://test.example/user/admin";
const OPERATOR: &str = "spiffe://test.example/user/oscar";
const BROKER: &str = "spiffe://test.example/broker/1";
const MAINTAINERS: &str = "maintainers: [\"spiffe://test.example/user/admin\"]";

/// A bundle with these maintainers and broker operators.
fn policy(maintainers: &[&str], operators: &[&str]) -> Command {
    let source = terms(MAINTAINERS, &format!("maintainers: {maintainers:?}\n  brokerOperators: {operators:?}"));
    Command::ApplyPolicy(ApplyPolicy { source, force: true, expected_hash: None })
}

/// admin maintains, oscar operates the brokers; the group is broker 1.
fn with_operator() -> Federation {
    let mut federation = Federation::with_policy();
    federation.ok(policy(&[ADMIN], &[OPERATOR]));
    federation.ok(assign(1, BrokerRole::Voter));
    federation
}

pub(crate) fn apply_as(federation: &mut Federation, user: &str, command: Command) -> Reply {
    federation.now += 1;
    let entry = LogEnvelope {
        format: LOG_FORMAT,
        actor: Actor::User(user.to_owned()),
        generation: 0,
        time: Timestamp(federation.now),
        traceparent: String::new(),
        idempotency: None,
        command,
    };
    federation.state.apply(&entry).unwrap().reply
}

fn denied(reply: Reply) -> Refusal {
    let refusal = reply.unwrap_err();
    assert_eq!(refusal.code, Code::PermissionDenied, "{refusal}");
    refusal
}

#[test]
fn a_broker_that_is_not_in_the_group_changes_no_policy() {
    let mut federation = with_operator();
    let take_over = || policy(&[ADMIN, "spiffe://test.example/user/eve"], &[OPERATOR]);
    let refused = |federation: &mut Federation, broker: &str| {
        let refusal = apply_as(federation, broker, take_over()).unwrap_err();
        assert_eq!(refusal.code, Code::Revoked, "{refusal}");
        assert!(refusal.reason.contains(broker), "{refusal}");
    };
    // Whoever has an intermediate's key makes such a certificate.
    refused(&mut federation, "spiffe://test.example/broker/9");
    federation.ok(assign(2, BrokerRole::Voter));
    let second = "spiffe://test.example/broker/2";
    apply_as(&mut federation, second, policy(&[ADMIN], &[OPERATOR])).unwrap();
    federation.ok(assign(2, BrokerRole::Removed));
    refused(&mut federation, second);
}

#[test]
fn a_maintainer_may_not_invite_brokers_and_a_broker_operator_no_users() {
    let mut federation = with_operator();
    let refusal = denied(apply_as(&mut federation, ADMIN, invite_broker(None, "a")));
    assert!(refusal.remedy.contains("brokerOperators"), "{refusal}");
    apply_as(&mut federation, OPERATOR, invite_broker(None, "o")).unwrap();
    denied(apply_as(&mut federation, OPERATOR, invite_user("alice")));
    apply_as(&mut federation, ADMIN, invite_user("alice")).unwrap();
}

#[test]
fn a_maintainer_gets_no_certificate_of_a_broker_operator() {
    let mut federation = with_operator();
    let refusal = denied(apply_as(&mut federation, ADMIN, invite_user("oscar")));
    assert!(refusal.remedy.contains("broker operator"), "{refusal}");
    // Nor one that was invited before the user became a broker operator.
    apply_as(&mut federation, ADMIN, invite_user("eve")).unwrap();
    federation.ok(policy(&[ADMIN], &[OPERATOR, "spiffe://test.example/user/eve"]));
    assert!(federation.refused(join_user("eve", "eve")).reason.contains("may not invite user eve any more"));
    // Whoever is both may.
    federation.ok(policy(&[ADMIN], &[ADMIN, OPERATOR]));
    apply_as(&mut federation, ADMIN, invite_user("oscar")).unwrap();
    federation.ok(join_user("oscar", "oscar"));
}

#[test]
fn only_broker_operators_and_brokers_make_others_broker_operators() {
    let mut federation = with_operator();
    let refusal = denied(apply_as(&mut federation, ADMIN, policy(&[ADMIN], &[ADMIN, OPERATOR])));
    assert_eq!(refusal.field, "Federation.spec.brokerOperators");
    // The operator may not apply policy.
    assert!(refusal.remedy.contains("identity policy apply") && !refusal.remedy.contains(OPERATOR), "{refusal}");
    apply_as(&mut federation, ADMIN, policy(&[ADMIN, OPERATOR], &[OPERATOR])).unwrap();
    let refusal = denied(apply_as(&mut federation, ADMIN, policy(&[ADMIN, OPERATOR], &[ADMIN, OPERATOR])));
    assert!(refusal.remedy.contains(OPERATOR), "{refusal}");
    // Taking the right away is safe, and what is left needs a broker's certificate.
    apply_as(&mut federation, ADMIN, policy(&[ADMIN], &[])).unwrap();
    let refusal = denied(apply_as(&mut federation, ADMIN, policy(&[ADMIN], &[ADMIN])));
    assert!(refusal.remedy.contains("identity policy apply"), "{refusal}");
    apply_as(&mut federation, BROKER, policy(&[ADMIN, OPERATOR], &[OPERATOR])).unwrap();
    apply_as(&mut federation, OPERATOR, policy(&[ADMIN, OPERATOR], &[ADMIN, OPERATOR])).unwrap();
}

#[test]
fn a_revocation_tells_that_nobody_is_left_who_may_invite_the_user_again() {
    let mut federation = with_operator();
    let none_may_invite = |federation: &Federation, user: &str, actor: &str| {
        let command = RevokeUser { user: user.to_owned(), allow_unknown: true, leases: LeaseTreatment::Finish };
        command.effects(&federation.state, &Actor::User(actor.to_owned())).unwrap().none_may_invite
    };
    assert!(none_may_invite(&federation, "oscar", ADMIN), "the caller operates no brokers");
    assert!(!none_may_invite(&federation, "alice", ADMIN));
    let eve = "spiffe://test.example/user/eve";
    federation.ok(policy(&[ADMIN, OPERATOR, eve], &[OPERATOR, eve]));
    assert!(!none_may_invite(&federation, "oscar", ADMIN), "eve may");
    let revoke_eve = RevokeUser { user: "eve".to_owned(), allow_unknown: false, leases: LeaseTreatment::Finish };
    federation.ok(Command::RevokeUser(revoke_eve));
    assert!(none_may_invite(&federation, "oscar", ADMIN), "eve has no certificate any more");
    federation.ok(policy(&[ADMIN, OPERATOR], &[ADMIN, OPERATOR]));
    assert!(!none_may_invite(&federation, "oscar", ADMIN));
}

#[test]
fn tokens_of_dismissed_inviters_are_refused() {
    let mut federation = with_operator();
    apply_as(&mut federation, OPERATOR, invite_broker(None, "2")).unwrap();
    apply_as(&mut federation, ADMIN, invite_user("alice")).unwrap();
    let invite_south = Command::InviteCluster(InviteCluster {
        cluster: cluster("south"),
        secret_sha256: hash("south"),
        ttl: Millis::from_hours(1),
        replace: false,
    });
    apply_as(&mut federation, ADMIN, invite_south).unwrap();
    federation.ok(policy(&["spiffe://test.example/user/next"], &[]));
    let join_south = Command::JoinCluster(JoinCluster {
        cluster: cluster("south"),
        secret_sha256: hash("south"),
        identity_key: "ed25519:south".to_owned(),
        certificate_not_after: Timestamp(u64::MAX >> 1),
    });
    for (join, inviter) in [(join_broker(2, "2"), OPERATOR), (join_user("alice", "alice"), ADMIN), (join_south, ADMIN)]
    {
        let refusal = federation.refused(join);
        assert_eq!(refusal.code, Code::InvalidToken, "{refusal}");
        assert!(refusal.reason.starts_with(&format!("{inviter}, who made the join token, may not")), "{refusal}");
    }
}

#[test]
fn inviters_revoke_their_own_invitations_and_those_that_they_could_have_made() {
    let mut federation = with_operator();
    apply_as(&mut federation, OPERATOR, invite_broker(None, "2")).unwrap();
    apply_as(&mut federation, ADMIN, invite_user("alice")).unwrap();
    for (user, secret) in [(ADMIN, "2"), (OPERATOR, "alice")] {
        assert_eq!(apply_as(&mut federation, user, revoke(secret)).unwrap_err().code, Code::NotFound);
    }
    federation.ok(policy(&["spiffe://test.example/user/next"], &[ADMIN]));
    apply_as(&mut federation, "spiffe://test.example/user/next", revoke("alice")).unwrap();
    // Not a broker operator any more, but its inviter.
    apply_as(&mut federation, OPERATOR, revoke("2")).unwrap();
    assert!(federation.state.invites.is_empty());
}

/// Joins as broker 2, as the API does: with a key, so that a repeated call gets the first answer.
fn join_as_broker(federation: &mut Federation) -> Reply {
    federation.now += 1;
    let entry = LogEnvelope {
        format: LOG_FORMAT,
        actor: Actor::User("spiffe://test.example/broker/2".to_owned()),
        generation: 0,
        time: Timestamp(federation.now),
        traceparent: String::new(),
        idempotency: Some(Idempotency { caller: joining_broker(2), key: hash("2"), body_sha256: "b".to_owned() }),
        command: join_broker(2, "2"),
    };
    federation.state.apply(&entry).unwrap().reply
}

#[test]
fn the_answer_to_a_join_is_forgotten_once_the_broker_is_admitted_or_removed() {
    let admitted = Command::AdmitBroker(AdmitBroker { broker: 2 });
    for end in [admitted.clone(), assign(2, BrokerRole::Removed), assign(2, BrokerRole::Voter)] {
        let mut federation = with_operator();
        assert_eq!(federation.refused(admitted.clone()).code, Code::WrongState);
        apply_as(&mut federation, OPERATOR, invite_broker(None, "2")).unwrap();
        let first = join_as_broker(&mut federation).unwrap();
        assert_eq!(first, ReplyBody::BrokerJoined { inviter: Actor::User(OPERATOR.to_owned()), generation: 0 });
        assert_eq!(join_as_broker(&mut federation).unwrap(), first);
        federation.ok(end);
        assert_eq!(join_as_broker(&mut federation).unwrap_err().code, Code::InvalidToken);
        assert!(federation.state.idempotency.is_empty());
    }
}

#[test]
fn a_broker_gets_the_groups_secrets_only_while_its_inviter_may_invite_brokers() {
    let mut federation = with_operator();
    apply_as(&mut federation, OPERATOR, invite_broker(None, "2")).unwrap();
    join_as_broker(&mut federation).unwrap();
    let inviter = Actor::User(OPERATOR.to_owned());
    let check = |federation: &Federation| check_joined(&federation.state, 2, &inviter, 0);
    check(&federation).unwrap();
    federation.ok(policy(&[ADMIN], &[ADMIN]));
    let refusal = check(&federation).unwrap_err();
    assert!(refusal.code == Code::InvalidToken && refusal.reason.contains("may not invite broker 2 any more"));
    federation.ok(policy(&[ADMIN], &[ADMIN, OPERATOR]));
    check(&federation).unwrap();
    federation.ok(assign(2, BrokerRole::Removed));
    assert_eq!(check(&federation).unwrap_err().code, Code::WrongState);
}

#[test]
fn maintainers_alone_change_the_members_of_the_broker_group() {
    let mut federation = with_operator();
    let refusal = denied(apply_as(&mut federation, OPERATOR, assign(2, BrokerRole::Voter)));
    assert!(refusal.remedy.contains("maintainers"), "{refusal}");
    apply_as(&mut federation, ADMIN, assign(2, BrokerRole::Voter)).unwrap();
    denied(apply_as(&mut federation, BROKER, assign(2, BrokerRole::Removed)));
    assert_eq!(federation.state.brokers[&2].role, BrokerRole::Voter);
}

#[test]
fn a_stored_reply_counts_for_its_callers_institution() {
    let mut federation = Federation::ready();
    federation.ok(assign(1, BrokerRole::Voter));
    let alice = "spiffe://test.example/user/alice";
    for (actor, institution) in [
        (Actor::User(alice.to_owned()), Some("western")),
        (Actor::Cluster(cluster("north")), Some("lenders")),
        (Actor::User(ADMIN.to_owned()), None),
        (Actor::User(BROKER.to_owned()), None),
    ] {
        federation.now += 1;
        let caller = actor.name();
        let idempotency = Idempotency { caller: caller.clone(), key: "k".to_owned(), body_sha256: "b".to_owned() };
        let entry = LogEnvelope {
            format: LOG_FORMAT,
            generation: federation.state.certificate_generation,
            actor,
            time: Timestamp(federation.now),
            traceparent: String::new(),
            idempotency: Some(idempotency),
            command: Command::Expire(Expire {}),
        };
        federation.state.apply(&entry).unwrap().reply.unwrap();
        let stored = federation.state.idempotency.get(&format!("{caller} k")).unwrap();
        assert_eq!(stored.institution.as_deref(), institution, "{caller}");
    }
}
