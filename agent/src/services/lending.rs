//! Whether this cluster can lend namespaces: not without the policies that hold guests and the agent. Its offer then does
//! not announce them, so that no request is placed here only to be refused.

use std::sync::Arc;
use std::time::Duration;

use comity_agent_delivery::GuestPolicies;
use comity_agent_kubernetes::api::KubernetesApi;
use comity_agent_model::delivery_error::DeliveryError;
use comity_agent_model::guest_labels::GuestLabels;
use comity_runtime::{Clock, Shutdown};
use tokio::sync::watch;

use crate::config::Config;

/// Pauses between two looks at the policies: while they protect, and while one does not.
const LOOK_INTERVAL: Duration = Duration::from_secs(60);
const REPAIR_INTERVAL: Duration = Duration::from_secs(5);

/// Whether namespaces can be lent, or why not; followed as long as the agent runs.
pub async fn namespaces(
    config: &Config,
    api: &KubernetesApi,
    clock: &Arc<dyn Clock>,
    shutdown: &Shutdown,
) -> watch::Receiver<Result<(), String>> {
    let policies = config.guest_policies(api.client(), Arc::clone(clock));
    let labels = config.guest_labels();
    // The step that prepares a lease looks again: an API server that does not answer is no reason.
    let (publish, lends) = watch::channel(Ok(()));
    look(&policies, &labels, &publish).await;
    let (clock, stop) = (Arc::clone(clock), shutdown.token());
    shutdown.spawn(async move {
        loop {
            let pause = if publish.borrow().is_ok() { LOOK_INTERVAL } else { REPAIR_INTERVAL };
            tokio::select! {
                () = stop.cancelled() => return,
                () = clock.sleep(pause) => {}
            }
            look(&policies, &labels, &publish).await;
        }
    });
    lends
}

async fn look(policies: &GuestPolicies, labels: &GuestLabels, publish: &watch::Sender<Result<(), String>>) {
    let now = match policies.check_all(labels).await {
        Ok(_) => Ok(()),
        Err(DeliveryError::Permanent { message, .. }) => Err(message),
        Err(DeliveryError::Temporary { .. }) => return,
    };
    publish.send_if_modified(|before| {
        if *before == now {
            return false;
        }
        match &now {
            Ok(()) => tracing::info!("this cluster lends namespaces"),
            Err(reason) => tracing::warn!(reason, "this cluster lends no namespaces now"),
        }
        *before = now;
        true
    });
}
