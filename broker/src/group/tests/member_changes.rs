//! Membership changes by a maintainer.

use super::*;

async fn change(group: &Group, change: MembershipChange) -> Result<(), GroupError> {
    group.change_members(change).await
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

#[tokio::test(flavor = "multi_thread")]
async fn a_change_that_would_cost_the_majority_is_refused() {
    let federation = Federation::new(3);
    let mut brokers = federation.three().await;
    brokers[0].group.change_members(MembershipChange::TransferLeader { to: Some(1) }).await.unwrap();
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
}

#[tokio::test(flavor = "multi_thread")]
async fn leadership_goes_where_it_is_sent_and_the_leader_may_be_removed() {
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
}
