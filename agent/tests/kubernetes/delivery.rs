//! A lease as a namespace: its rights, its limits, and its complete removal.

use comity_agent::observe::{self, InventorySettings, LocalReserve};
use comity_agent_delivery::DonorDelivery as _;
use comity_agent_model::delivery_error::DeliveryError;
use comity_agent_model::lease::lease_id::LEASE_LABEL;
use comity_agent_model::node_id::NodeSalt;
use comity_types::LeaseId;
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::authentication::v1::TokenRequest;
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::{
    ConfigMap, Namespace, Node, PersistentVolumeClaim, Pod, ResourceQuota, Secret, Service, ServiceAccount,
};
use k8s_openapi::api::networking::v1::NetworkPolicy;
use k8s_openapi::api::rbac::v1::RoleBinding;
use k8s_openapi::api::scheduling::v1::PriorityClass;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams};
use kube::{Api, Client};
use serde_json::json;

use comity_testkit::Component;

use crate::cluster::{Cluster, PATIENCE, eventually, lease, pod, refusal};

pub(crate) async fn a_lease_is_exactly_what_was_leased(cluster: &Cluster) {
    let (donor, lease) = (cluster.donor(), lease("lease-2"));
    let prepared = donor.prepare(&lease).await.unwrap();
    assert_eq!(prepared.namespace, "comity-lease-2");
    donor.prepare(&lease).await.unwrap();
    let credential = donor.credential(&lease).await.unwrap();
    assert!(
        credential.expires_at_ms <= lease.ends_at_ms + 1_000,
        "{} > {}",
        credential.expires_at_ms,
        lease.ends_at_ms
    );
    let tenant = cluster.tenant(&credential);
    let create = PostParams::default();

    let pods = Api::<Pod>::default_namespaced(tenant.clone());
    pods.create(&create, &pod("three", "nvidia.com/gpu", 3)).await.unwrap();
    let (code, message) = refusal(pods.create(&create, &pod("a-fourth", "nvidia.com/gpu", 1)).await);
    assert!(code == 403 && message.contains("exceeded quota"), "{message}");
    // The second is of a device plugin that starts while the lease runs.
    for other in ["nvidia.com/mig-1g.10gb", "example.com/fpga"] {
        let (code, message) = refusal(pods.create(&create, &pod("another-kind", other, 1)).await);
        assert!((code == 403 || code == 422) && message.contains("its own devices (nvidia.com/gpu)"), "{message}");
    }
    let mut huge = serde_json::to_value(pod("huge", "nvidia.com/gpu", 0)).unwrap();
    for kind in ["limits", "requests"] {
        huge["spec"]["containers"][0]["resources"][kind]["hugepages-2Mi"] = json!("64Mi");
    }
    let (code, message) = refusal(pods.create(&create, &serde_json::from_value(huge).unwrap()).await);
    assert!((code == 403 || code == 422) && message.contains("and no other resource"), "{message}");
    eventually("the pod runs", || async {
        pods.get("three").await.unwrap().status.and_then(|status| status.phase).as_deref() == Some("Running")
    })
    .await;

    let mut privileged = pod("privileged", "nvidia.com/gpu", 0);
    privileged.spec.as_mut().unwrap().containers[0].security_context =
        Some(serde_json::from_value(json!({ "privileged": true })).unwrap());
    let (code, message) = refusal(pods.create(&create, &privileged).await);
    assert!(code == 403 && message.contains("PodSecurity"), "{message}");

    pods_stay_on_the_leases_nodes(cluster, &pods).await;
    for (name, preempts) in [("donor-high", "PreemptLowerPriority"), ("donor-never", "Never")] {
        let class = json!({ "metadata": { "name": name }, "value": 1000, "preemptionPolicy": preempts });
        let class = serde_json::from_value::<PriorityClass>(class).unwrap();
        Api::all(cluster.admin()).create(&create, &class).await.unwrap();
    }
    // Before the others, which try some of it again.
    namespace_tenant_external_ips(&tenant).await;
    tenant_takes_a_priority_class_of_the_donors(&pods).await;
    tenant_claims_a_volume_of_the_donors(&tenant).await;
    visible_devices_by_envfrom_and_image(&tenant).await;
    visible_devices_by_a_prefix_in_env_from(&pods).await;
    visible_devices_by_a_mount(&pods).await;
    visible_devices_by_an_annotation(&pods).await;
    visible_devices_by_a_key_of_a_config_map(&tenant).await;
    no_pod_gets_above_the_donors_own(&pods).await;
    the_agent_gives_no_more_than_a_tenants_rights(cluster).await;
    a_tenant_stays_inside(tenant).await;
    let quota = Api::<ResourceQuota>::namespaced(cluster.admin(), "comity-lease-2").get("gpus").await.unwrap();
    let used = quota.status.unwrap().used.unwrap();
    assert_eq!(used["requests.nvidia.com/gpu"].0, "3");
    let default = Api::<ServiceAccount>::namespaced(cluster.admin(), "comity-lease-2").get("default").await.unwrap();
    assert_eq!(default.automount_service_account_token, Some(false));
    let policies =
        Api::<NetworkPolicy>::namespaced(cluster.admin(), "comity-lease-2").list(&ListParams::default()).await.unwrap();
    assert_eq!(policies.items.len(), 1);
    let spec = policies.items[0].spec.clone().unwrap();
    assert_eq!(spec.policy_types.unwrap(), ["Ingress", "Egress"]);
    assert_eq!(spec.egress.unwrap().len(), 3, "its own pods, DNS, and public addresses");
    assert!(donor.list().await.unwrap().contains(&LeaseId(2)));
}

