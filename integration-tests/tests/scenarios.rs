//! Scenario tests of whole federations of real processes; `comity_scenarios` runs them.
#![expect(clippy::unwrap_used, reason = "tests")]

#[path = "scenarios/broker_drills.rs"]
mod broker_drills;
#[path = "scenarios/brokers_fail.rs"]
mod brokers_fail;
#[path = "scenarios/burst.rs"]
mod burst;
#[path = "scenarios/chaos.rs"]
mod chaos;
#[path = "scenarios/clients.rs"]
mod clients;
#[path = "scenarios/clocks.rs"]
mod clocks;
#[path = "scenarios/control_planes.rs"]
mod control_planes;
#[path = "scenarios/crashes.rs"]
mod crashes;
#[path = "scenarios/day_two.rs"]
mod day_two;
#[path = "scenarios/disasters.rs"]
mod disasters;
#[path = "scenarios/explain.rs"]
mod explain;
#[path = "scenarios/growth.rs"]
mod growth;
#[path = "scenarios/inventories.rs"]
mod inventories;
#[path = "scenarios/liqo_network.rs"]
mod liqo_network;
#[path = "scenarios/lost_disk.rs"]
mod lost_disk;
#[path = "scenarios/manifests.rs"]
mod manifests;
#[path = "scenarios/near.rs"]
mod near;
#[path = "scenarios/nodes.rs"]
mod nodes;
#[path = "scenarios/pods.rs"]
mod pods;
#[path = "scenarios/pods_burst.rs"]
mod pods_burst;
#[path = "scenarios/real_kubelets.rs"]
mod real_kubelets;
#[path = "scenarios/reclaimed.rs"]
mod reclaimed;
#[path = "scenarios/restart.rs"]
mod restart;
#[path = "scenarios/secrets.rs"]
mod secrets;
#[path = "scenarios/token.rs"]
mod token;

use comity_scenarios::Federation;

/// Whether to run the long form of the tests.
fn is_long() -> bool {
    std::env::var_os("COMITY_TEST_LONG").is_some()
}

/// Panics with the ends of all logs, so that failures on CI can be diagnosed.
trait OrLogs<T> {
    fn or_logs(self, federation: &Federation) -> T;
}

impl<T, E: std::fmt::Display> OrLogs<T> for Result<T, E> {
    fn or_logs(self, federation: &Federation) -> T {
        self.unwrap_or_else(|error| panic!("{error:#}\n{}", federation.logs()))
    }
}
