//! Disks that lost the log or its end, and misassembled groups.

use super::*;
use crate::storage::{found_on, read_best, read_copy};

/// Observation time of tests that nothing happens.
const QUIET: Duration = Duration::from_secs(3);

fn wipe(federation: &Federation, id: u64) {
    // Tasks of the broker that was there may be about to write their last file.
    let gone = (0..50).any(|_| {
        let removed = std::fs::remove_dir_all(federation.data(id)).is_ok();
        std::thread::sleep(Duration::from_millis(20));
        removed && !federation.data(id).exists()
    });
    assert!(gone, "the data of broker {id} cannot be removed");
}

/// Keeps a copy of a stopped broker's disk.
fn copy(federation: &Federation, id: u64) -> std::path::PathBuf {
    let to = federation.dir.path().join(format!("copy-{id}"));
    // Tasks of the broker may still replace their last file: then the copy starts again.
    for _ in 0..50 {
        match copy_dir(&federation.data(id), &to) {
            Ok(()) => return to,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => std::fs::remove_dir_all(&to).unwrap(),
            Err(error) => panic!("the data of broker {id} cannot be copied: {error}"),
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    panic!("the data of broker {id} does not come to rest");
}

fn copy_dir(from: &Path, to: &Path) -> std::io::Result<()> {
    std::fs::create_dir_all(to)?;
    for entry in std::fs::read_dir(from)? {
        let entry = entry?;
        let target = to.join(entry.file_name());
        if entry.file_type()?.is_dir() {
            copy_dir(&entry.path(), &target)?;
        } else {
            std::fs::copy(entry.path(), target)?;
        }
    }
    Ok(())
}

fn restore(federation: &Federation, id: u64, copy: &Path) {
    wipe(federation, id);
    std::fs::rename(copy, federation.data(id)).unwrap();
}

fn incarnation_in(broker: &TestBroker, of: u64) -> Option<Incarnation> {
    broker.group.members().into_iter().find(|member| member.id == of).map(|member| member.incarnation)
}

async fn crash_all(brokers: Vec<TestBroker>) {
    for broker in brokers {
        broker.crash().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wiped_majority_loses_nothing_that_was_acknowledged() {
    let federation = Federation::new(3);
    let mut brokers = federation.three().await;
    leader(&brokers).await;
    brokers.pop().unwrap().crash().await;
    for commit in 1..=40 {
        changed(&brokers[0].group, commit).await;
    }
    crash_all(brokers).await;

    // Broker 3 never had these; broker 2 has nothing any more.
    wipe(&federation, 2);
    let (two, three) = (federation.start(2).await, federation.start(3).await);
    tokio::time::sleep(QUIET).await;
    for broker in [&two, &three] {
        assert!(!broker.group.leadership().borrow().is_leader(), "broker {} leads without the log", broker.id);
        assert_ne!(broker.group.status().await.leader, Some(2));
    }
    assert!(two.group.propose(policy(99)).await.is_err(), "a write was taken without those that were acknowledged");

    // With the one that has them, everything is there, and the wiped one votes again.
    let brokers = vec![federation.start(1).await, two, three];
    assert_eq!(read_revision(&brokers[1].group, Consistency::Linearizable).await, 40);
    all_vote(&brokers).await;
    assert_eq!(same_everywhere(&brokers).await.0, 40);
    assert_eq!(changed(&brokers[1].group, 41).await, 41);
    crash_all(brokers).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wiped_broker_comes_back_by_itself_and_votes_once_it_has_caught_up() {
    let mut federation = Federation::new(3);
    federation.snapshot_every = 10;
    let mut brokers = federation.three().await;
    leader(&brokers).await;
    // The founder: its history begins with a group of it alone.
    let before = incarnation_in(&brokers[1], 1);
    brokers.remove(0).crash().await;
    for commit in 1..=25 {
        changed(&brokers[0].group, commit).await;
    }
    wipe(&federation, 1);
    let wiped = federation.start(1).await;
    assert!(!wiped.group.inner.eligibility.may_vote(), "it votes before anybody admitted it");
    brokers.insert(0, wiped);
    all_vote(&brokers).await;
    assert_eq!(same_everywhere(&brokers).await.0, 25);
    let after = incarnation_in(&brokers[1], 1);
    assert!(after.is_some() && after != before, "{before:?} {after:?}");

    // Its vote counts: the group goes on without another one.
    brokers.pop().unwrap().crash().await;
    assert_eq!(changed(&brokers[0].group, 26).await, 26);
    crash_all(brokers).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn empty_brokers_never_found_a_group_because_they_met() {
    let federation = Federation::new(3);
    let brokers = federation.three().await;
    changed(&brokers[leader(&brokers).await].group, 1).await;
    crash_all(brokers).await;
    for id in [1, 2] {
        wipe(&federation, id);
    }
    let brokers = vec![federation.start(1).await, federation.start(2).await];
    tokio::time::sleep(QUIET).await;
    for broker in &brokers {
        assert_eq!(broker.group.status().await.leader, None);
        assert!(broker.group.inner.eligibility.group().is_none());
    }
    crash_all(brokers).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_founder_joins_instead_where_another_has_a_log() {
    let federation = Federation::new(3);
    let brokers = federation.three().await;
    changed(&brokers[leader(&brokers).await].group, 1).await;
    let mut brokers: std::collections::VecDeque<TestBroker> = brokers.into();
    brokers.pop_front().unwrap().crash().await;
    wipe(&federation, 1);
    let again = federation.start(1).await;
    assert_eq!(again.group.found().await.unwrap(), Founded::JoinsInstead);
    brokers.push_front(again);
    let brokers: Vec<TestBroker> = brokers.into();
    all_vote(&brokers).await;
    assert_eq!(same_everywhere(&brokers).await.0, 1);
    crash_all(brokers).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_older_copy_of_a_disk_is_known_to_the_leader_and_begins_a_new_life() {
    let federation = Federation::new(3);
    let mut brokers = federation.three().await;
    // Of the founder, which leads: what the others acknowledged is in its memory.
    brokers[0].group.change_members(by_admin(MembershipChange::TransferLeader { to: Some(1) })).await.unwrap();
    leader(&brokers).await;
    changed(&brokers[0].group, 1).await;
    same_everywhere(&brokers).await;
    brokers.pop().unwrap().crash().await;
    let older = copy(&federation, 3);
    brokers.push(federation.start(3).await);
    for commit in 2..=20 {
        changed(&brokers[0].group, commit).await;
    }
    same_everywhere(&brokers).await;
    brokers.pop().unwrap().crash().await;
    restore(&federation, 3, &older);

    let rolled_back = federation.start(3).await;
    let halt = tokio::time::timeout(SOON, rolled_back.group.stopped()).await.unwrap();
    assert!(matches!(&halt, Halt::LogLost(reason) if reason.contains("had acknowledged")), "{halt:?}");
    assert!(rolled_back.group.read(Consistency::Stale, |_| ()).await.is_ok());
    assert!(rolled_back.group.read(Consistency::Linearizable, |_| ()).await.is_err(), "it answers after it stopped");
    rolled_back.crash().await;

    brokers.push(federation.start(3).await);
    assert!(federation.data(3).join("lost-1").is_dir());
    all_vote(&brokers).await;
    assert_eq!(same_everywhere(&brokers).await.0, 20);
    crash_all(brokers).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_older_copy_is_known_to_a_member_that_missed_the_writes() {
    let federation = Federation::new(3);
    let mut brokers = federation.three().await;
    brokers[0].group.change_members(by_admin(MembershipChange::TransferLeader { to: Some(1) })).await.unwrap();
    leader(&brokers).await;
    changed(&brokers[0].group, 1).await;
    same_everywhere(&brokers).await;
    // A copy of broker 2, which then starts again while broker 3 is there, and misses nothing.
    let two = brokers.remove(1);
    two.crash().await;
    let older = copy(&federation, 2);
    brokers.insert(1, federation.start(2).await);
    all_vote(&brokers).await;
    same_everywhere(&brokers).await;
    // Broker 3 misses what brokers 1 and 2 acknowledge; then the two are gone, and broker 2 comes back as its copy.
    brokers.pop().unwrap().crash().await;
    for commit in 2..=5 {
        changed(&brokers[0].group, commit).await;
    }
    same_everywhere(&brokers).await;
    crash_all(brokers).await;
    restore(&federation, 2, &older);

    let (two, three) = (federation.start(2).await, federation.start(3).await);
    let halt = tokio::time::timeout(SOON, two.group.stopped()).await.unwrap();
    assert!(matches!(&halt, Halt::LogLost(reason) if reason.contains("an older copy of its data")), "{halt:?}");
    two.crash().await;
    // Under its next incarnation it waits, with broker 3, for the broker that has the writes.
    let two = federation.start(2).await;
    tokio::time::sleep(QUIET).await;
    for broker in [&two, &three] {
        assert!(!broker.group.leadership().borrow().is_leader(), "broker {} leads without the writes", broker.id);
    }
    let brokers = vec![federation.start(1).await, two, three];
    all_vote(&brokers).await;
    assert_eq!(same_everywhere(&brokers).await.0, 5);
    crash_all(brokers).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sole_broker_that_lost_the_end_of_its_log_says_what_to_do() {
    let federation = Federation::new(1);
    let sole = federation.start(1).await;
    assert_eq!(sole.group.found().await.unwrap(), Founded::Here);
    changed(&sole.group, 1).await;
    sole.crash().await;
    let older = copy(&federation, 1);
    let sole = federation.start(1).await;
    for commit in 2..=20 {
        changed(&sole.group, commit).await;
    }
    // Time to write the log, and the note beside it of how far the log reaches.
    tokio::time::sleep(QUIET).await;
    sole.crash().await;
    std::fs::remove_dir_all(federation.data(1).join("log")).unwrap();
    std::fs::rename(older.join("log"), federation.data(1).join("log")).unwrap();

    warnings::keep();
    let said =
        || warnings::with("knows no other broker that could send it", &federation.dir.path().display().to_string());
    let rolled_back = federation.start(1).await;
    assert_eq!(said(), [""; 0], "others may still find it");
    eventually("the sole broker to say what to do", || async { said().pop() }).await;
    let said = said().pop().unwrap();
    let command = format!("comity-broker recover --from {}`", federation.data(1).parent().unwrap().display());
    assert!(said.contains(&command), "{said}");
    assert_eq!(rolled_back.group.status().await.leader, None);
    rolled_back.crash().await;
    // What the message says works: the remains become a group again.
    let group = federation.data(1);
    let (made, address) = (federation.dir.path().join("made"), federation.address(1));
    let recovered = move || {
        let best = read_best(&group, 1).unwrap();
        assert_eq!(best.dir, group.join("lost-1"));
        found_on(best.copy, (&group, &made), 1, address).map(|_| made)
    };
    let made = tokio::task::spawn_blocking(recovered).await.unwrap().unwrap();
    restore(&federation, 1, &made);
    let sole = federation.start(1).await;
    eventually("the recovered group to serve", || async { sole.group.propose(policy(7)).await.ok() }).await;
    sole.crash().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_young_log_that_is_lost_leaves_a_snapshot() {
    let federation = Federation::new(1);
    let sole = federation.start(1).await;
    assert_eq!(sole.group.found().await.unwrap(), Founded::Here);
    for commit in 1..=70 {
        changed(&sole.group, commit).await;
    }
    let snapshots = federation.data(1).join("snapshots");
    let made = || async {
        let mut files = std::fs::read_dir(&snapshots).ok()?.flatten();
        files.find(|file| file.path().extension().is_some_and(|extension| extension == "snapshot"))
    };
    eventually("an early snapshot", made).await;
    sole.crash().await;
    std::fs::remove_dir_all(federation.data(1).join("log")).unwrap();

    let (group, made, address) = (federation.data(1), federation.dir.path().join("made"), federation.address(1));
    let recovered = move || {
        let best = read_best(&group, 1).unwrap();
        let revision = best.copy.state.revision;
        assert!((50..=70).contains(&revision), "{revision}");
        found_on(best.copy, (&group, &made), 1, address).map(|_| made)
    };
    let made = tokio::task::spawn_blocking(recovered).await.unwrap().unwrap();
    restore(&federation, 1, &made);
    let sole = federation.start(1).await;
    eventually("the recovered group to serve", || async { sole.group.propose(policy(71)).await.ok() }).await;
    sole.crash().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sole_broker_on_an_empty_disk_says_what_to_do_and_takes_a_backup_back() {
    let federation = Federation::new(1);
    let sole = federation.start(1).await;
    assert_eq!(sole.group.found().await.unwrap(), Founded::Here);
    changed(&sole.group, 1).await;
    sole.crash().await;
    let backup = copy(&federation, 1);
    wipe(&federation, 1);

    warnings::keep();
    let emptied = federation.start(1).await;
    let said =
        || warnings::with("knows no other broker that could send it", &federation.dir.path().display().to_string());
    eventually("the sole broker to say what to do", || async { said().pop() }).await;
    let said = said().pop().unwrap();
    assert!(said.contains("put a backup of its data directory back"), "{said}");
    assert!(
        said.contains("comity-broker init") && !said.contains("comity-broker recover"),
        "nothing is left to recover: {said}"
    );
    assert_eq!(emptied.group.status().await.leader, None);
    emptied.crash().await;

    restore(&federation, 1, &backup);
    let sole = federation.start(1).await;
    assert_eq!(read_revision(&sole.group, Consistency::Linearizable).await, 1);
    sole.crash().await;
}

/// All start at once, so the older copy meets members that have not heard of it since they started.
#[tokio::test(flavor = "multi_thread")]
async fn older_disk_returns_after_its_broker_got_another_one() {
    let federation = Federation::new(3);
    let mut brokers = federation.three().await;
    changed(&brokers[leader(&brokers).await].group, 1).await;
    same_everywhere(&brokers).await;
    brokers.remove(0).crash().await;
    let older = copy(&federation, 1);
    wipe(&federation, 1);
    brokers.insert(0, federation.start(1).await);
    all_vote(&brokers).await;
    changed(&brokers[1].group, 2).await;
    same_everywhere(&brokers).await;
    crash_all(brokers).await;
    restore(&federation, 1, &older);

    let brokers = vec![federation.start(1).await, federation.start(2).await, federation.start(3).await];
    let halt = tokio::time::timeout(SOON, brokers[0].group.stopped()).await.unwrap();
    assert!(matches!(&halt, Halt::LogLost(reason) if reason.contains("later incarnation")), "{halt:?}");
    let mut brokers = brokers;
    brokers.remove(0).crash().await;
    brokers.insert(0, federation.start(1).await);
    all_vote(&brokers).await;
    assert_eq!(same_everywhere(&brokers).await.0, 2);
    crash_all(brokers).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_group_that_another_was_recovered_from_ends_where_it_hears_of_it() {
    let federation = Federation::new(3);
    let brokers = federation.three().await;
    changed(&brokers[leader(&brokers).await].group, 1).await;
    same_everywhere(&brokers).await;
    crash_all(brokers).await;
    // Broker 3 becomes a group of its own.
    let read = copy(&federation, 3);
    wipe(&federation, 3);
    let (data, address) = (federation.data(3), federation.address(3));
    let recovered = move || found_on(read_copy(&read, 3).unwrap(), (&read, &data), 3, address).unwrap();
    tokio::task::spawn_blocking(recovered).await.unwrap();

    // An operator starts the old majority as it was.
    let old = vec![federation.start(1).await, federation.start(2).await];
    leader(&old).await;
    let recovered = federation.start(3).await;
    let leading = old[leader(&old).await].group.clone();
    let halt = tokio::time::timeout(SOON, leading.stopped()).await.unwrap();
    assert!(halt.reason().contains("belongs to a group that was replaced"), "{halt:?}");
    eventually("the new group to serve", || async { recovered.group.propose(policy(7)).await.ok() }).await;
    for broker in &old {
        let halt = tokio::time::timeout(SOON, broker.group.stopped()).await.unwrap();
        assert!(matches!(halt, Halt::Stopped(_)), "{halt:?}");
    }
    crash_all(old).await;
    recovered.crash().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_broker_whose_log_is_ahead_of_its_group_stops_with_one_sentence() {
    let federation = Federation::new(3);
    let brokers = federation.three().await;
    changed(&brokers[leader(&brokers).await].group, 1).await;
    same_everywhere(&brokers).await;
    crash_all(brokers).await;
    let (two, three) = (copy(&federation, 2), copy(&federation, 3));
    let brokers = vec![federation.start(1).await, federation.start(2).await, federation.start(3).await];
    for commit in 2..=30 {
        changed(&brokers[0].group, commit).await;
    }
    same_everywhere(&brokers).await;
    crash_all(brokers).await;

    // Somebody put older copies in the place of a majority: nothing that is left of it can tell.
    restore(&federation, 2, &two);
    restore(&federation, 3, &three);
    let brokers = vec![federation.start(2).await, federation.start(3).await];
    let other = brokers[leader(&brokers).await].group.clone();
    changed(&other, 31).await;
    let ahead = federation.start(1).await;
    // The leader must say so for three of its leases, in answers that come in time.
    let halt = tokio::time::timeout(SOON * 3, ahead.group.stopped()).await.unwrap();
    assert!(halt.reason().contains("the log of broker 1 is ahead of its group's"), "{halt:?}");
    assert!(matches!(halt, Halt::Stopped(_)));
    assert!(ahead.group.read(Consistency::Linearizable, |_| ()).await.is_err());
    ahead.crash().await;
    crash_all(brokers).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_came_while_a_hello_was_underway_is_neither_lost_nor_ahead_of_the_leader() {
    let federation = Federation::new(3);
    let brokers = federation.three().await;
    let index = leader(&brokers).await;
    let (leader, follower) = (&brokers[index], &brokers[(index + 1) % 3]);
    changed(&leader.group, 1).await;
    let applied = same_everywhere(&brokers).await;
    let before = follower.group.inner.applied_position();
    let hello = comity_proto::raft::v1::HelloRequest {
        broker: follower.id,
        incarnation: follower.group.inner.eligibility.incarnation().as_str().to_owned(),
        ..Default::default()
    };
    let early = leader.group.serve_hello(&hello).await.unwrap();
    changed(&leader.group, applied.0 + 1).await;
    same_everywhere(&brokers).await;
    let late = leader.group.serve_hello(&hello).await.unwrap();
    let judge = |answer, applied| follower.group.inner.judge(leader.id, answer, applied);
    assert!(matches!(judge(&early, before), hello::Answer::Fine(_)), "entries came while the leader answered");
    assert!(matches!(judge(&late, before), hello::Answer::Fine(_)), "entries were acknowledged before the answer came");
    // The same answer to a broker that had applied more before it asked.
    let now = follower.group.inner.applied_position();
    assert!(matches!(judge(&early, now), hello::Answer::Behind(_)));
    crash_all(brokers).await;
}
