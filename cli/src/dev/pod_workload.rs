//! The tenant's workload on a donor with Kubernetes: it runs a pod through the tunnel, with the leased kubeconfig.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use comity_agent_model::local_policy::PLACEHOLDER_IMAGE;
use k8s_openapi::api::core::v1::{Pod, ResourceQuota};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use kube::api::{DeleteParams, ListParams, PostParams};
use kube::{Api, Client, ResourceExt as _};
use serde_json::json;

use super::KUBERNETES_POLL_INTERVAL;
use crate::failure::Failure;

const GPU: &str = "nvidia.com/gpu";
const QUOTA_KEY: &str = "requests.nvidia.com/gpu";
/// Limit until the Kubernetes scheduler has placed the pod.
const SCHEDULED_LIMIT: Duration = Duration::from_secs(30);

fn failed(step: &str, error: &dyn std::fmt::Display) -> Failure {
    Failure::refused("not-usable", format!("the lease cannot be used: {step}: {error}"))
}

/// A pod that passes Pod Security level `restricted`.
fn restricted_pod(name: &str, gpus: u32) -> Result<Pod, Failure> {
    serde_json::from_value(json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name},
        "spec": {
            "restartPolicy": "Never",
            "securityContext": {"runAsNonRoot": true, "runAsUser": 65532, "seccompProfile": {"type": "RuntimeDefault"}},
            "containers": [{
                "name": "train",
                "image": PLACEHOLDER_IMAGE,
                "securityContext": {"allowPrivilegeEscalation": false, "capabilities": {"drop": ["ALL"]}},
                "resources": {
                    "requests": {"cpu": "1", "memory": "1Gi"},
                    "limits": {GPU: gpus.to_string(), "cpu": "1", "memory": "1Gi"}
                }
            }]
        }
    }))
    .map_err(|error| failed("pod", &error))
}

/// Runs a pod on all GPUs and checks that the quota refuses one GPU more; returns a summary for people.
pub(super) async fn run(client: &Client, namespace: &str, gpus: u32) -> Result<String, Failure> {
    let quotas: Api<ResourceQuota> = Api::namespaced(client.clone(), namespace);
    let hard = hard_limit(&quotas).await?;
    if hard != gpus.to_string() {
        return Err(failed("quota", &format!("it is {hard} instead of {gpus} GPUs")));
    }
    let pods: Api<Pod> = Api::namespaced(client.clone(), namespace);
    let name = "comity-dev";
    match pods.create(&PostParams::default(), &restricted_pod(name, gpus)?).await {
        Ok(_) => {}
        // An earlier run with --state left it.
        Err(kube::Error::Api(status)) if status.code == 409 => {}
        Err(error) => return Err(failed("pod", &error)),
    }
    let node = node_of(&pods, name).await?;
    let one_more = match pods.create(&PostParams::default(), &restricted_pod("comity-dev-one-more", 1)?).await {
        Err(kube::Error::Api(status)) if status.code == 403 && status.message.contains("exceeded quota") => {
            status.message
        }
        Err(error) => return Err(failed("one GPU more", &error)),
        Ok(_) => {
            let _ = pods.delete("comity-dev-one-more", &DeleteParams::default()).await;
            return Err(failed("one GPU more", &"it was accepted"));
        }
    };
    let why = one_more.split("exceeded quota").nth(1).unwrap_or_default();
    Ok(format!(
        "pod {name} with {gpus} GPUs is on {node}; {QUOTA_KEY} of {namespace} is {hard}; one more is refused: exceeded \
         quota{why}"
    ))
}

/// The GPUs of the namespace's quota.
async fn hard_limit(quotas: &Api<ResourceQuota>) -> Result<String, Failure> {
    let list = quotas.list(&ListParams::default().limit(10)).await.map_err(|error| failed("quota", &error))?;
    let hard = |quota: ResourceQuota| -> Option<BTreeMap<String, Quantity>> { quota.spec?.hard };
    let found = list.items.into_iter().filter_map(hard).find_map(|mut hard| hard.remove(QUOTA_KEY));
    found.map(|quantity| quantity.0).ok_or_else(|| failed("quota", &format!("no quota has {QUOTA_KEY}")))
}

/// Waits until the pod has a node; returns the node.
async fn node_of(pods: &Api<Pod>, name: &str) -> Result<String, Failure> {
    let began = Instant::now();
    loop {
        let pod = pods.get(name).await.map_err(|error| failed("pod", &error))?;
        if let Some(node) = pod.spec.as_ref().and_then(|spec| spec.node_name.clone()) {
            return Ok(node);
        }
        if began.elapsed() > SCHEDULED_LIMIT {
            return Err(failed("pod", &format!("{} is not scheduled after {SCHEDULED_LIMIT:?}", pod.name_any())));
        }
        tokio::time::sleep(KUBERNETES_POLL_INTERVAL).await;
    }
}

/// How the API server refuses the token; `None` while it accepts it. The server may accept a deleted token for 10 s
/// more (`TokenSuccessCacheTTL`), but no role is bound to it then.
pub(super) async fn token_refusal(client: &Client, namespace: &str) -> Option<String> {
    let quotas: Api<ResourceQuota> = Api::namespaced(client.clone(), namespace);
    match quotas.list(&ListParams::default().limit(1)).await {
        Err(kube::Error::Api(status)) if status.code == 401 => {
            Some(format!("the token is refused by the donor (401), namespace {namespace} is gone"))
        }
        Err(kube::Error::Api(status)) if status.code == 403 => Some(format!(
            "the token has no rights on the donor (403; its cache keeps it for 10 s), namespace {namespace} is gone"
        )),
        _ => None,
    }
}
