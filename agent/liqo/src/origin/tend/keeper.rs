//! One task for each virtual node: watches its heartbeats, and restarts virtual-kubelets that hang or keep an old
//! certificate.

use std::collections::BTreeMap;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use comity_agent_kubernetes::call::{call, call_opt, patching};
use comity_agent_model::delivery_error::DeliveryError;
use futures::StreamExt as _;
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{Node, Pod};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use kube::api::{DeleteParams, ListParams, Patch};
use kube::runtime::watcher::watch_object;
use kube::{Api, ResourceExt as _};
use tokio::sync::watch;
use tokio::task::AbortHandle;
use tokio::time::Instant;

use super::DonorLine;
use super::heartbeat::{Answer, HeartbeatAction, HeartbeatState, heartbeat_patch};
use super::nodes::Nodes;
use crate::origin::LiqoOrigin;
use crate::tenant_namespace_of;
use crate::version::Version;

/// Namespace of the Leases of nodes.
const NODE_LEASES: &str = "kube-node-lease";
/// Labels of a virtual-kubelet's pods.
const KUBELET: &str = "offloading.liqo.io/component=virtual-kubelet,liqo.io/virtual-node";
/// Interval of the checks of a suspect node.
const DOUBT_CHECK_INTERVAL: Duration = Duration::from_secs(1);
/// Interval of the checks of a certificate: Liqo renews it when a third of its life is left, usually four months.
const RENEWAL_TICK: Duration = Duration::from_secs(600);
/// Pause after a watch broke.
const PAUSE: Duration = Duration::from_millis(500);

/// Stops its task when dropped.
struct Task(AbortHandle);

impl Drop for Task {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// Starts and stops keepers as nodes come and go.
pub(super) async fn keep_all(origin: LiqoOrigin, line: Arc<dyn DonorLine>, mut nodes: watch::Receiver<Arc<Nodes>>) {
    let mut tasks: BTreeMap<String, Task> = BTreeMap::new();
    loop {
        let now = Arc::clone(&nodes.borrow_and_update());
        tasks.retain(|name, _| now.contains_key(name));
        for name in now.keys() {
            tasks.entry(name.clone()).or_insert_with(|| {
                let (origin, line) = (origin.clone(), Arc::clone(&line));
                let keeper = Keeper { origin, line, name: name.clone(), began: Instant::now() };
                Task(tokio::spawn(keeper.run(nodes.clone())).abort_handle())
            });
        }
        if nodes.changed().await.is_err() {
            return;
        }
    }
}

struct Keeper {
    origin: LiqoOrigin,
    line: Arc<dyn DonorLine>,
    name: String,
    began: Instant,
}

impl Keeper {
    async fn run(self, mut nodes: watch::Receiver<Arc<Nodes>>) {
        let leases = Api::<Lease>::namespaced(self.origin.client.clone(), NODE_LEASES);
        let mut renewals = pin!(watch_object(leases, &self.name));
        let mut last: Option<MicroTime> = None;
        let mut heartbeat = HeartbeatState::default();
        let mut tick = tokio::time::interval(DOUBT_CHECK_INTERVAL);
        tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        let mut renewal_tick = tokio::time::interval(RENEWAL_TICK);
        renewal_tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            let donor = {
                let nodes = nodes.borrow_and_update();
                let Some(node) = nodes.get(&self.name) else { return };
                heartbeat.ready.clone_from(&node.ready);
                node.donor.clone()
            };
            tokio::select! {
                changed = nodes.changed() => if changed.is_err() { return },
                renewal = renewals.next() => match renewal {
                    Some(Ok(lease)) => {
                        let renewed = lease.and_then(|lease| lease.spec?.renew_time);
                        if renewed.is_some() && renewed != last {
                            last = renewed;
                            heartbeat.renew(self.began.elapsed());
                        }
                    }
                    Some(Err(_)) => tokio::time::sleep(PAUSE).await,
                    None => return,
                },
                _ = renewal_tick.tick() => {
                    if let Err(error) = self.use_renewed_certificate(&donor).await {
                        tracing::debug!(node = self.name, %error, "cannot tell how old the virtual-kubelet's \
                            certificate is");
                    }
                }
                _ = tick.tick() => {
                    if heartbeat.is_suspect(self.began.elapsed()) {
                        self.check_node(&mut heartbeat, &donor).await;
                    }
                }
            }
        }
    }

