//! Join tokens of users and brokers: single use, expiry, one subject each, and the broker's place in the group.
//! `inviters.rs` tests who may make them.

use comity_core::broker_record::BrokerRole;
use comity_core::command::{
    AssignBroker, Expire, InviteBroker, InviteUser, JoinBroker, JoinCluster, JoinUser, RevokeInvite,
};
use comity_core::invite::InvitationId;
use comity_core::limits::{MAX_INVITES_PER_INVITER, MAX_VOTERS};
use comity_core::refusal::Code;
use comity_core::{Command, InviteSubject, Millis, ReplyBody, Timestamp};

use super::federation::{Federation, cluster};

const HOUR: Millis = Millis(3_600_000);

pub(crate) fn hash(of: &str) -> String {
    format!("{of:0>64}")
}

pub(crate) fn invite_user(user: &str) -> Command {
    Command::InviteUser(InviteUser { user: user.to_owned(), secret_sha256: hash(user), ttl: HOUR })
}

pub(crate) fn join_user(user: &str, secret: &str) -> Command {
    Command::JoinUser(JoinUser {
        user: user.to_owned(),
        secret_sha256: hash(secret),
        certificate_not_after: Timestamp(u64::MAX >> 1),
    })
}

pub(crate) fn invite_broker(broker: Option<u64>, secret: &str) -> Command {
    Command::InviteBroker(InviteBroker { broker, secret_sha256: hash(secret), ttl: HOUR, replace: false })
}

fn replace_broker(broker: u64, secret: &str) -> Command {
    Command::InviteBroker(InviteBroker { broker: Some(broker), secret_sha256: hash(secret), ttl: HOUR, replace: true })
}

pub(crate) fn revoke(secret: &str) -> Command {
    Command::RevokeInvite(RevokeInvite { id: InvitationId::of(&hash(secret)) })
}

/// An invitation and its end.
pub(crate) fn revoked() -> [Command; 2] {
    [invite_user("bob"), revoke("bob")]
}

pub(crate) fn join_broker(broker: u64, secret: &str) -> Command {
    Command::JoinBroker(JoinBroker {
        broker,
        secret_sha256: hash(secret),
        raft_address: format!("b{broker}.test:7444"),
        client_address: format!("b{broker}.test:7443"),
    })
}

pub(crate) fn assign(broker: u64, role: BrokerRole) -> Command {
    Command::AssignBroker(AssignBroker {
        broker,
        role,
        raft_address: format!("b{broker}.test:7444"),
        client_address: format!("b{broker}.test:7443"),
    })
}

/// A federation whose group is broker 1.
fn group_of_one() -> Federation {
    let mut federation = Federation::with_policy();
    federation.ok(assign(1, BrokerRole::Voter));
    federation
}

/// Commands by which a user and a broker join a group that has brokers.
pub(crate) fn user_and_broker_join() -> [Command; 4] {
    [invite_user("alice"), join_user("alice", "alice"), invite_broker(Some(7), "7"), join_broker(7, "7")]
}

