//! Processes die at the worst moments; requests still become active, and nothing is left behind.

use std::time::{Duration, Instant};

use comity_agent::reconcile::steps::Step;
use comity_scenarios::{AgentSpec, Federation, FederationConfig, InventorySource, PATIENCE, until};

use crate::OrLogs as _;
use crate::inventories::{inventory, origin_and_donor};

/// Steps of a handshake and a lease that the origin's agent takes, and those of the donor's.
pub(crate) const ORIGIN_STEPS: [&str; 7] = [
    "make-keys",
    "open-psk",
    "configure-fabric",
    "report-established",
    "open-credential",
    "accept-credential",
    "probe",
];
pub(crate) const DONOR_STEPS: [&str; 8] = [
    "make-keys",
    "send-psk",
    "check-proof",
    "configure-fabric",
    "report-established",
    "admit-lease",
    "prepare-lease",
    "seal-credential",
];

/// Time without a crash after which no more is expected.
const QUIET: Duration = Duration::from_secs(3);

/// Restarts crashed agents until the lease is in `state`, after `most` crashes, or after at least `least` and then none
/// for a while.
pub(crate) async fn nurse(federation: &mut Federation, lease: &str, state: &str, least: usize, most: usize) {
    let mut seen = 0;
    let start = Instant::now();
    let mut last = start;
    while start.elapsed() < PATIENCE {
        let ended = federation.restart_ended_agents().unwrap();
        if ended > 0 {
            (seen, last) = (seen + ended, Instant::now());
        }
        let enough = seen == most || (seen >= least && last.elapsed() >= QUIET);
        if federation.lease_in(lease, state, Duration::from_millis(50)).await.is_ok() && enough {
            return;
        }
    }
    panic!(
        "{lease} never became {state}, or {seen} crashes were seen and not {least} to {most}\n{}",
        federation.logs()
    );
}

/// Whether a cluster's agent ended before its first attempt at a step: its marker says so.
pub(crate) fn crashed_before(federation: &Federation, cluster: &str, step: &str) -> bool {
    federation.agent_dir(cluster).join(format!("crashed-at-{step}-before")).exists()
}

/// Releases the lease and waits until both sides are clean and neither agent stores anything of it.
async fn release_and_leave_nothing(federation: &mut Federation, lease: &str) {
    federation.comity(&["lease", "release", "--yes", lease]).await.or_logs(federation);
    nurse(federation, lease, "ended", 0, 0).await;
    let offers = federation.comity_as("admin", &["cluster", "show", "ncc-main"]).await.or_logs(federation);
    assert_eq!(offers["lentMilli"], 0);
    for cluster in ["polytech-campus", "ncc-main"] {
        until(&format!("{cluster} to have nothing left"), PATIENCE, async || {
            let status =
                comity_agent::services::local_api::fetch_status(&federation.agent_dir(cluster).join("agent.sock"))
                    .await?;
            anyhow::ensure!(status.lent.is_empty() && status.borrowed.is_empty(), "{cluster} still has {status:?}");
            Ok(Some(()))
        })
        .await
        .or_logs(federation);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_agent_killed_in_the_middle_of_any_step_goes_on_where_it_was() {
    let names = Step::names();
    for step in ORIGIN_STEPS.iter().chain(&DONOR_STEPS) {
        assert!(names.contains(step), "{step} is not a step of the agent");
    }
    let cases = ORIGIN_STEPS
        .map(|step| ("polytech-campus", step))
        .into_iter()
        .chain(DONOR_STEPS.map(|step| ("ncc-main", step)));
    for (crashing, step) in cases {
        let mut federation =
            Federation::start(FederationConfig { brokers: 1, ..FederationConfig::with_example_policy() })
                .await
                .unwrap();
        for (cluster, gpus) in [("polytech-campus", 0), ("ncc-main", 16)] {
            let file = inventory(federation.dir(), cluster, gpus, "frontier");
            let crash_at = (cluster == crashing).then(|| format!("{step}:before,{step}:after"));
            let spec = AgentSpec { crash_at, ..AgentSpec::new(cluster, InventorySource::File(file)) };
            federation.join(spec).await.or_logs(&federation);
        }
        federation.all_connected().await.or_logs(&federation);
        let request = federation.submit(3, "frontier").await.or_logs(&federation);
        let lease = federation.lease_of(&request).await.or_logs(&federation);
        nurse(&mut federation, &lease, "active", 2, 2).await;
        release_and_leave_nothing(&mut federation, &lease).await;
        println!("{crashing} killed before and after {step}: active all the same");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_leader_killed_between_placed_and_active_delays_and_loses_nothing() {
    let mut federation = origin_and_donor().await;
    let request = federation.submit(3, "frontier").await.or_logs(&federation);
    let lease = federation.lease_of(&request).await.or_logs(&federation);
    let leader = federation.leader().await.or_logs(&federation);
    federation.kill_broker(leader).await.unwrap();
    let seen = federation.lease_in(&lease, "active", PATIENCE).await.or_logs(&federation);
    assert_eq!(seen["request"], request.as_str());
    federation.start_broker(leader).unwrap();
    release_and_leave_nothing(&mut federation, &lease).await;
}
