//! The admission policies that hold guests to their leases, and an origin's pods and namespaces to those that it borrows.

use std::sync::Arc;

use comity_agent_delivery::{GuestPolicies, GuestPolicy};
use comity_runtime::SystemClock;
use comity_runtime::checks::{Check, CheckList};
use kube::Client;

use crate::config::Config;

const POLICIES_CHECK: &str = "policies";
const ORIGIN_POLICIES_CHECK: &str = "origin policies";

/// Whether this cluster may lend: without its policies the agent prepares no lease.
pub(super) async fn check(client: &Client, config: &Config, list: &mut CheckList) {
    let policies = GuestPolicies::new(client.clone(), Arc::new(SystemClock::new()));
    if config.liqo.enabled {
        list.push(of_origins(&policies).await);
    }
    let mut names = Vec::new();
    for policy in GuestPolicy::required(&config.guest_labels()) {
        names.push(policy.name());
        if let Err(error) = policies.check(policy).await {
            let remedy = format!("to lend, kubectl apply -f {}", policy.manifest());
            list.push(Check::warning(POLICIES_CHECK, format!("this cluster can borrow only: {error}"), remedy));
            return;
        }
    }
    list.push(Check::ok(POLICIES_CHECK, format!("guests are held to their leases by {}", names.join(", "))));
}

/// Whether virtual nodes are held to the namespaces of their leases.
async fn of_origins(policies: &GuestPolicies) -> Check {
    for policy in GuestPolicy::OF_ORIGINS {
        if let Err(error) = policies.check(policy).await {
            let remedy = format!("before you borrow virtual nodes, kubectl apply -f {}", policy.manifest());
            return Check::warning(ORIGIN_POLICIES_CHECK, error.to_string(), remedy);
        }
    }
    let names = GuestPolicy::OF_ORIGINS.map(GuestPolicy::name).join(", ");
    Check::ok(ORIGIN_POLICIES_CHECK, format!("virtual nodes are held to their leases by {names}"))
}
