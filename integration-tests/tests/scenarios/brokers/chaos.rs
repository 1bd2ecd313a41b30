//! Three origins and two donors under random failures for a minute. `./test long` runs ten origins and five donors for
//! fifteen minutes.

use std::time::Duration;

use comity_scenarios::chaos::federation_faults::Shape;
use comity_scenarios::chaos::{self, ChaosConfig};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_gpu_is_lent_twice_and_nothing_is_left_over_whatever_fails() {
    let seed =
        std::env::var("COMITY_CHAOS_SEED").map_or_else(|_| comity_scenarios::now_ms(), |seed| seed.parse().unwrap());
    let report = chaos::run(ChaosConfig {
        shape: Shape { donors: 2, origins: 3, control_planes: 3 },
        leases: 12,
        length: Duration::from_secs(70),
        seed,
    })
    .await
    .unwrap();
    println!("{report}");
    assert!(report.violations.is_empty(), "COMITY_CHAOS_SEED={seed}: {:#?}", report.violations);
    let active = report.figures["leases_active"].as_u64().unwrap();
    assert!(active >= 6, "only {active} leases became active, of twelve that were always wanted: {}", report.figures);
}
