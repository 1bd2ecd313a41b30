//! Brokers that cannot reach each other, and leaders whose process has ended.

use comity_runtime::clock::SystemClock;
use comity_runtime::spiffe::UserName;
use comity_runtime::tls::PeerInfo;
use tokio::sync::watch;

use super::*;
use crate::api::authorize::Rpc;
use crate::api::caller_life::CallerLife;
use crate::api::rpc_error::RpcError;
use crate::group::tests::line::{CUT, Lines, Open, WHOLE};

/// Three brokers, the lines between them, and the leader.
async fn three_with_lines(federation: &Federation) -> (Vec<TestBroker>, Lines, usize) {
    let brokers = vec![federation.start(1).await, federation.start(2).await, federation.start(3).await];
    let lines = Lines::lay(federation, &brokers).await;
    brokers[0].group.found().await.unwrap();
    all_vote(&brokers).await;
    let index = leader(&brokers).await;
    changed(&brokers[index].group, 1).await;
    (brokers, lines, index)
}

async fn stop_all(brokers: Vec<TestBroker>, lines: &Lines) {
    for broker in &brokers {
        lines.set(broker.id, WHOLE, WHOLE);
    }
    for broker in brokers {
        broker.stop().await;
    }
}

fn leads(broker: &TestBroker) -> bool {
    broker.group.leadership().borrow().is_leader()
}

/// Time until `look` is true.
async fn until(what: &str, look: impl Fn() -> bool) -> Duration {
    let began = Instant::now();
    eventually(what, || async { look().then_some(()) }).await;
    began.elapsed()
}

fn term(broker: &TestBroker) -> u64 {
    broker.group.inner.raft.metrics().borrow_watched().current_term
}

#[test]
fn a_broker_that_was_removed_while_nobody_reached_it_stops_when_it_is_back() {
    in_time(async || {
        let federation = Federation::new(3);
        let (brokers, lines, index) = three_with_lines(&federation).await;
        let (leading, away) = (&brokers[index], &brokers[(index + 1) % 3]);
        lines.set(away.id, CUT, CUT);
        leading.group.change_members(by_admin(MembershipChange::Remove { id: away.id })).await.unwrap();
        lines.set(away.id, WHOLE, WHOLE);
        let halt = tokio::time::timeout(SOON, away.group.stopped()).await.unwrap();
        assert!(matches!(&halt, Halt::Stopped(reason) if reason.contains("was removed from its group")), "{halt:?}");
        stop_all(brokers, &lines).await;
    });
}

#[test]
fn an_isolated_leader_leads_no_more_and_sends_callers_away() {
    in_time(async || {
        let federation = Federation::new(3);
        let (brokers, lines, index) = three_with_lines(&federation).await;
        let old = &brokers[index];
        lines.set(old.id, CUT, CUT);
        let took = until("the isolated leader to step down", || !leads(old)).await;
        let timing = Timing::default();
        assert!(took < timing.election_max + Duration::from_millis(400), "it took {took:?}");
        let status = old.group.status().await;
        assert_eq!((status.role, status.leader), (Role::Follower, None));

        // Both kinds of calls are sent away within a second, and say that nothing was carried out.
        let began = Instant::now();
        let error = old.group.propose(policy(2)).await.unwrap_err();
        assert!(matches!(error, Unavailable::NoLeader { .. }), "{error}");
        let error = old.group.read(Consistency::Linearizable, |_| ()).await.unwrap_err();
        assert!(matches!(error, Unavailable::NoLeader { .. }), "{error}");
        assert!(began.elapsed() < Duration::from_secs(2), "both calls took {:?}", began.elapsed());
        // A change of the members may take two minutes, but not where nobody leads.
        let change = old.group.change_members(by_admin(MembershipChange::TransferLeader { to: None }));
        let error = tokio::time::timeout(SOON, change).await.unwrap().unwrap_err();
        assert!(matches!(error, GroupError::Unavailable(Unavailable::NoLeader { .. })), "{error}");

        // The others go on, and the old leader follows once it is back.
        let other = &brokers[(index + 1) % 3].group;
        eventually("a write elsewhere", || async { other.propose(policy(2)).await.ok() }).await;
        lines.set(old.id, WHOLE, WHOLE);
        assert_eq!(same_everywhere(&brokers).await.0, 2);
        assert!(!leads(old));
        stop_all(brokers, &lines).await;
    });
}

