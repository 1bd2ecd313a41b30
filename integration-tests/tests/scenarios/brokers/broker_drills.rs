//! Observations by clients and operators of an isolated leader and of a broken disk.

use std::time::Duration;

use comity_scenarios::brokers;
use comity_scenarios::brokers::drills::{DiskDrill, break_disk, isolate_leader};
use comity_testkit::requirements;

/// A leader without a majority stops leading after its lease of 0.8 s; the rest is a margin for loaded machines.
const STEPS_DOWN: Duration = Duration::from_secs(4);
/// The others elect within 2 s, and a client reaches them within another; the rest is a margin for loaded machines.
/// A client that stays with its broker waits for a minute.
const GOES_ELSEWHERE: Duration = Duration::from_secs(15);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn clients_of_a_leader_without_peers_go_to_the_next_one() {
    if !requirements::met("an isolated leader", &brokers::missing()) {
        return;
    }
    let seen = isolate_leader().await.unwrap();
    println!(
        "a call was answered after {:?}, the command's after {:?}; the metric was 0 after {:?}",
        seen.channel, seen.command, seen.metric
    );
    assert!(seen.channel < GOES_ELSEWHERE && seen.command < GOES_ELSEWHERE, "{seen:?}");
    assert!(seen.metric < STEPS_DOWN, "{seen:?}");
    assert_eq!(seen.leaders, (1, 1), "{seen:?}");
    assert_eq!(seen.alone, Err(tonic::Code::Unavailable), "the leader that was isolated took a write: {seen:?}");
    assert!(seen.lost.is_empty(), "{seen:?}");
}

async fn nothing_is_lost(drill: DiskDrill, fault: &str, remedy: &str) {
    if !requirements::met("a disk that breaks", &brokers::missing()) {
        return;
    }
    let seen = break_disk(drill).await.unwrap();
    for text in [&seen.running, &seen.started] {
        for part in [fault, remedy, "nothing is lost, leave the directory where it is"] {
            assert!(text.contains(part), "{part:?} is missing in\n{text}");
        }
        assert!(!text.contains("is damaged"), "{text}");
    }
    assert!(seen.acknowledged > 20, "nothing was acknowledged without the broken disk: {seen:?}");
    assert!(seen.lost.is_empty(), "lost {:?}", seen.lost);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_disk_that_becomes_read_only_ends_its_broker_and_nothing_is_lost() {
    nothing_is_lost(DiskDrill::ReadOnly, "the file system is read-only", "mount it writable").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_disk_that_fails_ends_its_broker_and_nothing_is_lost() {
    nothing_is_lost(DiskDrill::Failing, "the device reports an error", "replace the disk where it is failing").await;
}
