//! The admission policies that hold guests to their leases.

use std::sync::Arc;

use comity_runtime::SystemClock;
use comity_runtime::checks::{Check, CheckList};
use kube::Client;

use crate::config::Config;

const POLICIES_CHECK: &str = "policies";

/// Whether this cluster may lend: without its policies the agent prepares no lease.
pub(super) async fn check(client: &Client, config: &Config, list: &mut CheckList) {
    let policies = config.guest_policies(client.clone(), Arc::new(SystemClock::new()));
    list.push(match policies.check_all(&config.guest_labels()).await {
        Ok(names) => Check::ok(POLICIES_CHECK, format!("guests are held to their leases by {}", names.join(", "))),
        Err(error) => Check::warning(
            POLICIES_CHECK,
            format!("this cluster can borrow only: {error}"),
            "to lend, apply the file that it names with kubectl, as this cluster's owner",
        ),
    });
}