/// Each container gets one unit of the lease's resource, which only gpu-1 has.
async fn pods_stay_on_the_leases_nodes(cluster: &Cluster, pods: &Api<Pod>) {
    const RESOURCE: &str = "lease.comity.dev/lease-2";
    let create = PostParams::default();
    let spec = pods.get("three").await.unwrap().spec.unwrap();
    assert_eq!(spec.node_name.as_deref(), Some("gpu-1"));
    assert_eq!(spec.containers[0].resources.as_ref().unwrap().requests.as_ref().unwrap()[RESOURCE].0, "1");

    for (name, amount, part) in [("none", 0, "minimum"), ("more", 2, "maximum")] {
        let (code, message) = refusal(pods.create(&create, &pod(name, RESOURCE, amount)).await);
        assert!(code == 403 && message.contains(part) && message.contains(RESOURCE), "{code} {message}");
    }
    for other in ["lease.comity.dev/lease-3", "gpus.lease.comity.dev/lease-3"] {
        let (code, message) = refusal(pods.create(&create, &pod("foreign", other, 1)).await);
        assert!((code == 403 || code == 422) && message.contains("no resource of another lease"), "{code} {message}");
    }
    let mut elsewhere = pod("elsewhere", "nvidia.com/gpu", 0);
    elsewhere.spec.as_mut().unwrap().node_selector =
        Some([("kubernetes.io/hostname".to_owned(), "gpu-2".to_owned())].into());
    pods.create(&create, &elsewhere).await.unwrap();
    eventually("the tenant is told why the pod waits", || async {
        let status = pods.get("elsewhere").await.unwrap().status.unwrap();
        let conditions = status.conditions.unwrap_or_default();
        conditions.iter().filter_map(|condition| condition.message.as_ref()).any(|message| message.contains(RESOURCE))
    })
    .await;
    assert_eq!(pods.get("elsewhere").await.unwrap().spec.unwrap().node_name, None);
    pods.delete("elsewhere", &DeleteParams::default()).await.unwrap();

    // The right to set a lease's resource gives no right to change anything else of a node's status.
    let own = Api::<Node>::all(cluster.agent.client());
    let refused = async |patch: serde_json::Value| {
        own.patch_status("gpu-2", &PatchParams::default(), &Patch::Merge(&patch)).await.is_err()
    };
    for patch in [
        json!({ "status": { "capacity": { "nvidia.com/gpu": "9" } } }),
        json!({ "status": { "allocatable": { "nvidia.com/gpu": null } } }),
        json!({ "status": { "conditions": [] } }),
        json!({ "metadata": { "labels": { "nvidia.com/gpu.product": "another" } } }),
        json!({ "metadata": { "annotations": { "a": "b" } } }),
    ] {
        assert!(refused(patch.clone()).await, "{patch}");
    }
    assert!(!refused(json!({ "status": { "capacity": { "lease.comity.dev/lease-99": "1" } } })).await);
}

