//! Pods of leases, completed by the agent's webhook on a real API server.

use std::sync::Arc;

use comity_agent_delivery::DonorDelivery as _;
use comity_agent_model::guest_labels::GuestLabels;
use comity_agent_model::lease::lease_id::LEASE_NODES_LABEL;
use comity_agent_workload::lease_pods::{LEASE_PODS_WEBHOOK, LeasePodsReview};
use comity_runtime::SystemClock;
use k8s_openapi::api::admissionregistration::v1::MutatingWebhookConfiguration;
use k8s_openapi::api::core::v1::{Namespace, Pod};
use k8s_openapi::api::node::v1::RuntimeClass;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use kube::Api;
use kube::api::{DeleteParams, PatchParams, PostParams};
use serde_json::json;
use tokio_util::sync::CancellationToken;

use crate::burst::{free_port, served};
use crate::cluster::{Cluster, eventually, lease, pod, refusal};

/// Rules for guests' pods of a donor with a RuntimeClass and a webhook.
fn guests() -> GuestLabels {
    GuestLabels { runtime_class: Some("sandbox".to_owned()), void_devices: true, always_pull: true }
}

pub(crate) async fn pods_are_completed_or_refused(cluster: &Cluster) {
    for name in ["sandbox", "other"] {
        let class = json!({ "metadata": { "name": name }, "handler": "runsc" });
        let classes = Api::<RuntimeClass>::all(cluster.admin());
        classes.create(&PostParams::default(), &serde_json::from_value(class).unwrap()).await.unwrap();
    }
    let name = "comity-lease-80";
    let labels = json!({ "comity.dev/lease": "lease-80", LEASE_NODES_LABEL: "several" });
    let annotations = json!({ "comity.dev/gpu-resource": "nvidia.com/gpu", "comity.dev/devices": "nvidia.com/gpu" });
    let object = json!({ "metadata": { "name": name, "labels": labels, "annotations": annotations } });
    let namespaces = Api::<Namespace>::all(cluster.admin());
    namespaces.create(&PostParams::default(), &serde_json::from_value(object).unwrap()).await.unwrap();
    let pods = Api::<Pod>::namespaced(cluster.admin(), name);
    let stop = CancellationToken::new();
    let clock = Arc::new(SystemClock::new());
    let review = LeasePodsReview::new(cluster.agent.client(), clock);
    let task = tokio::spawn(served(cluster, free_port(), Box::new(review), stop.clone()));

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

    let tenants = guests_run_under_the_donors_runtime_class(cluster).await;

    stop.cancel();
    task.await.unwrap();
    // Nobody answers any more.
    let webhooks = Api::<MutatingWebhookConfiguration>::all(cluster.admin());
    let nowhere = json!([{ "op": "replace", "path": "/webhooks/0/clientConfig/url", "value": "https://127.0.0.1:1" }]);
    let nowhere = kube::api::Patch::<()>::Json(serde_json::from_value(nowhere).unwrap());
    webhooks.patch(LEASE_PODS_WEBHOOK, &PatchParams::default(), &nowhere).await.unwrap();
    let mut count = 0;
    eventually("the policy refuses incomplete pods", || {
        count += 1;
        let (pods, late) = (&pods, pod(&format!("late-{count}"), "nvidia.com/gpu", 1));
        async move {
            let refused = pods.create(&PostParams::default(), &late).await.err().map(|error| error.to_string());
            refused.is_some_and(|refused| refused.contains("the lease has several nodes"))
        }
    })
    .await;
    containers_that_could_see_every_gpu_are_refused(&tenants).await;
    containers_that_run_a_kept_image_are_refused(&tenants).await;
    cluster.donor().remove("lease-81".parse().unwrap()).await.unwrap();
    webhooks.delete(LEASE_PODS_WEBHOOK, &DeleteParams::default()).await.unwrap();
    namespaces.delete(name, &DeleteParams::default()).await.unwrap();
}

