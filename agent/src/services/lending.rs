//! Whether the policies that hold guests and the agent are in force. While one is not, this cluster offers nothing, and
//! says why: guests that run here are held by quota, Pod Security and RBAC alone. The agent may not write policies: the
//! cluster's owner restores one.

use std::sync::Arc;
use std::time::Duration;

use comity_agent_delivery::{GuestPolicies, PolicyProblems};
use comity_agent_kubernetes::api::within_limit;
use comity_agent_kubernetes::object_events::{policy_reference, publish_event};
use comity_agent_model::guest_labels::GuestLabels;
use comity_runtime::{Clock, Shutdown};
use kube::Client;
use kube::runtime::events::{Event, EventType};
use prometheus::IntGauge;
use tokio::sync::watch;

/// Reason of the events on policies.
pub const POLICY_REASON: &str = "ComityPolicyNotInForce";
/// Pause between two looks at the policies.
const LOOK_INTERVAL: Duration = Duration::from_secs(5);

/// Looks for the policies, and tells what it finds.
pub struct PolicyLook {
    /// Reads them.
    pub policies: GuestPolicies,
    /// Labels of guests' namespaces.
    pub labels: GuestLabels,
    /// Writes events.
    pub client: Client,
    /// How many are not in force.
    pub missing: IntGauge,
    /// Those that are not in force.
    pub publish: watch::Sender<PolicyProblems>,
}

/// Looks once, and then as long as the agent runs.
pub async fn follow(look: PolicyLook, clock: &Arc<dyn Clock>, shutdown: &Shutdown) {
    look.once().await;
    let (clock, stop) = (Arc::clone(clock), shutdown.token());
    shutdown.spawn(async move {
        loop {
            tokio::select! {
                () = stop.cancelled() => return,
                () = clock.sleep(LOOK_INTERVAL) => {}
            }
            look.once().await;
        }
    });
}

impl PolicyLook {
    async fn once(&self) {
        // The step that prepares a lease looks again: an API server that does not answer is no reason.
        let Ok(now) = self.policies.problems(&self.labels).await else { return };
        let before = self.publish.borrow().clone();
        if now == before {
            return;
        }
        self.missing.set(i64::try_from(now.len()).unwrap_or(i64::MAX));
        self.publish.send_replace(now.clone());
        for (policy, reason) in now.iter().filter(|(policy, reason)| before.get(*policy) != Some(*reason)) {
            tracing::error!(policy, reason, "an admission policy is not in force; this cluster lends nothing until it is");
            self.write_event(policy, reason).await;
        }
        if now.is_empty() {
            tracing::info!("the admission policies of guests are in force; this cluster lends");
        }
    }

    async fn write_event(&self, policy: &str, reason: &str) {
        let event = Event {
            type_: EventType::Warning,
            reason: POLICY_REASON.to_owned(),
            note: Some(format!("this cluster lends nothing: {reason}")),
            action: "Lend".to_owned(),
            secondary: None,
        };
        let written = within_limit(publish_event(self.client.clone(), &policy_reference(policy), event)).await;
        if let Err(error) = written {
            tracing::warn!(policy, %error, "cannot write an event on an admission policy");
        }
    }
}