fn invited(federation: &mut Federation, command: Command) -> InviteSubject {
    match federation.ok(command).reply {
        Ok(ReplyBody::Invited { subject, .. }) => subject,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_token_works_once_and_for_its_user_alone() {
    let mut federation = Federation::with_policy();
    federation.ok(invite_user("alice"));
    let refusal = federation.refused(join_user("bob", "alice"));
    assert_eq!((refusal.code, refusal.field.as_str()), (Code::InvalidToken, "user"));
    assert!(federation.refused(join_user("alice", "guess")).remedy.contains("comity user add"));
    federation.ok(join_user("alice", "alice"));
    assert_eq!(federation.refused(join_user("alice", "alice")).code, Code::InvalidToken);
    assert!(federation.state.invites.is_empty());
}

#[test]
fn a_token_of_one_kind_admits_no_other() {
    let mut federation = group_of_one();
    federation.ok(invite_user("west"));
    let join_cluster = Command::JoinCluster(JoinCluster {
        cluster: cluster("west"),
        secret_sha256: hash("west"),
        identity_key: "ed25519:west".to_owned(),
        certificate_not_after: Timestamp(u64::MAX >> 1),
    });
    assert_eq!(federation.refused(join_cluster).code, Code::InvalidToken);
    assert_eq!(federation.refused(join_broker(2, "west")).code, Code::InvalidToken);
    assert_eq!(federation.state.brokers.len(), 1);
    federation.ok(join_user("west", "west"));
}

#[test]
fn an_expired_token_is_refused_and_then_forgotten() {
    let mut federation = group_of_one();
    federation.ok(invite_user("alice"));
    federation.ok(invite_broker(None, "2"));
    federation.now += HOUR.0;
    assert!(federation.refused(join_user("alice", "alice")).reason.contains("has expired"));
    assert!(federation.refused(join_broker(2, "2")).reason.contains("has expired"));
    federation.ok(Command::Expire(Expire {}));
    assert!(federation.state.invites.is_empty());
}

#[test]
fn brokers_get_the_next_free_number_and_vote() {
    let mut federation = group_of_one();
    assert_eq!(invited(&mut federation, invite_broker(None, "2")), InviteSubject::Broker(2));
    assert_eq!(invited(&mut federation, invite_broker(None, "3")), InviteSubject::Broker(3));
    federation.ok(join_broker(3, "3"));
    assert_eq!(federation.state.brokers[&3].role, BrokerRole::Voter);
    federation.ok(assign(3, BrokerRole::Removed));
    assert_eq!(invited(&mut federation, invite_broker(None, "4")), InviteSubject::Broker(4));
    assert!(federation.refused(invite_broker(Some(3), "x")).reason.contains("never used again"));
    assert_eq!(federation.refused(invite_broker(Some(0), "x")).field, "broker");
}

#[test]
fn a_member_joins_again_at_its_address_only() {
    let mut federation = group_of_one();
    federation.ok(invite_broker(Some(2), "a"));
    federation.ok(join_broker(2, "a"));
    let refusal = federation.refused(invite_broker(Some(2), "b"));
    assert!(refusal.code == Code::WrongState && refusal.remedy.contains("--replace"), "{refusal}");
    federation.ok(replace_broker(2, "b"));
    federation.ok(join_broker(2, "b"));
    federation.ok(invite_broker(None, "c"));
    let Command::JoinBroker(third) = join_broker(3, "c") else { unreachable!() };
    let stolen = JoinBroker { raft_address: "b2.test:7444".to_owned(), ..third.clone() };
    assert_eq!(federation.refused(Command::JoinBroker(stolen)).field, "raft_address");
    federation.ok(Command::JoinBroker(third));
    federation.ok(replace_broker(2, "d"));
    let Command::JoinBroker(second) = join_broker(2, "d") else { unreachable!() };
    let moved = JoinBroker { raft_address: "elsewhere.test:7444".to_owned(), ..second };
    assert_eq!(federation.refused(Command::JoinBroker(moved)).code, Code::WrongState);
    assert!(federation.state.invites.contains_key(&hash("d")), "a refused join uses up no token");
}

#[test]
fn a_group_has_a_bounded_number_of_voters_and_exists_before_it_invites() {
    let mut federation = Federation::with_policy();
    assert_eq!(federation.refused(invite_broker(None, "early")).code, Code::WrongState);
    for broker in 1..=MAX_VOTERS as u64 {
        federation.ok(assign(broker, BrokerRole::Voter));
    }
    assert_eq!(federation.refused(invite_broker(None, "x")).code, Code::LimitReached);
    federation.ok(replace_broker(1, "again"));
    federation.ok(join_broker(1, "again"));
}

#[test]
fn a_revoked_token_admits_nobody() {
    let mut federation = Federation::with_policy();
    federation.ok(invite_user("alice"));
    federation.ok(revoke("alice"));
    assert!(federation.refused(join_user("alice", "alice")).reason.contains("revoked"));
    assert_eq!(federation.refused(revoke("alice")).code, Code::NotFound);
}

#[test]
fn one_inviter_has_a_bounded_number_of_open_invitations() {
    let mut federation = Federation::with_policy();
    for number in 0..MAX_INVITES_PER_INVITER {
        federation.ok(invite_user(&format!("u{number}")));
    }
    let refusal = federation.refused(invite_user("late"));
    assert_eq!(refusal.code, Code::LimitReached);
    let remedy = "revoke some of `comity invitation list` with `comity invitation revoke ID`, or wait 60 min";
    assert!(refusal.remedy.starts_with(remedy), "{refusal}");
    federation.ok(revoke("u0"));
    federation.ok(invite_user("late"));
}
