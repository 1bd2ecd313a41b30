//! Pods of a lease's namespace, as clients of the lease's port.
//!
//! The agent's pod is one for all namespaces, and not every network plugin enforces NetworkPolicies. So the agent asks the
//! API server for the pod behind a client's address, when it connects.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::pin::Pin;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use comity_agent_kubernetes::api::within_limit;
use comity_agent_model::forward_target::client_check::ClientCheck;
use k8s_openapi::api::core::v1::Pod;
use kube::api::ListParams;
use kube::{Api, Client};
use tokio::sync::Semaphore;
use tokio::time::Instant;

/// How long an answer of the API server holds.
const ANSWER_AGE: Duration = Duration::from_secs(5);
/// Most answers that are kept for one lease.
const MAX_ANSWERS: usize = 256;
/// Pause before a stranger is asked for again: a pod runs before its address is known.
const SECOND_LOOK: Duration = Duration::from_secs(1);
/// Questions that are open at a time for one lease.
const OPEN_QUESTIONS: usize = 4;
/// Most pods of one answer: those that ended keep their addresses.
const MAX_PODS: u32 = 100;

/// Admits running pods of one namespace.
pub(crate) struct NamespaceClients {
    client: Client,
    namespace: String,
    questions: Semaphore,
    answers: Mutex<BTreeMap<IpAddr, (Instant, bool)>>,
}

impl NamespaceClients {
    pub(crate) fn new(client: Client, namespace: &str) -> Self {
        let (questions, answers) = (Semaphore::new(OPEN_QUESTIONS), Mutex::default());
        Self { client, namespace: namespace.to_owned(), questions, answers }
    }

    fn known(&self, address: IpAddr) -> Option<bool> {
        let mut answers = self.answers.lock().unwrap_or_else(PoisonError::into_inner);
        answers.retain(|_, (at, _)| at.elapsed() < ANSWER_AGE);
        answers.get(&address).map(|(_, admits)| *admits)
    }

    fn note(&self, address: IpAddr, admits: bool) {
        let mut answers = self.answers.lock().unwrap_or_else(PoisonError::into_inner);
        if answers.len() < MAX_ANSWERS {
            answers.insert(address, (Instant::now(), admits));
        }
    }

    async fn is_of_namespace(&self, client: IpAddr) -> bool {
        let address = client.to_canonical();
        match self.known(address) {
            Some(known) => return known,
            None if self.ask(address).await => return true,
            None => tokio::time::sleep(SECOND_LOOK).await,
        }
        let admits = self.ask(address).await;
        if !admits {
            tracing::warn!(%address, namespace = self.namespace, "a client that is no pod of the lease's namespace is \
                refused at the lease's port");
            self.note(address, false);
        }
        admits
    }

    async fn ask(&self, address: IpAddr) -> bool {
        let Ok(_question) = self.questions.acquire().await else { return false };
        if let Some(known) = self.known(address) {
            return known;
        }
        let pods = Api::<Pod>::namespaced(self.client.clone(), &self.namespace);
        let at_address = ListParams::default().fields(&format!("status.podIP={address}")).limit(MAX_PODS);
        match within_limit(pods.list(&at_address)).await {
            Ok(found) => {
                let admits = found.items.iter().any(|pod| is_at(pod, address));
                if admits {
                    self.note(address, true);
                }
                admits
            }
            Err(error) => {
                tracing::warn!(%address, %error, "the pod behind a client of a lease's port is not known");
                false
            }
        }
    }
}

impl ClientCheck for NamespaceClients {
    fn admits(&self, client: IpAddr) -> Pin<Box<dyn Future<Output = bool> + Send + '_>> {
        Box::pin(self.is_of_namespace(client))
    }
}

/// Whether a pod has the address now, and alone: pods in their node's network share that of the node.
fn is_at(pod: &Pod, address: IpAddr) -> bool {
    let on_host = pod.spec.as_ref().is_some_and(|spec| spec.host_network == Some(true));
    let status = pod.status.as_ref();
    let over = status.is_some_and(|status| matches!(status.phase.as_deref(), Some("Succeeded" | "Failed")));
    let own = status.and_then(|status| status.pod_ip.as_ref()?.parse::<IpAddr>().ok());
    !on_host && !over && own == Some(address)
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use http::{Request, Response};
    use kube::client::Body;
    use serde_json::{Value, json};

    use super::*;

    fn pod(address: &str, phase: &str, on_host: bool) -> Value {
        json!({
            "metadata": { "name": "p", "namespace": "team-a" },
            "spec": { "containers": [], "hostNetwork": on_host },
            "status": { "phase": phase, "podIP": address },
        })
    }

    /// An API server that answers each question about namespace team-a with these pods.
    fn clients(pods: Vec<Value>) -> (NamespaceClients, Arc<AtomicUsize>) {
        let asked = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&asked);
        let service = tower::service_fn(move |request: Request<Body>| {
            count.fetch_add(1, Ordering::SeqCst);
            let is_own = request.uri().path() == "/api/v1/namespaces/team-a/pods";
            let items = if is_own { pods.clone() } else { Vec::new() };
            let list = json!({ "apiVersion": "v1", "kind": "PodList", "metadata": {}, "items": items });
            async move { Ok::<_, std::io::Error>(Response::new(Body::from(list.to_string().into_bytes()))) }
        });
        (NamespaceClients::new(Client::new(service, "default"), "team-a"), asked)
    }

    #[tokio::test]
    async fn pod_of_another_namespace_uses_lease_port() {
        let address: IpAddr = "10.1.0.7".parse().unwrap();
        let cases = [
            (Vec::new(), false),
            (vec![pod("10.1.0.7", "Running", false)], true),
            (vec![pod("10.1.0.7", "Succeeded", false)], false),
            (vec![pod("10.1.0.7", "Running", true)], false),
            (vec![pod("10.1.0.8", "Running", false)], false),
        ];
        let checks = cases.map(|(pods, admits)| async move {
            let (clients, asked) = clients(pods);
            for _ in 0..3 {
                assert_eq!(clients.admits(address).await, admits);
            }
            assert_eq!(clients.admits("::ffff:10.1.0.7".parse().unwrap()).await, admits);
            let questions = if admits { 1 } else { 2 };
            assert_eq!(asked.load(Ordering::SeqCst), questions, "an answer holds for a while");
        });
        futures::future::join_all(checks).await;
    }
}
