//! Clock jumps of brokers, set by libfaketime, end no lease and do not shift start windows.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use comity_scenarios::{Federation, FederationConfig, PATIENCE, Place, until};
use serde_json::Value;
use tempfile::TempDir;

use crate::OrLogs as _;
use crate::inventories::origin_and_donor_with;

const LIBRARY: &str = "faketime/libfaketime.so.1";
const HOURS_2_MS: i64 = 7_200_000;
/// A clock offset longer than a lease and shorter than the lifetime of certificates.
const MINUTES_45: (&str, i64) = ("+45m", 2_700_000);
const OPERATE: &str = include_str!("../../../../docs/operate.md");

/// Path of libfaketime, if it is installed. `./test` reports at its start if it is not.
fn library() -> Option<PathBuf> {
    let folders = ["/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu", "/usr/lib", "/usr/lib64"];
    let found = folders.iter().map(|folder| Path::new(folder).join(LIBRARY)).find(|path| path.is_file());
    assert!(found.is_some() || std::env::var_os("CI").is_none(), "libfaketime is missing; run scripts/system-packages");
    found
}

/// Files that say how far the wall clock of each broker is off.
struct Clocks(TempDir);

impl Clocks {
    /// Three brokers whose wall clocks can be set.
    fn config(library: PathBuf) -> (Self, FederationConfig) {
        let clocks = Self(tempfile::tempdir().unwrap());
        for id in 1..=3 {
            clocks.set(id, "+0");
        }
        let dir = clocks.0.path().to_owned();
        let launch = move |program: &Path, args: &[String]| {
            let mut command = tokio::process::Command::new(program);
            command.args(args);
            let broker = args.iter().filter_map(|arg| Path::new(arg).file_name()?.to_str()).find(|arg| {
                program.ends_with("comity-broker")
                    && arg.strip_prefix("broker-").is_some_and(|id| id.parse::<u64>().is_ok())
            });
            if let Some(broker) = broker.filter(|_| args.first().is_some_and(|verb| verb == "run")) {
                command
                    .env("LD_PRELOAD", &library)
                    .env("FAKETIME_TIMESTAMP_FILE", dir.join(broker))
                    .env("FAKETIME_NO_CACHE", "1")
                    .env("DONT_FAKE_MONOTONIC", "1");
            }
            command
        };
        let place = Place { launch: Arc::new(launch), ..Place::here() };
        (clocks, FederationConfig { place, ..FederationConfig::with_example_policy() })
    }

    /// Sets an offset in libfaketime's syntax, such as "+2h", atomically.
    fn set(&self, broker: u64, off: &str) {
        let path = self.0.path().join(format!("broker-{broker}"));
        let new = path.with_extension("new");
        std::fs::write(&new, format!("{off}\n")).unwrap();
        std::fs::rename(new, path).unwrap();
    }
}

async fn broker_status(federation: &Federation, id: u64) -> Value {
    let status = federation.comity_as("admin", &["raft", "status"]).await.or_logs(federation);
    let brokers = status["brokers"].as_array().unwrap();
    brokers.iter().find(|broker| broker["id"] == id).cloned().unwrap_or_default()
}

