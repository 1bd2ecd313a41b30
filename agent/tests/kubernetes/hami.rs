//! Leases of parts of GPUs on nodes that HAMi shares, and on nodes with MPS.
//!
//! HAMi's programs cannot be installed here. The test writes the annotations that HAMi 2.10 wrote, and checks what the
//! agent reads and what the API server admits. No part of HAMi limits anything in it.

use std::collections::BTreeSet;

use comity_agent::observe::{self, InventorySettings, LocalReserve, PLACEHOLDER_NAMESPACE};
use comity_agent_delivery::{DonorDelivery as _, DonorLease};
use comity_agent_kubernetes::hami::{HamiShare, hami_additions};
use comity_agent_model::delivery_error::DeliveryError;
use comity_agent_model::gpu_demand::{GpuDemand, Share};
use comity_agent_model::lease::placement::{DeviceShare, NodePlacement};
use comity_types::LeaseId;
use k8s_openapi::api::core::v1::{Namespace, Pod, ResourceQuota};
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams};
use kube::{Api, ResourceExt as _};
use serde_json::{Value, json};

use crate::cluster::{Cluster, PATIENCE, SALT, eventually, lease, pod, refusal};
use crate::drift::observe_with;
use crate::hold::Holder;

const POLICY: &str = include_str!("../../../deploy/agent/hami.yaml");
/// The node, which no other test leases.
const NODE: &str = "gpu-2";
const REGISTER: &str = r#"[{"id":"GPU-1","index":1,"count":20,"devmem":81559,"devcore":100,"type":"NVIDIA H100 80GB HBM3","health":true},
    {"id":"GPU-0","count":20,"devmem":81559,"devcore":100,"type":"NVIDIA H100 80GB HBM3","health":true}]"#;

/// Four twentieths of device 0.
fn twentieths(id: &str) -> DonorLease {
    let mut lease = lease(id);
    lease.placement.nodes = vec![NodePlacement {
        node: SALT.node_id(NODE),
        devices: vec![DeviceShare { device: 0, milli: 200, ..DeviceShare::default() }],
        cpu_milli: 8_000,
        memory_mib: 16_384,
        ..NodePlacement::default()
    }];
    lease.placement.resource_count = 4;
    lease.gpus = GpuDemand { share: Some(Share::Milli(50)), count: 4, ..GpuDemand::default() };
    lease
}

async fn annotate(cluster: &Cluster, annotations: Value) {
    let patch = json!({ "metadata": { "annotations": annotations } });
    let nodes = Api::<k8s_openapi::api::core::v1::Node>::all(cluster.admin());
    nodes.patch(NODE, &PatchParams::default(), &Patch::Merge(&patch)).await.unwrap();
}