/// Returns the pods of lease-81, as its tenant sees them.
async fn guests_run_under_the_donors_runtime_class(cluster: &Cluster) -> Api<Pod> {
    let donor = cluster.donor().with_guest_labels(guests());
    donor.prepare(&lease("lease-81")).await.unwrap();
    let credential = donor.credential(&lease("lease-81")).await.unwrap();
    let tenants = Api::<Pod>::default_namespaced(cluster.tenant(&credential));
    let mut count = 0;
    eventually("the pod has the RuntimeClass", || {
        count += 1;
        let (tenants, pod) = (&tenants, pod(&format!("guest-{count}"), "nvidia.com/gpu", 0));
        async move {
            let made = tenants.create(&PostParams::default(), &pod).await.ok();
            made.and_then(|pod| pod.spec?.runtime_class_name).as_deref() == Some("sandbox")
        }
    })
    .await;
    let mut escapes = pod("escapes", "nvidia.com/gpu", 0);
    escapes.spec.as_mut().unwrap().runtime_class_name = Some("other".to_owned());
    let (code, reason) = refusal(tenants.create(&PostParams::default(), &escapes).await);
    assert!(code == 422 && reason.contains("run under RuntimeClass sandbox"), "{code} {reason}");

    // An image may ask for all GPUs.
    let env = async |name: &str, gpus: u32| {
        let made = tenants.create(&PostParams::default(), &pod(name, "nvidia.com/gpu", gpus)).await.unwrap();
        made.spec.unwrap().containers.remove(0).env.unwrap_or_default()
    };
    assert_eq!(env("works", 1).await, []);
    let pulled = tenants.get("works").await.unwrap().spec.unwrap().containers.remove(0).image_pull_policy;
    assert_eq!(pulled.as_deref(), Some("Always"), "not an image that the node keeps for the donor's own");
    let variables = env("watches", 0).await;
    let [void] = &variables[..] else { panic!("{variables:?}") };
    assert_eq!((void.name.as_str(), void.value.as_deref()), ("NVIDIA_VISIBLE_DEVICES", Some("void")));
    tenants
}

/// A pod as the webhook would complete it, but for the variable.
fn complete(name: &str, gpus: u32) -> Pod {
    let mut pod = pod(name, "nvidia.com/gpu", gpus);
    let spec = pod.spec.as_mut().unwrap();
    spec.runtime_class_name = Some("sandbox".to_owned());
    spec.containers[0].image_pull_policy = Some("Always".to_owned());
    pod
}

/// Without the webhook, a container without GPUs states the variable itself: its image may ask for all.
async fn containers_that_could_see_every_gpu_are_refused(tenants: &Api<Pod>) {
    let (code, reason) = refusal(tenants.create(&PostParams::default(), &complete("sees-all", 0)).await);
    assert!(code == 422 && reason.contains("NVIDIA_VISIBLE_DEVICES with value void"), "{code} {reason}");
    let mut stated = complete("states", 0);
    let void = json!([{ "name": "NVIDIA_VISIBLE_DEVICES", "value": "void" }]);
    stated.spec.as_mut().unwrap().containers[0].env = Some(serde_json::from_value(void).unwrap());
    tenants.create(&PostParams::default(), &stated).await.unwrap();
}

/// Without the webhook, each container states that its image is pulled.
async fn containers_that_run_a_kept_image_are_refused(tenants: &Api<Pod>) {
    tenants.create(&PostParams::default(), &complete("works-too", 1)).await.unwrap();
    for kept in ["IfNotPresent", "Never"] {
        let mut cached = complete("runs-kept-image", 1);
        cached.spec.as_mut().unwrap().containers[0].image_pull_policy = Some(kept.to_owned());
        let (code, reason) = refusal(tenants.create(&PostParams::default(), &cached).await);
        assert!(code == 422 && reason.contains("have imagePullPolicy Always"), "{kept}: {code} {reason}");
    }
}