#[test]
fn a_leader_that_reaches_its_majority_again_in_the_same_term_counts_the_outage() {
    in_time(async || {
        let federation = Federation::new(3);
        let (brokers, lines, index) = three_with_lines(&federation).await;
        let (old, before) = (&brokers[index], term(&brokers[index]));
        old.begin_term().await;
        for follower in brokers.iter().filter(|broker| broker.id != old.id) {
            follower.group.inner.raft.runtime_config().elect(false);
        }
        let cut = Instant::now();
        brokers.iter().for_each(|broker| lines.set(broker.id, CUT, CUT));
        until("the leader to lead no more", || !leads(old)).await;
        tokio::time::sleep(Duration::from_secs(3)).await;
        let without = cut.elapsed();
        brokers.iter().for_each(|broker| lines.set(broker.id, WHOLE, WHOLE));
        until("the leader to lead again", || leads(old)).await;
        assert_eq!(term(old), before, "this test is about one term");
        let outage = Duration::from_millis(old.begin_term().await.0);
        // A majority's last answer may be half a second old when it is recorded.
        assert!(outage + Duration::from_millis(100) >= without && outage <= cut.elapsed() + Duration::from_secs(1));
        changed(&old.group, 2).await;
        stop_all(brokers, &lines).await;
    });
}

#[test]
fn an_isolated_follower_knows_no_leader_and_starts_no_election_when_it_is_back() {
    in_time(async || {
        let federation = Federation::new(3);
        let (brokers, lines, index) = three_with_lines(&federation).await;
        let before = term(&brokers[index]);
        let follower = &brokers[(index + 1) % 3];
        lines.set(follower.id, CUT, CUT);
        let none = Leadership::Follower { leader: None };
        until("the follower to know no leader", || *follower.group.leadership().borrow() == none).await;
        // Long enough for several election timeouts.
        tokio::time::sleep(Duration::from_secs(4)).await;
        for commit in 2..=5 {
            changed(&brokers[index].group, commit).await;
        }
        lines.set(follower.id, WHOLE, WHOLE);
        assert_eq!(same_everywhere(&brokers).await.0, 5);
        tokio::time::sleep(Duration::from_secs(2)).await;
        assert!(leads(&brokers[index]), "another leads");
        assert!(brokers.iter().all(|broker| term(broker) == before), "an election was held");
        stop_all(brokers, &lines).await;
    });
}

#[test]
fn a_deaf_leader_falls_silent_so_that_another_is_elected() {
    in_time(async || {
        let federation = Federation::new(3);
        let (brokers, lines, index) = three_with_lines(&federation).await;
        let old = &brokers[index];
        // Its calls arrive, but it hears neither answers nor calls.
        lines.set(old.id, Open { there: true, back: false }, CUT);
        until("the deaf leader to step down", || !leads(old)).await;
        let took = until("another leader", || brokers.iter().any(|broker| broker.id != old.id && leads(broker))).await;
        // Its connections themselves would last for four seconds, and renew the others' leases until then.
        assert!(took < Duration::from_secs(4), "it took {took:?}");
        let next = brokers.iter().find(|broker| leads(broker)).unwrap();
        changed(&next.group, 2).await;
        lines.set(old.id, WHOLE, WHOLE);
        assert_eq!(same_everywhere(&brokers).await.0, 2);
        stop_all(brokers, &lines).await;
    });
}

#[test]
fn a_broker_that_comes_back_after_a_while_starts_no_election() {
    in_time(async || {
        let federation = Federation::new(3);
        let mut brokers = federation.three().await;
        let index = leader(&brokers).await;
        let behind = brokers.remove((index + 1) % 3);
        let id = behind.id;
        behind.crash().await;
        let index = leader(&brokers).await;
        for commit in 1..=20 {
            changed(&brokers[index].group, commit).await;
        }
        tokio::time::sleep(Duration::from_secs(2)).await;
        let (before, leading) = (term(&brokers[index]), brokers[index].id);
        brokers.push(federation.start(id).await);
        assert_eq!(same_everywhere(&brokers).await.0, 20);
        tokio::time::sleep(Duration::from_secs(2)).await;
        let index = leader(&brokers).await;
        assert_eq!((brokers[index].id, term(&brokers[index])), (leading, before));
        for broker in brokers {
            broker.stop().await;
        }
    });
}

#[test]
fn a_leader_whose_process_ended_is_replaced_at_once() {
    in_time(async || {
        let federation = Federation::new(3);
        let mut brokers = federation.three().await;
        for round in 0..3 {
            let index = leader(&brokers).await;
            // Followers attend within a moment of following.
            tokio::time::sleep(Duration::from_millis(300)).await;
            let dead = brokers.remove(index);
            let id = dead.id;
            // Without its port nobody listens; what it still had open ends with it.
            let died = Instant::now();
            dead.crash().await;
            let took = until("another leader", || brokers.iter().any(leads)).await;
            let timing = Timing::default();
            assert!(
                took < timing.election_max + timing.election_min,
                "round {round}: {took:?}, as if the lease had been waited for"
            );
            changed(&brokers[0].group, round + 1).await;
            println!("round {round}: a leader after {took:?}, a write after {:?}", died.elapsed());
            brokers.push(federation.start(id).await);
            same_everywhere(&brokers).await;
        }
        for broker in brokers {
            broker.stop().await;
        }
    });
}