pub(crate) async fn a_twentieth_of_a_gpu_is_a_twentieth(cluster: &Cluster) {
    let handshake = "Reported_2026-11-24 10:11:12";
    annotate(cluster, json!({ "hami.io/node-nvidia-register": REGISTER, "hami.io/node-handshake": handshake })).await;
    the_offer_has_parts_and_local_use(cluster).await;

    let (donor, lease) = (cluster.donor(), twentieths("lease-80"));
    let error = donor.prepare(&lease).await.unwrap_err();
    assert!(matches!(error, DeliveryError::Permanent { code: "admission-policy", .. }), "{error}");
    assert!(error.to_string().ends_with("; apply deploy/agent/hami.yaml"), "{error}");
    cluster.plane().kubectl_with_input(&["apply", "-f", "-"], POLICY).await.unwrap();
    eventually("the agent sees the policy", || async { donor.prepare(&lease).await.is_ok() }).await;

    let namespace = Api::<Namespace>::all(cluster.admin()).get("comity-lease-80").await.unwrap();
    let share = HamiShare::of_namespace(&namespace.metadata.annotations.unwrap()).unwrap();
    assert_eq!(share, HamiShare { memory_mib: 4_077, cores: 5, devices: ["GPU-0".to_owned()].into() });
    let quota = Api::<ResourceQuota>::namespaced(cluster.admin(), "comity-lease-80").get("gpus").await.unwrap();
    let hard = quota.spec.unwrap().hard.unwrap();
    let amounts = ["gpu", "gpumem", "gpucores"].map(|name| hard[&format!("requests.nvidia.com/{name}")].0.clone());
    assert_eq!(amounts, ["4", "16308", "20"]);

    let pods = Api::<Pod>::default_namespaced(cluster.tenant(&donor.credential(&lease).await.unwrap()));
    let create = PostParams::default();
    let fitting = |name: &str| {
        let mut pod = pod(name, "nvidia.com/gpu", 1);
        hami_additions(&share, &mut pod);
        pod
    };
    eventually("the policy is in force", || async {
        let made = pods.create(&create, &pod("plain", "nvidia.com/gpu", 1)).await;
        if made.is_ok() {
            pods.delete("plain", &DeleteParams::default().grace_period(0)).await.unwrap();
        }
        made.err().is_some_and(|error| error.to_string().contains("nvidia.com/gpumem, 1 to 4077 MiB"))
    })
    .await;
    no_pod_gets_more_than_its_part(&pods, &fitting).await;
    for number in 1..=4 {
        // The quota counts a deleted pod for a moment.
        let part = fitting(&format!("part-{number}"));
        eventually("the quota has room", || async { pods.create(&create, &part).await.is_ok() }).await;
    }
    eventually("the quota is full", || async {
        let made = pods.create(&create, &fitting("part-5")).await;
        if made.is_ok() {
            // Kubernetes' quota controller counted deleted pods again, before it saw the last one.
            pods.delete("part-5", &DeleteParams::default().grace_period(0)).await.unwrap();
        }
        made.err().is_some_and(|error| error.to_string().contains("exceeded quota"))
    })
    .await;
    hamis_memory_of_a_pod_is_not_the_tenants(cluster, &pods).await;
    for number in 1..=4 {
        pods.delete(&format!("part-{number}"), &DeleteParams::default().grace_period(0)).await.unwrap();
    }
    placeholders_hold_parts(cluster, &lease).await;
    donor.remove(LeaseId(80)).await.unwrap();
    annotate(cluster, json!({ "hami.io/node-nvidia-register": null, "hami.io/node-handshake": null })).await;
}

async fn the_offer_has_parts_and_local_use(cluster: &Cluster) {
    let research = Api::<Pod>::namespaced(cluster.admin(), "research");
    let mut local = serde_json::to_value(pod("local-share", "nvidia.com/gpu", 1)).unwrap();
    local["metadata"]["annotations"] = json!({ "hami.io/vgpu-devices-allocated": "GPU-1,NVIDIA,20000,30:;" });
    local["spec"]["nodeName"] = json!(NODE);
    research.create(&PostParams::default(), &serde_json::from_value(local).unwrap()).await.unwrap();
    let settings = InventorySettings { salt: SALT, reserve: LocalReserve::default(), rdma: Vec::new() };
    let inventory = observe::kubernetes::observe(&cluster.agent, settings, observe::no_leases());
    let mut nodes = inventory.nodes();
    let node = SALT.node_id(NODE);
    let seen = nodes.wait_for(|nodes| {
        let node = nodes.as_ref().and_then(|nodes| nodes.iter().find(|it| it.id == node));
        node.is_some_and(|node| {
            let used: Vec<u32> = node.devices.iter().map(|device| device.local_use_milli).collect();
            used == [0, 300] && node.devices[0].product_name == "NVIDIA-H100-80GB-HBM3"
        })
    });
    assert!(tokio::time::timeout(PATIENCE, seen).await.is_ok(), "the offer has no parts");
    research.delete("local-share", &DeleteParams::default().grace_period(0)).await.unwrap();
}

