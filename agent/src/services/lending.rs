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
/// Stands for all policies until they were read.
const UNCHECKED: &str = "unchecked";
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

/// Looks once, and then as long as the agent runs. Until the first look succeeds, nothing is offered.
pub async fn follow(look: PolicyLook, clock: &Arc<dyn Clock>, shutdown: &Shutdown) {
    look.publish.send_replace(PolicyProblems::from([(UNCHECKED, "the policies have not been checked yet".to_owned())]));
    look.missing.set(1);
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
        match self.policies.problems(&self.labels).await {
            Ok(now) => self.tell(now).await,
            // What was found before counts on: the step that prepares a lease looks again.
            Err(error) => {
                self.publish.send_if_modified(|before| {
                    let now = format!("the policies have not been checked yet: {error}");
                    before.get_mut(UNCHECKED).is_some_and(|reason| std::mem::replace(reason, now.clone()) != now)
                });
            }
        }
    }

    async fn tell(&self, now: PolicyProblems) {
        let before = self.publish.borrow().clone();
        if now == before {
            return;
        }
        self.missing.set(i64::try_from(now.len()).unwrap_or(i64::MAX));
        self.publish.send_replace(now.clone());
        for (policy, reason) in now.iter().filter(|(policy, reason)| before.get(*policy) != Some(*reason)) {
            tracing::error!(
                policy,
                reason,
                "an admission policy is not in force; this cluster lends nothing until it is"
            );
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

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use comity_runtime::SystemClock;
    use http::{Request, Response};
    use kube::client::Body;

    use super::*;

    #[tokio::test]
    async fn nothing_is_offered_until_the_policies_were_read() {
        let refused = r#"{"kind":"Status","status":"Failure","message":"no right","reason":"Forbidden","code":403}"#;
        let service = tower::service_fn(move |_: Request<Body>| {
            let answer = Response::builder().status(403).body(Body::from(refused.as_bytes().to_vec()));
            async move { answer.map_err(std::io::Error::other) }
        });
        let (client, clock) = (Client::new(service, "default"), Arc::new(SystemClock::new()) as Arc<dyn Clock>);
        let (publish, problems) = watch::channel(PolicyProblems::new());
        let missing = IntGauge::new("missing", "Policies.").unwrap();
        let policies = GuestPolicies::new(client.clone(), Arc::clone(&clock));
        let look = PolicyLook { policies, labels: GuestLabels::default(), client, missing: missing.clone(), publish };
        follow(look, &clock, &Shutdown::new()).await;
        let told = problems.borrow().values().cloned().collect::<Vec<_>>().join("; ");
        assert!(told.contains("not been checked yet") && told.contains("no right"), "{told}");
        assert_eq!(missing.get(), 1);
    }
}
