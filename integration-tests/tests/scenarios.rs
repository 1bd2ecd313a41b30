//! Scenario tests of whole federations of real processes; `comity_scenarios` runs them.
#![expect(clippy::unwrap_used, reason = "tests")]

#[path = "scenarios/kubernetes/agents_account.rs"]
mod agents_account;
#[path = "scenarios/brokers/broker_drills.rs"]
mod broker_drills;
#[path = "scenarios/brokers/brokers_fail.rs"]
mod brokers_fail;
#[path = "scenarios/kubernetes/burst.rs"]
mod burst;
#[path = "scenarios/kubernetes/canaries.rs"]
mod canaries;
#[path = "scenarios/kubernetes/cert_manager.rs"]
mod cert_manager;
#[path = "scenarios/brokers/chaos.rs"]
mod chaos;
#[path = "scenarios/kubernetes/claims.rs"]
mod claims;
#[path = "scenarios/clients.rs"]
mod clients;
#[path = "scenarios/brokers/clocks.rs"]
mod clocks;
#[path = "scenarios/kubernetes/control_planes.rs"]
mod control_planes;
#[path = "scenarios/brokers/crashes.rs"]
mod crashes;
#[path = "scenarios/brokers/day_two.rs"]
mod day_two;
#[path = "scenarios/brokers/disasters.rs"]
mod disasters;
#[path = "scenarios/explain.rs"]
mod explain;
#[path = "scenarios/kubernetes/gitops.rs"]
mod gitops;
#[path = "scenarios/kubernetes/gpu_boxes.rs"]
mod gpu_boxes;
#[path = "scenarios/brokers/growth.rs"]
mod growth;
#[path = "scenarios/kubernetes/held_devices.rs"]
mod held_devices;
#[path = "scenarios/inventories.rs"]
mod inventories;
#[path = "scenarios/kubernetes/kueue.rs"]
mod kueue;
#[path = "scenarios/brokers/later_brokers.rs"]
mod later_brokers;
#[path = "scenarios/kubernetes/liqo_network.rs"]
mod liqo_network;
#[path = "scenarios/brokers/lost_disk.rs"]
mod lost_disk;
#[path = "scenarios/kubernetes/manifests.rs"]
mod manifests;
#[path = "scenarios/kubernetes/mig_box.rs"]
mod mig_box;
#[path = "scenarios/near.rs"]
mod near;
#[path = "scenarios/kubernetes/network_policies.rs"]
mod network_policies;
#[path = "scenarios/kubernetes/nodes.rs"]
mod nodes;
#[path = "scenarios/one_pc.rs"]
mod one_pc;
#[path = "scenarios/kubernetes/pods.rs"]
mod pods;
#[path = "scenarios/kubernetes/pods_burst.rs"]
mod pods_burst;
#[path = "scenarios/kubernetes/real_kubelets.rs"]
mod real_kubelets;
#[path = "scenarios/reclaimed.rs"]
mod reclaimed;
#[path = "scenarios/brokers/restart.rs"]
mod restart;
#[path = "scenarios/brokers/root_rotation.rs"]
mod root_rotation;
#[path = "scenarios/kubernetes/run_command.rs"]
mod run_command;
#[path = "scenarios/secrets.rs"]
mod secrets;
#[path = "scenarios/signed_policy.rs"]
mod signed_policy;
#[path = "scenarios/kubernetes/standby.rs"]
mod standby;
#[path = "scenarios/kubernetes/token.rs"]
mod token;
#[path = "scenarios/kubernetes/two_classes.rs"]
mod two_classes;

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
