//! Brokers that stop, crash and come back.

use super::*;

#[tokio::test(flavor = "multi_thread")]
async fn one_voter_keeps_everything_over_a_restart() {
    let federation = Federation::new(1);
    let broker = federation.start(1).await;
    broker.group.found().await.unwrap();
    assert_eq!(broker.observer.restored.load(Ordering::Relaxed), 1);
    for commit in 1..=5 {
        assert_eq!(changed(&broker.group, commit).await, commit);
    }
    assert_eq!(read_revision(&broker.group, Consistency::Linearizable).await, 5);
    assert_eq!(*broker.group.revision().borrow(), 5);
    let before = broker.group.status().await;
    assert_eq!((before.role, before.leader), (Role::Leader, Some(1)));
    broker.crash().await;

    let broker = federation.start(1).await;
    // Again on a group that exists: nothing happens.
    assert_eq!(broker.group.found().await.unwrap(), Founded::Here);
    assert_eq!(read_revision(&broker.group, Consistency::Linearizable).await, 5);
    assert_eq!(broker.group.status().await.state_sha256, before.state_sha256);
    assert_eq!(changed(&broker.group, 6).await, 6);
    broker.stop().await;
}

#[test]
fn another_leads_when_the_leader_dies() {
    in_time(async || {
        let federation = Federation::new(3);
        let mut brokers = federation.three().await;
        let index = leader(&brokers).await;
        changed(&brokers[index].group, 1).await;
        let dead = brokers.remove(index);
        let id = dead.id;
        dead.crash().await;

        let died = Instant::now();
        let revision = changed(&brokers[0].group, 2).await;
        let took = died.elapsed();
        assert_eq!(revision, 2);
        assert!(took < Duration::from_secs(4), "no write for {took:?}");
        assert_eq!(read_revision(&brokers[1].group, Consistency::Linearizable).await, 2);

        // The dead one comes back and catches up.
        brokers.push(federation.start(id).await);
        assert_eq!(same_everywhere(&brokers).await.0, 2);
        for broker in brokers {
            broker.stop().await;
        }
    });
}

#[test]
fn a_leader_that_stops_hands_over() {
    in_time(async || {
        let federation = Federation::new(3);
        let mut brokers = federation.three().await;
        let index = leader(&brokers).await;
        changed(&brokers[index].group, 1).await;
        let term = brokers[index].group.status().await.term;
        brokers.remove(index).stop().await;
        let next = leader(&brokers).await;
        assert_eq!(brokers[next].group.status().await.term, term + 1);
        assert_eq!(changed(&brokers[0].group, 2).await, 2);
        for broker in brokers {
            broker.stop().await;
        }
    });
}

#[tokio::test(flavor = "multi_thread")]
async fn all_three_come_back_as_they_were() {
    let mut federation = Federation::new(3);
    federation.snapshot_every = 20;
    let brokers = federation.three().await;
    leader(&brokers).await;
    for commit in 1..=50 {
        changed(&brokers[0].group, commit).await;
    }
    let before = same_everywhere(&brokers).await;
    assert!(brokers[0].group.status().await.snapshot_index > 0, "no snapshot was made");
    for broker in brokers {
        broker.crash().await;
    }

    let brokers = vec![federation.start(1).await, federation.start(2).await, federation.start(3).await];
    assert_eq!(read_revision(&brokers[2].group, Consistency::Linearizable).await, 50);
    assert_eq!(same_everywhere(&brokers).await, before);
    assert_eq!(changed(&brokers[0].group, 51).await, 51);
    for broker in brokers {
        broker.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn without_a_majority_nothing_is_promised() {
    let federation = Federation::new(3);
    let mut brokers = federation.three().await;
    let index = leader(&brokers).await;
    changed(&brokers[index].group, 1).await;
    let last = brokers.remove(index);
    for broker in brokers {
        broker.crash().await;
    }
    let error = last.group.propose(policy(2)).await.unwrap_err();
    assert!(error.may_have_been_carried_out(), "{error}");
    assert!(error.to_string().contains("may or may not"), "{error}");
    assert!(last.group.read(Consistency::Linearizable, |_| ()).await.is_err());
    assert_eq!(read_revision(&last.group, Consistency::Stale).await, 1);
    last.crash().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_restarted_broker_says_when_it_has_caught_up() {
    let federation = Federation::new(3);
    let mut brokers = federation.three().await;
    leader(&brokers).await;
    changed(&brokers[0].group, 1).await;
    same_everywhere(&brokers).await;
    let last = brokers.pop().unwrap();
    last.stop().await;
    leader(&brokers).await;
    changed(&brokers[0].group, 2).await;
    for broker in brokers {
        broker.stop().await;
    }

    let last = federation.start(3).await;
    assert!(read_revision(&last.group, Consistency::Stale).await < 2);
    assert!(last.group.catch_up_since_start().await.is_err());
    assert!(!*last.group.caught_up().borrow());
    let others = [federation.start(1).await, federation.start(2).await];
    eventually("it to catch up", || async { last.group.catch_up_since_start().await.ok() }).await;
    assert!(*last.group.caught_up().borrow());
    assert_eq!(read_revision(&last.group, Consistency::Stale).await, 2);
    for broker in others.into_iter().chain([last]) {
        broker.stop().await;
    }
}
