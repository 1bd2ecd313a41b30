//! The admission policies that hold guests to their leases.

use std::sync::Arc;

use comity_agent_delivery::{GuestPolicies, GuestPolicy};
use comity_runtime::SystemClock;
use comity_runtime::checks::{Check, CheckList};
use kube::Client;

use crate::config::Config;

const POLICIES_CHECK: &str = "policies";

/// Whether this cluster may lend: without its policies the agent prepares no lease.
pub(super) async fn check(client: &Client, config: &Config, list: &mut CheckList) {
    let is_accepted = config.kubernetes.as_ref().is_some_and(|kubernetes| kubernetes.unrestricted);
    let policies =
        GuestPolicies::new(client.clone(), Arc::new(SystemClock::new())).with_unrestricted_agent(is_accepted);
    if let Err(error) = policies.check_agent().await {
        let remedy =
            "to lend, run the agent as ServiceAccount comity-agent, and kubectl apply -f deploy/agent/admission.yaml";
        list.push(Check::warning(POLICIES_CHECK, format!("this cluster can borrow only: {error}"), remedy));
        return;
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