/// The variable by which NVIDIA's runtime hands out GPUs.
const VISIBLE: &str = "NVIDIA_VISIBLE_DEVICES";

/// A pod that asks for every GPU of its node by a field of its container.
fn greedy(field: &str, value: serde_json::Value) -> Pod {
    let mut changed = serde_json::to_value(pod("greedy", "nvidia.com/gpu", 0)).unwrap();
    changed["spec"]["containers"][0][field] = value;
    changed["spec"]["volumes"] = json!([{ "name": "all", "emptyDir": {} }]);
    serde_json::from_value(changed).unwrap()
}

async fn is_refused(pods: &Api<Pod>, pod: &Pod, reason: &str) {
    let (code, message) = refusal(pods.create(&PostParams::default(), pod).await);
    assert!((code == 403 || code == 422) && message.contains(reason), "{code} {message}");
}

/// NVIDIA's runtime would hand out every GPU of the node. An image that asks for all is in `lease_pods.rs`, where the
/// webhook and the policy `comity-void-devices` are.
async fn visible_devices_by_envfrom_and_image(tenant: &Client) {
    let (pods, create) = (Api::<Pod>::default_namespaced(tenant.clone()), PostParams::default());
    let from_field = json!({ "fieldRef": { "fieldPath": "metadata.name" } });
    for variable in [json!({ "name": VISIBLE, "value": "all" }), json!({ "name": VISIBLE, "valueFrom": from_field })] {
        is_refused(&pods, &greedy("env", json!([variable])), "or set them to void").await;
    }
    let honest = greedy("env", json!([{ "name": VISIBLE, "value": "void" }]));
    pods.create(&create, &honest).await.unwrap();
    pods.delete("greedy", &DeleteParams::default().grace_period(0)).await.unwrap();
}

async fn visible_devices_by_a_prefix_in_env_from(pods: &Api<Pod>) {
    let source = json!([{ "prefix": "NVIDIA_", "configMapRef": { "name": "a" } }]);
    is_refused(pods, &greedy("envFrom", source), "a prefix in envFrom").await;
}

async fn visible_devices_by_a_mount(pods: &Api<Pod>) {
    let mount = json!([{ "name": "all", "mountPath": "/var/run/nvidia-container-devices/all" }]);
    is_refused(pods, &greedy("volumeMounts", mount), "a mount below nvidia-container-devices").await;
}

async fn visible_devices_by_an_annotation(pods: &Api<Pod>) {
    let mut annotated = pod("greedy", "nvidia.com/gpu", 0);
    annotated.metadata.annotations = Some([("cdi.k8s.io/all".to_owned(), "nvidia.com/gpu=all".to_owned())].into());
    is_refused(pods, &annotated, "not an annotation").await;
}

/// `envFrom` would set the variable from the key.
async fn visible_devices_by_a_key_of_a_config_map(tenant: &Client) {
    let create = PostParams::default();
    let map: ConfigMap =
        serde_json::from_value(json!({ "metadata": { "name": "greedy" }, "data": { VISIBLE: "all" } })).unwrap();
    let (_, message) = refusal(Api::<ConfigMap>::default_namespaced(tenant.clone()).create(&create, &map).await);
    assert!(message.contains("have no key NVIDIA_VISIBLE_DEVICES"), "{message}");
    let secret: Secret =
        serde_json::from_value(json!({ "metadata": { "name": "greedy" }, "stringData": { VISIBLE: "all" } })).unwrap();
    let (_, message) = refusal(Api::<Secret>::default_namespaced(tenant.clone()).create(&create, &secret).await);
    assert!(message.contains("have no key NVIDIA_VISIBLE_DEVICES"), "{message}");
}