#[test]
fn a_port_that_closes_after_the_stream_does_not_make_the_others_wait_for_the_lease() {
    in_time(async || {
        let federation = Federation::new(3);
        let mut brokers = federation.three().await;
        let index = leader(&brokers).await;
        // Followers attend within a moment of following; the stream stays where it was opened.
        tokio::time::sleep(Duration::from_millis(300)).await;
        let closing = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let dead = brokers.remove(index);
        for follower in &brokers {
            follower.group.inner.peers.lay_line(dead.id, closing.local_addr().unwrap().to_string());
        }
        let died = Instant::now();
        dead.crash().await;
        tokio::time::sleep(Duration::from_millis(100)).await;
        drop(closing);
        until("another leader", || brokers.iter().any(leads)).await;
        let timing = Timing::default();
        assert!(died.elapsed() < timing.election_max + timing.election_min, "after {:?}", died.elapsed());
        for broker in brokers {
            broker.stop().await;
        }
    });
}

#[test]
fn a_follower_that_finds_its_leader_gone_alone_is_not_believed() {
    in_time(async || {
        let federation = Federation::new(3);
        let brokers = federation.three().await;
        let index = leader(&brokers).await;
        let before = term(&brokers[index]);
        let misled = &brokers[(index + 1) % 3];
        // Nobody listens where it looks for the leader.
        let nobody = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        misled.group.inner.peers.lay_line(brokers[index].id, nobody.to_string());
        let vote = misled.group.inner.raft.metrics().borrow_watched().vote;
        let later = Instant::now() + SOON;
        misled.group.inner.stand_for_election(failover::Followed { leader: brokers[index].id, vote }, later).await;
        assert!(leads(&brokers[index]));
        assert!(brokers.iter().all(|broker| term(broker) == before), "an election was held");
        for broker in brokers {
            broker.stop().await;
        }
    });
}

#[test]
fn a_call_that_was_handed_to_a_leader_that_hangs_goes_to_the_next_one() {
    in_time(async || {
        let federation = Federation::new(3);
        let (brokers, lines, index) = three_with_lines(&federation).await;
        lines.set(brokers[index].id, CUT, CUT);
        // Handed on at once: nobody has missed the leader yet.
        let began = Instant::now();
        assert_eq!(changed(&brokers[(index + 1) % 3].group, 2).await, 2);
        // Without giving up the old leader it would take the call's whole deadline.
        assert!(began.elapsed() < Duration::from_millis(3_500), "it took {:?}", began.elapsed());
        stop_all(brokers, &lines).await;
    });
}

#[test]
fn isolated_broker_answers_revoked_user() {
    in_time(async || {
        let federation = Federation::new(3);
        let (brokers, lines, index) = three_with_lines(&federation).await;
        let clock = SystemClock::new();
        for isolated in [&brokers[index], &brokers[(index + 1) % 3]] {
            let begin = async |rpc| {
                let id = SpiffeId::user(federation.domain(), UserName::new("alice").unwrap());
                let peer = PeerInfo { spiffe: Some(id), ..PeerInfo::anonymous("127.0.0.1:1".parse().unwrap()) };
                CallerLife::begin(Some(peer), rpc, &isolated.group).await
            };
            let life = begin(Rpc::Watch).await.unwrap();
            lines.set(isolated.id, CUT, CUT);
            let (cut, (_revocations, seen)) = (Instant::now(), watch::channel(0));
            let ended = life.ended(&isolated.group, &clock, seen);
            let ended = tokio::time::timeout(SOON, ended).await.unwrap();
            assert!(matches!(ended, RpcError::Unavailable(Unavailable::NoLeader { .. })), "{ended:?}");
            assert!(cut.elapsed() <= Duration::from_secs(5), "it took {:?}", cut.elapsed());
            // Whatever the consistency of a read.
            let refused = begin(Rpc::ListLeases).await.unwrap_err();
            assert!(matches!(refused, RpcError::Unavailable(Unavailable::NoLeader { .. })), "{refused:?}");
            begin(Rpc::GetRaftStatus).await.unwrap();
            lines.set(isolated.id, WHOLE, WHOLE);
            eventually("it to serve again", || async { begin(Rpc::ListLeases).await.ok() }).await;
            leader(&brokers).await;
        }
        stop_all(brokers, &lines).await;
    });
}
