//! A small `comity-bench growth`: every value is reported, and every lease survives a kill.

use std::time::Duration;

use comity_scenarios::growth::{self, GrowthConfig};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_lease_is_back_after_a_kill_and_every_figure_is_there() {
    let config =
        GrowthConfig { gpus: 1_600, leases: 120, nodes_per_cluster: 60, snapshot_every: 500, rest: Duration::ZERO };
    let report = growth::run(&config, |_| {}).await.unwrap();
    assert_eq!((report.nodes, report.clusters), (200, 4));
    assert_eq!((report.leases, report.restored_leases), (120, 120));
    let figures = report.json();
    for (name, value) in figures.as_object().unwrap() {
        let value = value.as_f64().unwrap();
        assert!(value > 0.0 || name == "refused_reports", "{name} is {value}: {figures}");
    }
    assert!(report.peak_resident_bytes >= report.resident_bytes, "{figures}");
}