/// Addresses of others (CVE-2020-8554), and ports of the donor.
async fn namespace_tenant_external_ips(tenant: &Client) {
    let create = PostParams::default();
    let refused = |refusal: (u16, String), part: &str| {
        let (code, message) = refusal;
        assert!((code == 403 || code == 422) && message.contains(part), "{part}: {code} {message}");
    };
    let services = Api::<Service>::default_namespaced(tenant.clone());
    for (fields, part) in [
        (json!({ "externalIPs": ["192.0.2.1"] }), "have no external addresses"),
        (json!({ "type": "NodePort" }), "open no ports of this cluster"),
        (json!({ "type": "LoadBalancer", "loadBalancerIP": "192.0.2.1" }), "open no ports of this cluster"),
    ] {
        let mut service = json!({
            "metadata": { "name": "outside" }, "spec": { "selector": { "a": "b" }, "ports": [{ "port": 80 }] },
        });
        service["spec"].as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
        refused(refusal(services.create(&create, &serde_json::from_value(service).unwrap()).await), part);
    }
    // Services within the lease work.
    let own = json!({ "metadata": { "name": "own" }, "spec": { "selector": { "a": "b" }, "ports": [{ "port": 80 }] } });
    services.create(&create, &serde_json::from_value(own).unwrap()).await.unwrap();
}

/// Its pods would push the donor's own away.
async fn tenant_takes_a_priority_class_of_the_donors(pods: &Api<Pod>) {
    let mut first = pod("first", "nvidia.com/gpu", 0);
    first.spec.as_mut().unwrap().priority_class_name = Some("donor-high".to_owned());
    is_refused(pods, &first, "no priority over the donor's own").await;
}

/// A volume that the donor made for its own work, by its name.
async fn tenant_claims_a_volume_of_the_donors(tenant: &Client) {
    let claim = json!({
        "metadata": { "name": "donors" },
        "spec": {
            "accessModes": ["ReadWriteOnce"], "resources": { "requests": { "storage": "1Gi" } },
            "storageClassName": "", "volumeName": "donor-data",
        },
    });
    let claims = Api::<PersistentVolumeClaim>::default_namespaced(tenant.clone());
    let claim = serde_json::from_value(claim).unwrap();
    let (code, message) = refusal(claims.create(&PostParams::default(), &claim).await);
    assert!((code == 403 || code == 422) && message.contains("claims of a lease get new volumes"), "{code} {message}");
}

/// Limits of the agent's own account, which somebody may have taken over.
async fn the_agent_gives_no_more_than_a_tenants_rights(cluster: &Cluster) {
    let create = PostParams::default();
    let namespaces = Api::<Namespace>::all(cluster.agent.client());
    for labels in [
        json!({ "comity.dev/lease": "lease-77", "pod-security.kubernetes.io/enforce": "privileged" }),
        json!({ "comity.dev/lease": "lease-2", "pod-security.kubernetes.io/enforce": "restricted" }),
        json!({ "pod-security.kubernetes.io/enforce": "restricted" }),
    ] {
        let unsafe_one = json!({ "metadata": { "name": "comity-lease-77", "labels": labels } });
        let (code, message) = refusal(namespaces.create(&create, &serde_json::from_value(unsafe_one).unwrap()).await);
        assert!((code == 403 || code == 422) && message.contains("Pod Security"), "{code} {message}");
    }
    let relabel = json!({ "metadata": { "labels": { "pod-security.kubernetes.io/enforce": "privileged" } } });
    let patched = namespaces.patch("comity-lease-2", &PatchParams::default(), &Patch::Merge(&relabel)).await;
    assert!(refusal(patched).1.contains("Pod Security"));
    let bindings = Api::<RoleBinding>::namespaced(cluster.agent.client(), "comity-lease-2");
    for subject in [
        json!({ "kind": "ServiceAccount", "name": "comity-agent", "namespace": "comity-system" }),
        json!({ "kind": "ServiceAccount", "name": "comity-tenant", "namespace": "comity-lease-3" }),
        json!({ "kind": "Group", "apiGroup": "rbac.authorization.k8s.io", "name": "system:authenticated" }),
    ] {
        let subjects = json!({ "subjects": [subject] });
        let patched = bindings.patch("comity-tenant", &PatchParams::default(), &Patch::Merge(&subjects)).await;
        assert!(refusal(patched).1.contains("comity-tenant"), "{subjects}");
    }
}

