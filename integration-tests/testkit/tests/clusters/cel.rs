//! CEL in kube-apiserver and kube-scheduler: what the documentation says about selectors of policies holds there too.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use comity_testkit::{Binaries, ControlPlane, ControlPlaneConfig, Needs, SimulatedNode};
use k8s_openapi::api::core::v1::{ConfigMap, Pod};
use k8s_openapi::api::resource::v1::ResourceClaim;
use kube::Api;
use kube::api::PostParams;
use serde_json::{Value, json};
use tokio::time::sleep;

const CONDITIONS: &str = include_str!("../../../../policy/tests/kubernetes-cel.txt");
const SELECTORS: &str = include_str!("../../../../policy/tests/dra-selectors.txt");
const PATIENCE: Duration = Duration::from_secs(90);

fn lines(text: &'static str) -> Vec<&'static str> {
    text.lines().filter(|line| !line.is_empty() && !line.starts_with('#')).collect()
}

async fn apply(cluster: &ControlPlane, objects: &[Value]) {
    for object in objects {
        cluster.kubectl_with_input(&["apply", "-f", "-"], &object.to_string()).await.unwrap();
    }
}

#[tokio::test]
async fn expressions_of_policies_mean_the_same_in_kubernetes() {
    let dir = tempfile::tempdir().unwrap();
    let binaries = Binaries::ensure(Needs::ControlPlane).await.unwrap();
    let nodes = vec![SimulatedNode::h100("gpu-1", 8)];
    let config = ControlPlaneConfig { nodes, ..ControlPlaneConfig::new("cel", dir.path().join("cel")) };
    let cluster = ControlPlane::start(&binaries, config).await.unwrap();
    conditions_hold(&cluster).await;
    selectors_choose_the_same_devices(&cluster).await;
    cluster.stop().await.unwrap();
}

/// A policy evaluates all conditions, and each of them negated once.
async fn conditions_hold(cluster: &ControlPlane) {
    let conditions = lines(CONDITIONS);
    let validation = |(index, condition): (usize, &&str)| {
        let expression = format!("object.data.negated == \"{index}\" ? !({condition}) : ({condition})");
        json!({ "expression": expression, "message": format!("condition {index}: {condition}") })
    };
    let policies = conditions.iter().enumerate().map(validation).collect::<Vec<Value>>();
    apply(
        cluster,
        &[
            json!({
                "apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingAdmissionPolicy",
                "metadata": { "name": "conditions" },
                "spec": {
                    "matchConstraints": { "resourceRules": [{ "apiGroups": [""], "apiVersions": ["v1"],
                        "operations": ["CREATE"], "resources": ["configmaps"] }] },
                    "matchConditions": [{ "name": "asked", "expression": "object.metadata.name == 'conditions'" }],
                    "validations": policies,
                }
            }),
            json!({
                "apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingAdmissionPolicyBinding",
                "metadata": { "name": "conditions" },
                "spec": { "policyName": "conditions", "validationActions": ["Deny"] }
            }),
        ],
    )
    .await;
    let maps: Api<ConfigMap> = Api::namespaced(cluster.client(), "default");
    // `Err` is the refusal.
    let ask = async |negated: &str| {
        let mut map = ConfigMap::default();
        map.metadata.name = Some("conditions".to_owned());
        map.data = Some(BTreeMap::from([("negated".to_owned(), negated.to_owned())]));
        let dry_run = PostParams { dry_run: true, ..PostParams::default() };
        maps.create(&dry_run, &map).await.map(|_| ()).map_err(|error| error.to_string())
    };
    let deadline = Instant::now() + PATIENCE;
    while ask("0").await.is_ok() {
        assert!(Instant::now() < deadline, "the policy is not in force");
        sleep(Duration::from_millis(200)).await;
    }
    assert_eq!(ask("none").await, Ok(()));
    for (index, condition) in conditions.iter().enumerate() {
        let refusal = ask(&index.to_string()).await.unwrap_err();
        assert!(refusal.contains(&format!("condition {index}:")), "{condition}: {refusal}");
    }
}

/// A claim for each selector, and as many devices as claims.
async fn selectors_choose_the_same_devices(cluster: &ControlPlane) {
    let selectors: Vec<(&str, &str)> = lines(SELECTORS).iter().filter_map(|line| line.split_once(' ')).collect();
    let device = |index: usize| {
        json!({
            "name": format!("gpu-{index}"),
            "attributes": {
                "type": { "string": "gpu" },
                "productName": { "string": "NVIDIA H100 80GB HBM3" },
                "brand": { "string": "Nvidia" },
                "architecture": { "string": "Hopper" },
                "cudaComputeCapability": { "version": "9.0.0" },
                "driverVersion": { "version": "570.86.15" },
            },
            "capacity": { "memory": { "value": "81559Mi" } },
        })
    };
    let devices: Vec<Value> = (0..selectors.len()).map(device).collect();
    let mut objects = vec![
        json!({ "apiVersion": "resource.k8s.io/v1", "kind": "DeviceClass", "metadata": { "name": "any" }, "spec": {} }),
        json!({
            "apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice", "metadata": { "name": "gpu-1" },
            "spec": { "driver": "gpu.nvidia.com", "nodeName": "gpu-1", "devices": devices,
                "pool": { "name": "gpu-1", "generation": 1, "resourceSliceCount": 1 } }
        }),
    ];
    for (index, (_, selector)) in selectors.iter().enumerate() {
        let name = format!("selector-{index}");
        let exactly = json!({ "deviceClassName": "any", "selectors": [{ "cel": { "expression": selector } }] });
        objects.push(json!({
            "apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", "metadata": { "name": name },
            "spec": { "devices": { "requests": [{ "name": "gpu", "exactly": exactly }] } }
        }));
        objects.push(json!({
            "apiVersion": "v1", "kind": "Pod", "metadata": { "name": name },
            "spec": {
                "resourceClaims": [{ "name": "gpu", "resourceClaimName": name }],
                "containers": [{ "name": "main", "image": "comity.local/probe:1",
                    "resources": { "claims": [{ "name": "gpu" }] } }],
            }
        }));
    }
    apply(cluster, &objects).await;
    let claims: Api<ResourceClaim> = Api::namespaced(cluster.client(), "default");
    let pods: Api<Pod> = Api::namespaced(cluster.client(), "default");
    for (index, (matches, selector)) in selectors.iter().enumerate() {
        let name = format!("selector-{index}");
        let deadline = Instant::now() + PATIENCE;
        loop {
            let claim = claims.get(&name).await.unwrap();
            let allocated = claim.status.is_some_and(|status| status.allocation.is_some());
            let conditions = pods.get(&name).await.unwrap().status.and_then(|status| status.conditions);
            let refused = conditions.iter().flatten().filter(|condition| condition.type_ == "PodScheduled");
            let refusal = refused.filter_map(|condition| condition.message.clone()).next().unwrap_or_default();
            match (allocated, refusal.contains("cannot allocate all claims")) {
                (true, _) => assert_eq!(*matches, "yes", "{selector}"),
                (false, true) => assert_eq!(*matches, "no", "{selector}"),
                (false, false) => {
                    assert!(Instant::now() < deadline, "{selector}: no answer: {refusal}");
                    sleep(Duration::from_millis(200)).await;
                    continue;
                }
            }
            break;
        }
    }
}
