//! Pods of leases on several nodes, completed by the agent's webhook on a real API server.

use comity_agent_workload::lease_pods::{LEASE_NODES_LABEL, LEASE_PODS_WEBHOOK, LeasePodsReview};
use k8s_openapi::api::admissionregistration::v1::MutatingWebhookConfiguration;
use k8s_openapi::api::core::v1::{Namespace, Pod};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use kube::Api;
use kube::api::{DeleteParams, PostParams};
use serde_json::json;
use tokio_util::sync::CancellationToken;

use crate::burst::{free_port, served};
use crate::cluster::{Cluster, eventually, pod};

pub(crate) async fn pods_are_completed_or_refused(cluster: &Cluster) {
    let name = "comity-lease-80";
    let labels = json!({ "comity.dev/lease": "lease-80", LEASE_NODES_LABEL: "several" });
    let object = json!({ "metadata": { "name": name, "labels": labels } });
    let namespaces = Api::<Namespace>::all(cluster.admin());
    namespaces.create(&PostParams::default(), &serde_json::from_value(object).unwrap()).await.unwrap();
    let pods = Api::<Pod>::namespaced(cluster.admin(), name);
    let stop = CancellationToken::new();
    let task = tokio::spawn(served(cluster, free_port(), Box::new(LeasePodsReview), stop.clone()));

    let units = async |name: &str| {
        let made = pods.create(&PostParams::default(), &pod(name, "nvidia.com/gpu", 2)).await.ok()?;
        let resources = made.spec?.containers.remove(0).resources?;
        let amount = |list: Option<std::collections::BTreeMap<String, Quantity>>| {
            list.and_then(|mut list| list.remove("gpus.lease.comity.dev/lease-80")).map(|Quantity(amount)| amount)
        };
        Some((amount(resources.limits)?, amount(resources.requests)?))
    };
    let mut count = 0;
    eventually("the webhook completes pods", || {
        count += 1;
        let name = format!("work-{count}");
        let units = &units;
        async move { units(&name).await == Some(("2".to_owned(), "2".to_owned())) }
    })
    .await;

    stop.cancel();
    task.await.unwrap();
    let refused = pods.create(&PostParams::default(), &pod("late", "nvidia.com/gpu", 1)).await.unwrap_err().to_string();
    assert!(refused.contains("lease-pods.comity.dev"), "{refused}");
    let webhooks = Api::<MutatingWebhookConfiguration>::all(cluster.admin());
    webhooks.delete(LEASE_PODS_WEBHOOK, &DeleteParams::default()).await.unwrap();
    namespaces.delete(name, &DeleteParams::default()).await.unwrap();
}