/// Limits that the admission policy adds to Pod Security and quota.
async fn no_pod_gets_above_the_donors_own(pods: &Api<Pod>) {
    for (name, change, part) in [
        ("finalizer", json!({ "metadata": { "finalizers": ["example.com/forever"] } }), "no finalizers"),
        ("priority", json!({ "spec": { "priorityClassName": "system-node-critical" } }), "no priority"),
        ("donors-priority", json!({ "spec": { "priorityClassName": "donor-high" } }), "no priority"),
        ("first-in-queue", json!({ "spec": { "priorityClassName": "donor-never" } }), "no priority"),
        (
            "job-finalizer",
            json!({ "metadata": { "finalizers": ["batch.kubernetes.io/job-tracking"] } }),
            "no finalizers",
        ),
        (
            "owner",
            json!({ "metadata": { "ownerReferences": [{ "apiVersion": "batch/v1", "kind": "Job", "name": "a", "uid": "b" }] } }),
            "the owners of",
        ),
        ("hami", json!({ "metadata": { "annotations": { "hami.io/vgpu-node": "gpu-2" } } }), "belong to HAMi"),
        ("cdi", json!({ "metadata": { "annotations": { "nvidia.cdi.k8s.io/x": "nvidia.com/gpu=all" } } }), "CDI"),
        ("toleration", json!({ "spec": { "tolerations": [{ "operator": "Exists" }] } }), "tolerate only"),
        ("node", json!({ "spec": { "nodeName": "cpu-1" } }), "the scheduler chooses"),
    ] {
        let mut wanted = serde_json::to_value(pod(name, "nvidia.com/gpu", 0)).unwrap();
        for (section, fields) in change.as_object().unwrap() {
            for (field, value) in fields.as_object().unwrap() {
                wanted[section][field] = value.clone();
            }
        }
        let wanted: Pod = serde_json::from_value(wanted).unwrap();
        let (code, message) = refusal(pods.create(&PostParams::default(), &wanted).await);
        assert!((code == 403 || code == 422) && message.contains(part), "{name}: {code} {message}");
    }
}