    /// Asks the donor; writes a heartbeat or restarts the virtual-kubelet if the donor, or the line to it, answers.
    async fn check_node(&self, heartbeat: &mut HeartbeatState, donor: &str) {
        let (api, line) = tokio::join!(self.origin.ask_donor(&self.name, donor), self.line.answers(donor));
        let answer = match api {
            Ok(true) => Answer::ApiServer,
            Ok(false) if line => Answer::LineOnly,
            Ok(false) => Answer::Nothing,
            Err(error) => {
                tracing::debug!(node = self.name, %error, "heartbeats are missing and the donor cannot be asked");
                Answer::Nothing
            }
        };
        let now = self.began.elapsed();
        let outcome = match heartbeat.action(answer, now) {
            HeartbeatAction::Nothing => return,
            HeartbeatAction::Write => self.write_heartbeat(&heartbeat.ready, donor).await.map(|written| {
                if written {
                    tracing::info!(node = self.name, was = heartbeat.ready, ?answer, "heartbeat written");
                    heartbeat.written = Some(now);
                }
            }),
            HeartbeatAction::Restart => {
                tracing::warn!(node = self.name, "the donor answers, the virtual-kubelet does not: it is restarted");
                heartbeat.restarted = true;
                self.restart_kubelet(donor).await
            }
        };
        if let Err(error) = outcome {
            tracing::warn!(node = self.name, %error, "the virtual node could not be repaired");
        }
    }

    /// False if the virtual-kubelet does not run: then the node is not ready, whatever the donor says.
    async fn write_heartbeat(&self, ready: &str, donor: &str) -> Result<bool, DeliveryError> {
        let deployments = Api::<Deployment>::namespaced(self.origin.client.clone(), &tenant_namespace_of(donor));
        let name = format!("vk-{}", self.name);
        let found = call_opt(&format!("read Deployment {name}"), deployments.get(&name)).await?;
        let available = found.and_then(|deployment| deployment.status?.available_replicas).unwrap_or_default();
        if available == 0 {
            return Ok(false);
        }
        let now = k8s_openapi::jiff::Timestamp::now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
        let nodes = Api::<Node>::all(self.origin.client.clone());
        let parameters = patching();
        let patch = Patch::Strategic(heartbeat_patch(ready, &now));
        call(&format!("write a heartbeat of Node {}", self.name), nodes.patch_status(&self.name, &parameters, &patch))
            .await
            .map(|_| true)
    }

    /// Restarts the virtual-kubelet if it began before its certificate was signed, and would keep the old one.
    async fn use_renewed_certificate(&self, donor: &str) -> Result<(), DeliveryError> {
        if self.origin.liqo_version().await?.is_some_and(Version::reloads_certificates) {
            return Ok(());
        }
        let signed = self.origin.slice_certificate_since(&self.name, donor).await?;
        let pods = Api::<Pod>::namespaced(self.origin.client.clone(), &tenant_namespace_of(donor));
        let of_node = ListParams::default().labels(&format!("{KUBELET}={}", self.name));
        let operation = format!("read the pods of the virtual-kubelet of {}", self.name);
        let mut began =
            call(&operation, pods.list(&of_node)).await?.items.into_iter().filter_map(|pod| pod.status?.start_time);
        if began.any(|began| keeps_old_certificate(began.0.as_second(), signed)) {
            tracing::info!(node = self.name, "its certificate was renewed: the virtual-kubelet is restarted to use it");
            self.restart_kubelet(donor).await?;
        }
        Ok(())
    }

    async fn restart_kubelet(&self, donor: &str) -> Result<(), DeliveryError> {
        let pods = Api::<Pod>::namespaced(self.origin.client.clone(), &tenant_namespace_of(donor));
        let of_node = ListParams::default().labels(&format!("{KUBELET}={}", self.name));
        let operation = format!("restart the virtual-kubelet of {}", self.name);
        for pod in call(&operation, pods.list_metadata(&of_node)).await? {
            call_opt(&operation, pods.delete(&pod.name_any(), &DeleteParams::default())).await?;
        }
        Ok(())
    }
}

/// Whether a virtual-kubelet that started at `began` has not read a certificate that is valid since `valid_since`, both
/// in seconds since 1970. A new certificate is backdated by some minutes, so a new virtual-kubelet is never mistaken
/// for an old one.
const fn keeps_old_certificate(began: i64, valid_since: i64) -> bool {
    began < valid_since
}

#[cfg(test)]
mod tests {
    use super::keeps_old_certificate;

    #[test]
    fn a_virtual_kubelet_is_restarted_once_for_a_renewal() {
        let (first_valid, began) = (1_000 - 300, 1_001);
        assert!(!keeps_old_certificate(began, first_valid));
        let renewed_valid = 20_000_000 - 300;
        assert!(keeps_old_certificate(began, renewed_valid));
        assert!(!keeps_old_certificate(20_000_030, renewed_valid));
        // A signer that does not backdate.
        assert!(!keeps_old_certificate(1_000, 1_000));
    }
}
