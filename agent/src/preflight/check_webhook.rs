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
    let Some(settings) = &config.webhook else {
        list.extend(unaided_guests(config));
        return;
    };
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

/// What guests have to do without a webhook; `None` if nothing.
fn unaided_guests(config: &Config) -> Option<Check> {
    (config.sharing.enabled && config.sharing.void_devices).then(|| {
        Check::ok(
            WEBHOOK_CHECK,
            "none: guests' containers without NVIDIA GPUs are refused unless they state NVIDIA_VISIBLE_DEVICES=void; the \
             section webhook adds it, and sharing.voidDevices: false gives the protection up",
        )
    })
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    #[test]
    fn a_donor_without_a_webhook_keeps_its_gpus_from_images_and_says_so() {
        let mut config = Config::default();
        assert!(config.webhook.is_none() && config.guest_labels().void_devices);
        assert!(unaided_guests(&config).unwrap().detail.contains("sharing.voidDevices: false"));
        config.sharing.void_devices = false;
        assert!(unaided_guests(&config).is_none() && !config.guest_labels().void_devices);
    }
}