/// No access to other namespaces, and no way to more rights.
async fn a_tenant_stays_inside(tenant: Client) {
    let create = PostParams::default();
    let all = ListParams::default();
    for namespace in ["default", "kube-system", "comity-system", "research"] {
        assert_eq!(refusal(Api::<Secret>::namespaced(tenant.clone(), namespace).list(&all).await).0, 403);
        assert_eq!(refusal(Api::<Pod>::namespaced(tenant.clone(), namespace).list(&all).await).0, 403);
    }
    assert_eq!(refusal(Api::<Namespace>::all(tenant.clone()).list(&all).await).0, 403);
    assert_eq!(refusal(Api::<Node>::all(tenant.clone()).list(&all).await).0, 403);
    let binding = serde_json::from_value::<RoleBinding>(json!({
        "metadata": { "name": "more" },
        "roleRef": { "apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "cluster-admin" },
        "subjects": [{ "kind": "ServiceAccount", "name": "comity-tenant", "namespace": "comity-lease-2" }],
    }))
    .unwrap();
    assert_eq!(refusal(Api::default_namespaced(tenant.clone()).create(&create, &binding).await).0, 403);
    let accounts = Api::<ServiceAccount>::default_namespaced(tenant.clone());
    assert_eq!(refusal(accounts.create_token_request("comity-tenant", &create, &TokenRequest::default()).await).0, 403);
    let policies = Api::<NetworkPolicy>::default_namespaced(tenant.clone());
    assert_eq!(refusal(policies.delete("comity-lease", &DeleteParams::default()).await).0, 403);
    let quotas = Api::<ResourceQuota>::default_namespaced(tenant.clone());
    assert!(quotas.get("gpus").await.is_ok());
    assert_eq!(refusal(quotas.delete("gpus", &DeleteParams::default()).await).0, 403);
    let unowned = serde_json::from_value::<Job>(json!({
        "metadata": { "name": "unowned" },
        "spec": { "managedBy": "example.com/nobody", "suspend": true,
            "template": { "spec": pod("unowned", "nvidia.com/gpu", 0).spec } },
    }))
    .unwrap();
    let labels = json!({ "app": "kept" });
    let kept = serde_json::from_value::<Deployment>(json!({
        "metadata": { "name": "kept" },
        "spec": { "selector": { "matchLabels": labels }, "template": {
            "metadata": { "labels": labels, "finalizers": ["batch.kubernetes.io/job-tracking"] },
            "spec": { "containers": [{ "name": "work", "image": "example.invalid/work:1" }] },
        } },
    }))
    .unwrap();
    let (code, message) = refusal(Api::default_namespaced(tenant.clone()).create(&create, &kept).await);
    assert!((code == 403 || code == 422) && message.contains("pod templates of a lease"), "{code} {message}");
    let (code, message) = refusal(Api::default_namespaced(tenant.clone()).create(&create, &unowned).await);
    assert!((code == 403 || code == 422) && message.contains("leave spec.managedBy out"), "{code} {message}");
    // The intended uses work.
    let map =
        serde_json::from_value::<ConfigMap>(json!({ "metadata": { "name": "settings" }, "data": { "epochs": "3" } }))
            .unwrap();
    Api::default_namespaced(tenant).create(&create, &map).await.unwrap();
}

pub(crate) async fn after_removal_the_token_is_refused_and_the_namespace_gone(cluster: &Cluster) {
    let (donor, lease) = (cluster.donor(), lease("lease-2"));
    let tenant = cluster.tenant(&donor.credential(&lease).await.unwrap());
    let pods = Api::<Pod>::default_namespaced(tenant);
    pods.list(&ListParams::default()).await.unwrap();
    donor.remove(LeaseId(2)).await.unwrap();
    refused_at_once_and_soon_unknown(&pods).await;
    assert!(Api::<Namespace>::all(cluster.admin()).get_opt("comity-lease-2").await.unwrap().is_none());
    assert!(!donor.list().await.unwrap().contains(&LeaseId(2)));
    // A resource without a namespace is left of a removal that was interrupted.
    assert!(donor.list().await.unwrap().contains(&LeaseId(99)));
    donor.remove(LeaseId(99)).await.unwrap();
    let nodes = Api::<Node>::all(cluster.admin()).list(&ListParams::default()).await.unwrap();
    let capacities = nodes.items.iter().filter_map(|node| node.status.as_ref()?.capacity.as_ref());
    let names: Vec<&String> = capacities.flat_map(|capacity| capacity.keys()).collect();
    assert!(
        !names.iter().any(|name| ["lease.comity.dev/lease-2", "lease.comity.dev/lease-99"].contains(&name.as_str()))
    );
    donor.remove(LeaseId(2)).await.unwrap();
    let error = donor.credential(&lease).await.unwrap_err();
    assert!(matches!(error, DeliveryError::Temporary { .. }), "{error}");
}

/// For a Secret of the old kind the token controller makes a token that never expires. The tenant cannot make one; one
/// that is there ends with the lease too.
pub(crate) async fn a_tenant_cannot_outlive_its_lease_with_a_token_of_its_own(cluster: &Cluster) {
    let (donor, lease) = (cluster.donor(), lease("lease-3"));
    donor.prepare(&lease).await.unwrap();
    let mut credential = donor.credential(&lease).await.unwrap();
    let secrets = Api::<Secret>::default_namespaced(cluster.tenant(&credential));
    let wanted = serde_json::from_value::<Secret>(json!({
        "metadata": { "name": "mine", "annotations": { "kubernetes.io/service-account.name": "comity-tenant" } },
        "type": "kubernetes.io/service-account-token",
    }))
    .unwrap();
    let (code, message) = refusal(secrets.create(&PostParams::default(), &wanted).await);
    assert!((code == 403 || code == 422) && message.contains("no tokens of ServiceAccounts"), "{code} {message}");
    let namespace = secrets.namespace().unwrap();
    let of_admin = Api::<Secret>::namespaced(cluster.admin(), namespace);
    of_admin.create(&PostParams::default(), &wanted).await.unwrap();
    let token = async || secrets.get("mine").await.unwrap().data.and_then(|data| data.get("token").cloned());
    eventually("the token controller has filled the Secret", || async { token().await.is_some() }).await;
    credential.token = String::from_utf8(token().await.unwrap().0).unwrap().into();
    let pods = Api::<Pod>::default_namespaced(cluster.tenant(&credential));
    pods.list(&ListParams::default()).await.unwrap();
    donor.remove(LeaseId(3)).await.unwrap();
    refused_at_once_and_soon_unknown(&pods).await;
}

/// The API server caches a valid token for 10 s; the rights are gone by then.
async fn refused_at_once_and_soon_unknown(pods: &Api<Pod>) {
    let (code, message) = refusal(pods.list(&ListParams::default()).await);
    assert!(code == 401 || code == 403, "{code} {message}");
    eventually("the token is void", || async { refusal(pods.list(&ListParams::default()).await).0 == 401 }).await;
}

/// After an outage of the API server every call works again, and the known state stays in the meantime.
pub(crate) async fn watches_survive_an_outage_of_the_api_server(cluster: &Cluster) {
    let settings =
        InventorySettings { salt: NodeSalt::new([4; 32]), reserve: LocalReserve::default(), rdma: Vec::new() };
    let inventory = observe::kubernetes::observe(&cluster.agent, settings, observe::no_leases());
    let mut nodes = inventory.nodes();
    nodes.wait_for(Option::is_some).await.unwrap();
    let donor = cluster.donor();
    cluster.plane().kill(Component::ApiServer);
    let error = donor.prepare(&lease("lease-6")).await.unwrap_err();
    assert!(matches!(error, DeliveryError::Temporary { .. }), "{error}");
    assert!(nodes.borrow_and_update().as_ref().is_some_and(|nodes| nodes.len() == 2));
    cluster.plane().restart(Component::ApiServer).unwrap();
    cluster.plane().ready().await.unwrap();
    eventually("the lease can be prepared", || async { donor.prepare(&lease("lease-6")).await.is_ok() }).await;
    cluster.plane().kubectl(&["cordon", "gpu-1"]).await.unwrap();
    let cordoned =
        nodes.wait_for(|nodes| nodes.as_ref().is_some_and(|nodes| nodes.iter().any(|node| !node.schedulable)));
    assert!(tokio::time::timeout(PATIENCE, cordoned).await.is_ok(), "the watches did not come back");
    donor.remove(LeaseId(6)).await.unwrap();
}

pub(crate) async fn namespaces_of_others_are_left_alone(cluster: &Cluster) {
    let namespaces = Api::<Namespace>::all(cluster.admin());
    let donor = cluster.donor();
    for (id, labels) in [("lease-90", json!({})), ("lease-91", json!({ LEASE_LABEL: "lease-1" }))] {
        let name = format!("comity-{id}");
        let namespace =
            serde_json::from_value::<Namespace>(json!({ "metadata": { "name": name, "labels": labels } })).unwrap();
        namespaces.create(&PostParams::default(), &namespace).await.unwrap();
        let error = donor.prepare(&lease(id)).await.unwrap_err();
        assert!(matches!(error, DeliveryError::Permanent { code: "namespace-not-ours", .. }), "{error}");
        donor.remove(id.parse().unwrap()).await.unwrap();
        assert!(namespaces.get(&name).await.unwrap().metadata.deletion_timestamp.is_none());
        assert!(!donor.list().await.unwrap().contains(&id.parse().unwrap()));
    }
}
