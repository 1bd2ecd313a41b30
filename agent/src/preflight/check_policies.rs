//! The admission policies that hold guests to their leases, and an origin's pods and namespaces to those that it borrows.

use std::sync::Arc;

use comity_agent_delivery::GuestPolicies;
use comity_agent_liqo::donor::missing_policies;
use comity_runtime::SystemClock;
use comity_runtime::checks::{Check, CheckList};
use kube::Client;

use crate::config::Config;

const POLICIES_CHECK: &str = "policies";
const LIQO_POLICIES_CHECK: &str = "liqo-policies";
const ORIGIN_POLICIES_CHECK: &str = "origin-policies";

/// Whether this cluster may lend: without its policies the agent prepares no lease.
pub(super) async fn check(client: &Client, config: &Config, list: &mut CheckList) {
    let policies = config.guest_policies(client.clone(), Arc::new(SystemClock::new()));
    list.push(match policies.check_all(&config.guest_labels()).await {
        Ok(names) => Check::ok(POLICIES_CHECK, format!("guests are held to their leases by {}", names.join(", "))),
        Err(error) => Check::warning(
            POLICIES_CHECK,
            format!("this cluster can borrow only: {error}"),
            "to lend, apply the file that it names with kubectl, as this cluster's owner; where a field was added, delete \
             the policy first",
        ),
    });
    if config.liqo.enabled {
        list.push(liqo_policies(client, config).await);
        list.push(of_origins(&policies).await);
    }
}

/// Whether it may lend virtual nodes.
async fn liqo_policies(client: &Client, config: &Config) -> Check {
    let remedy = "to lend virtual nodes, comity-agent liqo-policies | kubectl apply -f -, as this cluster's owner";
    match missing_policies(client, &config.liqo.policies()).await {
        Ok(missing) if missing.is_empty() => {
            Check::ok(LIQO_POLICIES_CHECK, "clusters that borrow virtual nodes are held to their leases")
        }
        Ok(missing) => {
            Check::warning(LIQO_POLICIES_CHECK, format!("missing or different: {}", missing.join(", ")), remedy)
        }
        Err(error) => Check::warning(LIQO_POLICIES_CHECK, error.to_string(), remedy),
    }
}

/// Whether virtual nodes are held to the namespaces of their leases.
async fn of_origins(policies: &GuestPolicies) -> Check {
    match policies.check_origin().await {
        Ok(names) => {
            let names = names.join(", ");
            Check::ok(ORIGIN_POLICIES_CHECK, format!("virtual nodes are held to their leases by {names}"))
        }
        Err(error) => Check::warning(
            ORIGIN_POLICIES_CHECK,
            error.to_string(),
            "before you borrow virtual nodes, apply the file that it names with kubectl, as this cluster's owner",
        ),
    }
}