/// Asserts that the lease is active and its end is unchanged.
async fn stays(federation: &Federation, lease: &str, ends: &Value) {
    let seen = federation.comity(&["lease", "show", lease]).await.or_logs(federation);
    assert_eq!((&seen["state"], &seen["expiresAtMs"]), (&Value::from("active"), ends), "{}", federation.logs());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_wall_clock_of_a_broker_ends_a_lease() {
    let Some(library) = library() else {
        eprintln!("left out: libfaketime is missing");
        return;
    };
    let (clocks, config) = Clocks::config(library);
    let mut federation = origin_and_donor_with(config).await;
    let request = federation.submit(2, "frontier").await.or_logs(&federation);
    let lease = federation.lease_of(&request).await.or_logs(&federation);
    let active = federation.lease_in(&lease, "active", PATIENCE).await.or_logs(&federation);
    let ends = active["expiresAtMs"].clone();
    assert!(ends.is_u64(), "{active}");

    // Two hours ahead on the leader, with a lease of an hour: it says so and hands over.
    let first = federation.leader().await.or_logs(&federation);
    clocks.set(first, "+2h");
    until("another leader", PATIENCE, async || {
        let leader = federation.leader().await?;
        Ok((leader != first).then_some(()))
    })
    .await
    .or_logs(&federation);
    let status = broker_status(&federation, first).await;
    let off = status["clockOffsetMs"].as_i64().unwrap_or_default();
    assert!(off.abs_diff(HOURS_2_MS) < 2_000, "{status}");
    stays(&federation, &lease, &ends).await;
    clocks.set(first, "+0");

    // Ten years on all of them, for a second and a half.
    for id in 1..=3 {
        clocks.set(id, "+3650d");
    }
    tokio::time::sleep(Duration::from_millis(1_500)).await;
    for id in 1..=3 {
        clocks.set(id, "+0");
    }
    federation.leader().await.or_logs(&federation);
    stays(&federation, &lease, &ends).await;

    // Time goes on as before: a request that is to start within half a minute does.
    let window = ["request", "submit", "--tenant", "poly-ml", "--origin", "polytech-campus", "--class", "frontier"];
    let args: Vec<&str> = window.into_iter().chain(["--gpus", "1", "--start-by", "30s"]).collect();
    let submitted = federation.comity(&args).await.or_logs(&federation);
    let second = federation.lease_of(submitted["id"].as_str().unwrap()).await.or_logs(&federation);
    federation.lease_in(&second, "active", PATIENCE).await.or_logs(&federation);

    // A change of the leader is no outage.
    let leader = federation.leader().await.or_logs(&federation);
    federation.kill_broker(leader).await.unwrap();
    federation.start_broker(leader).unwrap();
    federation.leader().await.or_logs(&federation);
    stays(&federation, &lease, &ends).await;
}

/// The commands of docs/operate.md that re-base log time: a dry run and the real one.
fn rebase_commands() -> [Vec<&'static str>; 2] {
    let lines = OPERATE.lines().filter(|line| line.starts_with("comity raft rebase-time"));
    let words = lines.map(|line| line.split('#').next().unwrap().split_whitespace().skip(1).collect());
    words.collect::<Vec<_>>().try_into().expect("the page has two such commands")
}

/// Remaining time of a lease by the leader's log time.
async fn time_left(federation: &Federation, lease: &str) -> i64 {
    let leader = federation.leader().await.or_logs(federation);
    let status = broker_status(federation, leader).await;
    let seen = federation.comity(&["lease", "show", lease]).await.or_logs(federation);
    assert_eq!(seen["state"], "active", "{seen}\n{}", federation.logs());
    seen["expiresAtMs"].as_i64().unwrap() - status["logTimeMs"].as_i64().unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn log_time_is_rebased_by_the_documented_command_and_leases_keep_the_time_they_had_left() {
    let Some(library) = library() else {
        eprintln!("left out: libfaketime is missing");
        return;
    };
    let (clocks, config) = Clocks::config(library);
    let federation = origin_and_donor_with(config).await;
    let request = ["request", "submit", "--tenant", "poly-ml", "--origin", "polytech-campus", "--class", "frontier"];
    let args: Vec<&str> = request.into_iter().chain(["--gpus", "1", "--duration", "30m"]).collect();
    let submitted = federation.comity(&args).await.or_logs(&federation);
    let lease = federation.lease_of(submitted["id"].as_str().unwrap()).await.or_logs(&federation);
    federation.lease_in(&lease, "active", PATIENCE).await.or_logs(&federation);
    let [dry, wet] = rebase_commands();

    // There and back: the lease outlives its own end by the brokers' clocks, twice.
    for (off, by) in [(MINUTES_45.0, MINUTES_45.1), ("+0", -MINUTES_45.1)] {
        let (began, left) = (std::time::Instant::now(), time_left(&federation, &lease).await);
        let before = federation.comity(&["lease", "show", &lease]).await.or_logs(&federation)["expiresAtMs"].clone();
        for id in 1..=3 {
            clocks.set(id, off);
        }
        // Brokers ask each other for their clocks twice a second.
        let said = until("the clocks to be known", PATIENCE, async || {
            let said = federation.comity_as("admin", &dry).await?;
            let wanted = said["byMs"].as_i64().is_some_and(|said| said.abs_diff(by) < 5_000);
            Ok(wanted.then_some(said))
        })
        .await
        .or_logs(&federation);
        assert_eq!((&said["done"], &said["leases"]), (&Value::from(false), &Value::from(1)), "{said}");
        let untouched = federation.comity(&["lease", "show", &lease]).await.or_logs(&federation);
        assert_eq!(untouched["expiresAtMs"], before, "it was only asked what would move");

        let done = federation.comity_as("admin", &wet).await.or_logs(&federation);
        assert_eq!(done["done"], true, "{done}");
        let moved = done["byMs"].as_i64().unwrap();
        assert!(moved.abs_diff(by) < 5_000, "{done}");
        let after = federation.comity(&["lease", "show", &lease]).await.or_logs(&federation);
        assert_eq!(after["expiresAtMs"].as_i64().unwrap() - before.as_i64().unwrap(), moved, "{after}");
        // It has lost only the time that passed meanwhile.
        let (now, passed) = (time_left(&federation, &lease).await, began.elapsed().as_millis());
        let lost = u128::try_from(left - now).unwrap_or_else(|_| panic!("it had {left} ms left, now {now}"));
        assert!(lost <= passed + 1_000, "it lost {lost} ms in {passed} ms");
        let right = until("log time to be right", PATIENCE, async || {
            let status = broker_status(&federation, federation.leader().await?).await;
            let off = status["logTimeOffsetMs"].as_i64();
            Ok(off.filter(|off| off.unsigned_abs() < 5_000))
        });
        right.await.or_logs(&federation);
    }
    // Nothing was torn down on the way.
    tokio::time::sleep(Duration::from_secs(3)).await;
    time_left(&federation, &lease).await;
}