/// Each refused by name.
async fn no_pod_gets_more_than_its_part(pods: &Api<Pod>, fitting: &impl Fn(&str) -> Pod) {
    const WORK: &str = "/spec/containers/0";
    let limit = |name: &str, amount: Value| {
        let both =
            ["limits", "requests"].map(|kind| (format!("{WORK}/resources/{kind}/nvidia.com~1{name}"), amount.clone()));
        both.to_vec()
    };
    let one = |path: &str, value: Value| vec![(path.to_owned(), value)];
    let env = |name: &str, value: &str| one(&format!("{WORK}/env"), json!([{ "name": name, "value": value }]));
    let hidden = json!({ "name": "side", "image": "example.invalid/side:1", "securityContext":
        { "allowPrivilegeEscalation": false, "capabilities": { "drop": ["ALL"] } } });
    let mount = |path: &str| {
        vec![
            ("/spec/volumes".to_owned(), json!([{ "name": "v", "emptyDir": {} }])),
            (format!("{WORK}/volumeMounts"), json!([{ "name": "v", "mountPath": path }])),
        ]
    };
    let attempts = [
        (limit("gpumem", json!("4078")), "nvidia.com/gpumem, 1 to 4077 MiB"),
        (limit("gpumem", json!("0")), "nvidia.com/gpumem, 1 to 4077 MiB"),
        (limit("gpucores", json!("6")), "nvidia.com/gpucores, 1 to 5 percent"),
        (limit("gpucores", json!("0")), "nvidia.com/gpucores, 1 to 5 percent"),
        (
            limit("gpumem-percentage", json!("100")),
            "its own devices (nvidia.com/gpu, nvidia.com/gpucores, nvidia.com/gpumem)",
        ),
        (limit("priority", json!("1")), "and no other resource"),
        (one("/metadata/annotations/nvidia.com~1use-gpuuuid", json!("GPU-1")), "names devices of the lease: GPU-0"),
        (
            one("/metadata/annotations/nvidia.com~1use-gpuuuid", json!("GPU-0,GPU-1")),
            "names devices of the lease: GPU-0",
        ),
        (one("/metadata/annotations", json!({})), "names devices of the lease: GPU-0"),
        (one("/metadata/annotations/nvidia.com~1vgpu-mode", json!("mps")), "belong to HAMi"),
        (
            one("/metadata/annotations/hami.io~1vgpu-devices-to-allocate", json!("GPU-1,NVIDIA,81559,100:;")),
            "belong to HAMi",
        ),
        (one("/metadata/labels", json!({ "hami.io/webhook": "ignore" })), "labels hami.io/*"),
        (one("/spec/schedulerName", json!("mine")), "spec.schedulerName"),
        (env("CUDA_DISABLE_CONTROL", "true"), "env may not have"),
        (env("CUDA_DEVICE_MEMORY_LIMIT_0", "81559m"), "env may not have"),
        (env("NVIDIA_VISIBLE_DEVICES", "all"), "leave NVIDIA_VISIBLE_DEVICES"),
        (env("LD_PRELOAD", "/tmp/own.so"), "env may not have"),
        (env("GPU_CORE_UTILIZATION_POLICY", "disable"), "env may not have"),
        (one(&format!("{WORK}/envFrom"), json!([{ "configMapRef": { "name": "c" } }])), "envFrom is not offered"),
        (one("/spec/containers/1", hidden), "containers without nvidia.com/gpu"),
        (mount("/etc/ld.so.preload"), "mountPath"),
        (mount("/usr/../etc"), "mountPath"),
        (mount("/usr/local/vgpu"), "mountPath"),
    ];
    for (number, (changes, part)) in attempts.into_iter().enumerate() {
        let mut wanted = serde_json::to_value(fitting(&format!("attempt-{number}"))).unwrap();
        for (path, value) in &changes {
            add(&mut wanted, path, value.clone());
        }
        let created = pods.create(&PostParams::default(), &serde_json::from_value(wanted).unwrap()).await;
        assert!(created.is_err(), "{changes:?} is admitted");
        let (code, message) = refusal(created);
        assert!((code == 403 || code == 422) && message.contains(part), "{changes:?}: {code} {message}");
    }
    // Harmless mounts stay possible.
    let mut ordinary = serde_json::to_value(fitting("ordinary")).unwrap();
    ordinary["spec"]["volumes"] = json!([{ "name": "v", "emptyDir": {} }]);
    ordinary["spec"]["containers"][0]["volumeMounts"] = json!([{ "name": "v", "mountPath": "/dev/shm" }]);
    pods.create(&PostParams::default(), &serde_json::from_value(ordinary).unwrap()).await.unwrap();
    pods.delete("ordinary", &DeleteParams::default().grace_period(0)).await.unwrap();
}

/// The step `add` of a JSON patch; an array gets another element.
fn add(object: &mut Value, path: &str, value: Value) {
    let (parent, key) = path.rsplit_once('/').unwrap();
    match object.pointer_mut(parent).unwrap() {
        Value::Array(elements) => elements.push(value),
        Value::Object(fields) => drop(fields.insert(key.replace("~1", "/"), value)),
        other => panic!("{parent} is {other}"),
    }
}

