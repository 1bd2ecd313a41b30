//! Disks that hang, fill up, or are read-only.

use super::*;

/// Keeps a disk hanging until dropped, also by a failing test, so that the log's thread ends.
struct Stalled(storage::DiskWatch);

impl Stalled {
    fn stall(group: &Group) -> Self {
        let disk = group.inner.log.disk().clone();
        disk.stall();
        Self(disk)
    }
}

impl Drop for Stalled {
    fn drop(&mut self) {
        self.0.resume();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_leader_whose_disk_hangs_hands_over() {
    let federation = Federation::new(3);
    let brokers = federation.three().await;
    let index = leader(&brokers).await;
    changed(&brokers[index].group, 1).await;
    let slow = &brokers[index];
    let stalled = Stalled::stall(&slow.group);
    let began = Instant::now();
    let writer = slow.group.clone();
    let write = tokio::spawn(async move { writer.propose(policy(2)).await });
    eventually("another leader", || async {
        brokers
            .iter()
            .any(|broker| broker.id != slow.id && broker.group.leadership().borrow().is_leader())
            .then_some(())
    })
    .await;
    assert!(began.elapsed() < Duration::from_secs(4), "it took {:?}", began.elapsed());
    changed(&brokers[(index + 1) % 3].group, 3).await;
    drop(stalled);
    // The write that hung may have been lost or not; it was not promised.
    let _ = write.await.unwrap();
    same_everywhere(&brokers).await;
    assert!(slow.group.log_sync_seconds().get_sample_count() > 0);
    for broker in brokers {
        broker.stop().await;
    }
}

/// A small file system; `None` if this process may not mount one.
struct Mounted(std::path::PathBuf);

fn mount(arguments: &[&str]) -> bool {
    std::process::Command::new("mount").args(arguments).status().is_ok_and(|status| status.success())
}

impl Mounted {
    fn small(at: &Path, size: &str) -> Option<Self> {
        std::fs::create_dir_all(at).unwrap();
        let options = format!("size={size},mode=0700");
        let mounted = mount(&["-t", "tmpfs", "-o", &options, "comity-test", at.to_str().unwrap()]);
        assert!(
            mounted || std::env::var_os("CI").is_none(),
            "this test needs to be root, to mount a small file system"
        );
        if !mounted {
            eprintln!("not tested: needs to be root, to mount a small file system");
        }
        mounted.then(|| Self(at.to_owned()))
    }

    fn remount(&self, access: &str) {
        let options = format!("remount,{access}");
        assert!(mount(&["-o", &options, self.0.to_str().unwrap()]), "{options}");
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        let _ = std::process::Command::new("umount").arg("-l").arg(&self.0).status();
    }
}

fn deps(federation: &Federation) -> GroupDeps {
    let me = SpiffeId::broker(federation.domain(), 1);
    let pem = federation.ca.new_identity(&me, &[], Duration::from_secs(3600), SystemTime::now()).unwrap();
    let source = IdentitySource::new(TlsIdentity::from_pem(&pem).unwrap());
    GroupDeps {
        observer: Arc::new(Counting::default()),
        clock: Arc::new(SystemClock::new()),
        tls: ClientTls::new(federation.ca.roots().clone(), source.subscribe()),
    }
}

fn config(federation: &Federation) -> GroupConfig {
    let mut config = GroupConfig::new(1, federation.data(1), federation.domain());
    config.members = federation.members([1]);
    config
}

fn says_that_nothing_is_lost(text: &str, fault: &str) {
    assert!(text.contains(fault), "{text}");
    assert!(text.contains("nothing is lost, leave the directory where it is"), "{text}");
    assert!(!text.contains("damaged") && !text.contains("empty"), "{text}");
}

/// Fills a file system.
fn fill(dir: &Path) -> std::path::PathBuf {
    use std::io::Write as _;
    let path = dir.join("filler");
    let mut file = std::fs::File::create(&path).unwrap();
    while file.write_all(&[0; 512]).is_ok() {}
    path
}

#[tokio::test(flavor = "multi_thread")]
async fn a_full_disk_stops_the_broker_and_a_freed_one_goes_on() {
    let federation = Federation::new(1);
    let Some(_disk) = Mounted::small(&federation.data(1), "2m") else { return };
    let group = Group::start(config(&federation), deps(&federation)).await.unwrap();
    group.found().await.unwrap();
    changed(&group, 1).await;

    // While running: the process is told to end, with the reason and the remedy.
    let filler = fill(&federation.data(1));
    let mut acknowledged = 1;
    let writing = async {
        while group.propose(policy(acknowledged + 1)).await.is_ok() {
            acknowledged += 1;
        }
    };
    tokio::time::timeout(SOON, writing).await.unwrap();
    let reason = tokio::time::timeout(SOON, group.stopped()).await.unwrap();
    says_that_nothing_is_lost(reason.reason(), "the file system is full");
    group.shutdown().await;
    drop(group);

    // At start: the same, not damage.
    match Group::start(config(&federation), deps(&federation)).await {
        Err(error) => says_that_nothing_is_lost(&error.to_string(), "the file system is full"),
        // The log may have truncated its end, which freed enough space for a start.
        Ok(group) => group.shutdown().await,
    }
    std::fs::remove_file(filler).unwrap();
    let group = Group::start(config(&federation), deps(&federation)).await.unwrap();
    assert!(read_revision(&group, Consistency::Linearizable).await >= acknowledged, "an acknowledged write is gone");
    changed(&group, acknowledged + 10).await;
    group.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_read_only_disk_is_no_damage() {
    let federation = Federation::new(1);
    let Some(disk) = Mounted::small(&federation.data(1), "8m") else { return };
    let group = Group::start(config(&federation), deps(&federation)).await.unwrap();
    group.found().await.unwrap();
    changed(&group, 1).await;
    group.shutdown().await;
    drop(group);

    disk.remount("ro");
    let error = Group::start(config(&federation), deps(&federation)).await.unwrap_err().to_string();
    says_that_nothing_is_lost(&error, "the file system is read-only");
    disk.remount("rw");
    let group = Group::start(config(&federation), deps(&federation)).await.unwrap();
    assert_eq!(read_revision(&group, Consistency::Linearizable).await, 1);
    group.shutdown().await;
}
