//! Membership changes by a maintainer.

use comity_core::command::RevokeUser;
use comity_core::refusal::Code;
use comity_types::LeaseTreatment;

use super::*;

async fn change(group: &Group, change: MembershipChange) -> Result<(), GroupError> {
    group.change_members(by_admin(change)).await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_member_is_replaced_under_load_and_its_number_never_comes_back() {
    let mut federation = Federation::new(4);
    federation.founders = vec![1, 2, 3];
    let mut brokers = federation.three().await;
    leader(&brokers).await;
    let writer = {
        let group = brokers[0].group.clone();
        tokio::spawn(async move {
            for commit in 1..=120 {
                assert_eq!(changed(&group, commit).await, commit);
            }
        })
    };
    let four = federation.start(4).await;
    let through = brokers[1].group.clone();
    assert!(!four.group.inner.eligibility.may_vote());
    // It knows no leader yet, and says so.
    let promote = change(&four.group, MembershipChange::Promote { id: 4 });
    let error = tokio::time::timeout(SOON, promote).await.unwrap().unwrap_err();
    assert!(matches!(error, GroupError::Unavailable(Unavailable::NoLeader { .. })), "{error}");
    add(&through, 4, federation.address(4)).await.unwrap();
    change(&through, MembershipChange::Promote { id: 4 }).await.unwrap();
    change(&through, MembershipChange::Remove { id: 3 }).await.unwrap();
    writer.await.unwrap();

    let removed = brokers.remove(2);
    brokers.push(four);
    eventually("broker 3 to be out", || async {
        brokers.iter().all(|it| it.group.members().iter().all(|member| member.id != 3)).then_some(())
    })
    .await;
    all_vote(&brokers).await;
    assert_eq!(same_everywhere(&brokers).await.0, 120);
    // Its certificate is good, and nobody hears it.
    removed.crash().await;
    let removed = federation.start(3).await;
    let halt = tokio::time::timeout(SOON, removed.group.stopped()).await.unwrap();
    assert!(halt.reason().contains("was removed from its group"), "{halt:?}");
    let leading = brokers[leader(&brokers).await].id;
    let node = brokers[0].group.inner.node_of(leading).unwrap();
    let refused = removed.group.inner.peers.read_index(leading, &node, Duration::from_secs(2)).await.unwrap_err();
    assert!(refused.to_string().contains("was removed from this group"), "{refused}");

    let error = add(&brokers[0].group, 3, federation.address(3)).await.unwrap_err().to_string();
    assert!(error.contains("numbers are never used again"), "{error}");
    removed.crash().await;
    for broker in brokers {
        broker.stop().await;
    }
}

#[test]
fn a_change_that_would_cost_the_majority_is_refused() {
    in_time(async || {
        let federation = Federation::new(3);
        let mut brokers = federation.three().await;
        brokers[0].group.change_members(by_admin(MembershipChange::TransferLeader { to: Some(1) })).await.unwrap();
        leader(&brokers).await;
        brokers.pop().unwrap().crash().await;
        let error = change(&brokers[0].group, MembershipChange::Remove { id: 2 }).await.unwrap_err().to_string();
        assert!(error.contains("the voters are 1, 3; only 1 answer"), "{error}");
        // The one that is down may go.
        change(&brokers[1].group, MembershipChange::Remove { id: 3 }).await.unwrap();
        assert_eq!(changed(&brokers[0].group, 1).await, 1);
        for (refused, reason) in [
            (MembershipChange::Promote { id: 9 }, "no member"),
            (MembershipChange::Remove { id: 9 }, "never was"),
            (MembershipChange::TransferLeader { to: Some(3) }, "does not vote"),
        ] {
            let error = change(&brokers[1].group, refused).await.unwrap_err().to_string();
            assert!(error.contains(reason), "{error}");
        }
        for broker in brokers {
            broker.stop().await;
        }
    });
}

#[test]
fn leadership_goes_where_it_is_sent_and_the_leader_may_be_removed() {
    in_time(async || {
        let federation = Federation::new(3);
        let mut brokers = federation.three().await;
        for to in [3, 2, 1] {
            change(&brokers[0].group, MembershipChange::TransferLeader { to: Some(to) }).await.unwrap();
            assert_eq!(brokers[leader(&brokers).await].id, to);
            assert_eq!(changed(&brokers[1].group, to).await, 4 - to);
        }
        change(&brokers[2].group, MembershipChange::Remove { id: 1 }).await.unwrap();
        brokers.remove(0).crash().await;
        assert_eq!(changed(&brokers[0].group, 9).await, 4);
        for broker in brokers {
            broker.stop().await;
        }
    });
}

fn user(name: &str) -> Actor {
    Actor::User(format!("spiffe://group.test/user/{name}"))
}

/// Puts a bundle into force in which these users maintain the federation.
async fn maintained_by(group: &Group, commit: u64, names: &[&str]) {
    let mut proposal = policy(commit);
    let Command::ApplyPolicy(apply) = &mut proposal.command else { unreachable!() };
    let ids: Vec<String> = names.iter().map(|name| user(name).name()).collect();
    for file in &mut apply.source.files {
        file.text = file.text.replace("[\"spiffe://group.test/user/admin\"]", &format!("{ids:?}"));
    }
    assert_eq!(group.propose(proposal).await.unwrap().reply, Ok(ReplyBody::Policy { changed: true }));
}

async fn refused(group: &Group, by: &str, change: MembershipChange) -> Code {
    let requested = RequestedChange { actor: user(by), generation: 0, change };
    match group.change_members(requested).await.unwrap_err() {
        GroupError::Refused(refusal) => refusal.code,
        other => panic!("{other}"),
    }
}

/// The brokers here admit nobody, so each is one that lags behind the revocation.
#[test]
fn revoked_maintainer_changes_the_group() {
    in_time(async || {
        let federation = Federation::new(3);
        let brokers = federation.three().await;
        let index = leader(&brokers).await;
        let [leading, follower, other] = [0, 1, 2].map(|next| &brokers[(index + next) % 3]);
        maintained_by(&leading.group, 1, &["admin", "erin", "frank"]).await;
        // It waits behind another change.
        let turn = Arc::clone(&leading.group.inner.changing).lock_owned().await;
        let queued = {
            let (group, id) = (follower.group.clone(), other.id);
            tokio::spawn(async move { refused(&group, "erin", MembershipChange::Remove { id }).await })
        };
        tokio::time::sleep(Duration::from_millis(300)).await;
        let command = RevokeUser { user: "erin".to_owned(), allow_unknown: false, leases: LeaseTreatment::Finish };
        let revoke = Proposal { actor: user("admin"), command: Command::RevokeUser(command), ..policy(2) };
        leading.group.propose(revoke).await.unwrap().reply.unwrap();
        maintained_by(&leading.group, 2, &["admin", "erin"]).await;
        drop(turn);
        assert_eq!(queued.await.unwrap(), Code::Revoked);

        for (by, code) in [("erin", Code::Revoked), ("frank", Code::PermissionDenied)] {
            for change in [
                MembershipChange::Remove { id: other.id },
                MembershipChange::Remove { id: leading.id },
                MembershipChange::Promote { id: other.id },
                MembershipChange::AddLearner { id: 4, address: federation.address(3) },
                MembershipChange::TransferLeader { to: Some(follower.id) },
                MembershipChange::TransferLeader { to: None },
            ] {
                assert_eq!(refused(&follower.group, by, change.clone()).await, code, "{by}: {change:?}");
            }
        }
        assert_eq!(leader(&brokers).await, index);
        all_vote(&brokers).await;
        for broker in brokers {
            broker.stop().await;
        }
    });
}