/// HAMi annotates pods after their creation; the tenant does not change that.
async fn hamis_memory_of_a_pod_is_not_the_tenants(cluster: &Cluster, pods: &Api<Pod>) {
    let annotation = |value: Value| {
        Patch::Merge(json!({ "metadata": { "annotations": { "hami.io/vgpu-devices-allocated": value } } }))
    };
    let own = annotation(json!("GPU-1,NVIDIA,81559,100:;"));
    let parameters = PatchParams::default();
    assert!(refusal(pods.patch("part-1", &parameters, &own).await).1.contains("belong to HAMi"));
    // The administrator here stands for HAMi's scheduler.
    let hamis = Api::<Pod>::namespaced(cluster.admin(), "comity-lease-80");
    hamis.patch("part-1", &parameters, &annotation(json!("GPU-0,NVIDIA,4077,5:;"))).await.unwrap();
    assert!(refusal(pods.patch("part-1", &parameters, &own).await).1.contains("belong to HAMi"));
    assert!(refusal(pods.patch("part-1", &parameters, &annotation(Value::Null)).await).1.contains("not removed"));
    let device = Patch::Merge(json!({ "metadata": { "annotations": { "nvidia.com/use-gpuuuid": "GPU-1" } } }));
    assert!(refusal(pods.patch("part-2", &parameters, &device).await).1.contains("belong to HAMi"));
}

/// Without limits HAMi would give each placeholder a whole GPU of its choice.
async fn placeholders_hold_parts(cluster: &Cluster, lease: &DonorLease) {
    let (lent, inventory) = observe_with(cluster, lease);
    let holder = Holder::start(cluster, &lent, &inventory);
    let held = Api::<Pod>::namespaced(cluster.admin(), PLACEHOLDER_NAMESPACE.name);
    let of_lease = ListParams::default().labels("comity.dev/lease=lease-80");
    let all = async || held.list(&of_lease).await.unwrap().items;
    eventually("four shares are held", || async { all().await.len() == 4 }).await;
    for pod in all().await {
        assert_eq!(pod.annotations()["nvidia.com/use-gpuuuid"], "GPU-0");
        let limits = pod.spec.unwrap().containers[0].resources.clone().unwrap().limits.unwrap();
        let amounts = ["gpu", "gpumem", "gpucores"].map(|name| limits[&format!("nvidia.com/{name}")].0.clone());
        assert_eq!(amounts, ["1", "4077", "5"]);
    }
    holder.stop().await;
    PLACEHOLDER_NAMESPACE.clear(cluster.agent.client()).await;
}

/// NVIDIA's device plugin gives a container one share of MPS; the kubelet refuses two after the pod is bound.
pub(crate) async fn a_container_gets_one_share_of_mps(cluster: &Cluster) {
    let node = |strategy: Value| json!({ "metadata": { "labels": { "nvidia.com/gpu.sharing-strategy": strategy } } });
    let nodes = Api::<k8s_openapi::api::core::v1::Node>::all(cluster.admin());
    nodes.patch(NODE, &PatchParams::default(), &Patch::Merge(node(json!("mps")))).await.unwrap();
    let (donor, lease) = (cluster.donor(), twentieths("lease-81"));
    donor.prepare(&lease).await.unwrap();
    let pods = Api::<Pod>::default_namespaced(cluster.tenant(&donor.credential(&lease).await.unwrap()));
    let create = PostParams::default();
    let (code, message) = refusal(pods.create(&create, &pod("two", "nvidia.com/gpu", 2)).await);
    assert!(code == 403 && message.contains("maximum nvidia.com/gpu usage per Container is 1"), "{code} {message}");
    let mut with_sidecar = serde_json::to_value(pod("one", "nvidia.com/gpu", 1)).unwrap();
    let mut side = with_sidecar["spec"]["containers"][0].clone();
    side["name"] = json!("side");
    side["resources"] = json!({});
    with_sidecar["spec"]["containers"].as_array_mut().unwrap().push(side);
    pods.create(&create, &serde_json::from_value(with_sidecar).unwrap()).await.unwrap();
    let containers = pods.get("one").await.unwrap().spec.unwrap().containers;
    let gpus: BTreeSet<(String, String)> = containers
        .into_iter()
        .map(|container| (container.name, container.resources.unwrap().limits.unwrap()["nvidia.com/gpu"].0.clone()))
        .collect();
    assert_eq!(gpus, [("side".to_owned(), "0".to_owned()), ("work".to_owned(), "1".to_owned())].into());
    donor.remove(LeaseId(81)).await.unwrap();
    nodes.patch(NODE, &PatchParams::default(), &Patch::Merge(node(json!("none")))).await.unwrap();
}
