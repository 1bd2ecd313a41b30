//! The admission webhooks: what the cluster's owner installs for them.

use comity_agent_workload::webhook::check_webhooks;
use comity_runtime::checks::{Check, CheckList};
use comity_runtime::{Clock as _, SystemClock};
use kube::Client;

use crate::config::Config;
use crate::services::webhook_registrations::webhook_registrations;

const WEBHOOK_CHECK: &str = "webhook";

/// Checks registrations and certificate, if the agent answers webhooks. A warning: the agent works without them.
pub(super) async fn check(client: &Client, config: &Config, list: &mut CheckList) {
    let Some(settings) = &config.webhook else { return };
    let now = SystemClock::new().now();
    list.push(match check_webhooks(client, settings, &webhook_registrations(config), now).await {
        Ok(Some(days)) => Check::ok(WEBHOOK_CHECK, format!("registered; the certificate is valid for {days} days")),
        Ok(None) => Check::ok(WEBHOOK_CHECK, "registered"),
        Err(problem) => {
            let (detail, remedy) = problem.rsplit_once("; ").unwrap_or((&problem, ""));
            Check::warning(WEBHOOK_CHECK, detail, remedy)
        }
    });
}
