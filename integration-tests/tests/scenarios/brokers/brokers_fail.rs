//! Three brokers under faults of processes, networks, clocks and disks. `./test long` runs it for fifteen minutes.

use std::time::Duration;

use comity_scenarios::brokers::{self, BrokersConfig};
use comity_testkit::requirements;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_acknowledged_is_lost_whatever_fails_under_the_brokers() {
    if !requirements::met("brokers under faults", &brokers::missing()) {
        return;
    }
    let seed =
        std::env::var("COMITY_CHAOS_SEED").map_or_else(|_| comity_scenarios::now_ms(), |seed| seed.parse().unwrap());
    let config = BrokersConfig { length: Duration::from_secs(40), seed, without: Vec::new() };
    let report = brokers::run(&config).await.unwrap();
    println!("{report}");
    assert!(report.is_good(), "COMITY_CHAOS_SEED={seed}: {:#?}", report.violations());
    assert!(report.faults() >= 4 && report.acknowledged() >= 100, "hardly anything happened: {}", report.json());
}
