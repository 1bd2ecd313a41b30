//! The fields that a pod of a lease needs. Pure.

use std::collections::BTreeMap;

use comity_agent_kubernetes::dynamic_resources::GpuClass;
use comity_agent_kubernetes::gpu_resource::{LEASE_GPUS_PREFIX, LEASE_RESOURCE_PREFIX, counts_gpus};
use comity_agent_kubernetes::hami::{HamiShare, hami_additions};
use comity_agent_kubernetes::pod_request::amounts;
use comity_agent_kubernetes::void_devices::void_devices;
use comity_agent_liqo::REMOTE_CLUSTER_LABEL;
use comity_agent_model::guest_labels::{ALWAYS_PULL_LABEL, RUNTIME_CLASS_LABEL, VOID_DEVICES_LABEL};
use comity_agent_model::lease::lease_id::{GPU_RESOURCE_ANNOTATION, LEASE_NODES_LABEL};
use comity_types::LeaseId;
use k8s_openapi::api::core::v1::{Container, Pod, PodResourceClaim, PodSpec, ResourceClaim};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;

/// What the namespace of a lease, or of a guest, says about its pods.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct LeaseTerms {
    /// The resource that counts the lease's GPUs on each of its nodes, if it has several.
    counted_by: Option<String>,
    /// Whether pods get the lease's GPUs by claims.
    pub(super) has_claims: bool,
    /// Limits of a share, if HAMi enforces them.
    hami: Option<HamiShare>,
    runtime_class: Option<String>,
    /// Whether containers that request no GPU get none from an image that asks for all.
    void_devices: bool,
    /// Whether images are pulled even if the node has them.
    always_pull: bool,
}

impl LeaseTerms {
    /// Reads labels and annotations of a lease's namespace, which only its owner can write.
    pub(super) fn of_lease(
        lease: LeaseId,
        labels: &BTreeMap<String, String>,
        annotations: &BTreeMap<String, String>,
    ) -> Self {
        let has_several = labels.get(LEASE_NODES_LABEL).is_some_and(|nodes| nodes == "several");
        let resource = annotations.get(GPU_RESOURCE_ANNOTATION);
        Self {
            counted_by: has_several.then(|| format!("{LEASE_GPUS_PREFIX}{lease}")),
            has_claims: resource.is_some_and(|resource| GpuClass::of_quota_name(resource).is_some()),
            hami: HamiShare::of_namespace(annotations),
            ..Self::of_guests(labels)
        }
    }

    /// Terms of a pod of a virtual node. If its lease has several nodes, it selects them by the lease's label.
    pub(super) fn of_guest(pod: &Pod, labels: &BTreeMap<String, String>) -> Self {
        let is_remote = labels.contains_key(REMOTE_CLUSTER_LABEL);
        let lease = selected_lease(pod).filter(|_| is_remote);
        Self { counted_by: lease.map(|lease| format!("{LEASE_GPUS_PREFIX}{lease}")), ..Self::of_guests(labels) }
    }

    /// Terms of all guests' pods.
    fn of_guests(labels: &BTreeMap<String, String>) -> Self {
        let is_on = |label: &str| labels.get(label).is_some_and(|value| value == "true");
        Self {
            runtime_class: labels.get(RUNTIME_CLASS_LABEL).cloned(),
            void_devices: is_on(VOID_DEVICES_LABEL),
            always_pull: is_on(ALWAYS_PULL_LABEL),
            ..Self::default()
        }
    }
}

/// The lease whose label the pod selects; a policy refuses pods that select several.
fn selected_lease(pod: &Pod) -> Option<LeaseId> {
    let selector = pod.spec.as_ref()?.node_selector.as_ref()?;
    selector.keys().find_map(|key| key.strip_prefix(LEASE_RESOURCE_PREFIX)?.parse().ok())
}

/// Adds what the pod leaves out.
pub(super) fn complete(pod: &mut Pod, terms: &LeaseTerms) {
    if let Some(share) = &terms.hami {
        hami_additions(share, pod);
    }
    let Some(spec) = pod.spec.as_mut() else { return };
    if let Some(resource) = &terms.counted_by {
        containers(spec).for_each(|container| count(container, resource));
    }
    if terms.void_devices {
        containers(spec).for_each(void_devices);
    }
    if terms.always_pull {
        // The API server has filled in a policy where the pod's author left it out.
        containers(spec).for_each(|container| container.image_pull_policy = Some("Always".to_owned()));
    }
    if spec.runtime_class_name.is_none() {
        spec.runtime_class_name.clone_from(&terms.runtime_class);
    }
}

/// GPUs that the pod's containers request by number. Init containers are left out: they run before the others.
pub(super) fn requested_gpus(pod: &Pod) -> usize {
    let spec = pod.spec.iter().flat_map(|spec| &spec.containers);
    spec.fold(0, |sum, container| sum.saturating_add(gpus_of(container)))
}

/// Replaces the numbers of GPUs by these claims, in the order of the containers.
pub(super) fn claim(pod: &mut Pod, names: &[String]) {
    let Some(spec) = pod.spec.as_mut() else { return };
    let mut left = names;
    for container in &mut spec.containers {
        let (own, others) = left.split_at(gpus_of(container).min(left.len()));
        left = others;
        if own.is_empty() {
            continue;
        }
        let resources = container.resources.get_or_insert_default();
        for list in [&mut resources.limits, &mut resources.requests].into_iter().flatten() {
            list.retain(|name, _| !counts_gpus(name));
        }
        let claims = own.iter().map(|name| ResourceClaim { name: name.clone(), request: None });
        resources.claims.get_or_insert_default().extend(claims);
    }
    let claims = names.iter().map(|name| PodResourceClaim {
        name: name.clone(),
        resource_claim_name: Some(name.clone()),
        resource_claim_template_name: None,
    });
    spec.resource_claims.get_or_insert_default().extend(claims);
}

fn containers(spec: &mut PodSpec) -> impl Iterator<Item = &mut Container> {
    spec.containers.iter_mut().chain(spec.init_containers.iter_mut().flatten())
}

/// Requests as many units of `resource` as GPUs, unless the container states an amount.
fn count(container: &mut Container, resource: &str) {
    let gpus = gpus_of(container);
    let resources = container.resources.get_or_insert_default();
    let is_stated =
        [&resources.limits, &resources.requests].into_iter().flatten().any(|list| list.contains_key(resource));
    if gpus > 0 && !is_stated {
        let amount = Quantity(gpus.to_string());
        resources.limits.get_or_insert_default().insert(resource.to_owned(), amount.clone());
        resources.requests.get_or_insert_default().insert(resource.to_owned(), amount);
    }
}

fn gpus_of(container: &Container) -> usize {
    let limits = container.resources.as_ref().and_then(|resources| resources.limits.as_ref());
    let gpus = limits.map(amounts).unwrap_or_default();
    let gpus =
        gpus.iter().filter(|(name, _)| counts_gpus(name)).fold(0, |sum: u64, (_, gpus)| sum.saturating_add(*gpus));
    usize::try_from(gpus).unwrap_or(usize::MAX)
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn terms(labels: &[(&str, &str)], annotations: &[(&str, &str)]) -> LeaseTerms {
        let map = |pairs: &[(&str, &str)]| pairs.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect();
        LeaseTerms::of_lease(LeaseId(7), &map(labels), &map(annotations))
    }

    fn pod(spec: Value) -> Pod {
        serde_json::from_value(json!({ "metadata": {}, "spec": spec })).unwrap()
    }

    fn completed(terms: &LeaseTerms, spec: Value) -> Value {
        let mut pod = pod(spec);
        complete(&mut pod, terms);
        serde_json::to_value(pod.spec).unwrap()
    }

    fn container(limits: Value) -> Value {
        json!({ "name": "c", "resources": { "limits": limits } })
    }

    #[test]
    fn each_container_requests_as_many_units_as_gpus() {
        let several = terms(&[(LEASE_NODES_LABEL, "several")], &[(GPU_RESOURCE_ANNOTATION, "nvidia.com/gpu")]);
        let spec = json!({
            "containers": [container(json!({ "nvidia.com/gpu": "2" })), container(json!({ "cpu": "1" })), { "name": "d" }],
            "initContainers": [container(json!({ "nvidia.com/mig-1g.10gb": "3" }))],
        });
        let spec = completed(&several, spec);
        let limits = |list: &str, index: usize| spec[list][index]["resources"]["limits"].clone();
        assert_eq!(limits("containers", 0), json!({ "nvidia.com/gpu": "2", "gpus.lease.comity.dev/lease-7": "2" }));
        assert_eq!(spec["containers"][0]["resources"]["requests"]["gpus.lease.comity.dev/lease-7"], "2");
        assert_eq!(limits("initContainers", 0)["gpus.lease.comity.dev/lease-7"], "3");
        assert_eq!(limits("containers", 1), json!({ "cpu": "1" }));
        let stated = json!({ "nvidia.com/gpu": "2", "gpus.lease.comity.dev/lease-7": "1" });
        let spec = completed(&several, json!({ "containers": [container(stated.clone())] }));
        assert_eq!(spec["containers"][0]["resources"]["limits"], stated, "the policy judges it");
        let spec = completed(&terms(&[], &[]), json!({ "containers": [container(json!({ "nvidia.com/gpu": "2" }))] }));
        assert_eq!(spec["containers"][0]["resources"]["limits"], json!({ "nvidia.com/gpu": "2" }));
    }

    #[test]
    fn pods_of_a_virtual_node_on_several_nodes_are_counted_by_the_lease_that_they_select() {
        let remote = BTreeMap::from([(REMOTE_CLUSTER_LABEL.to_owned(), "campus".to_owned())]);
        let counted = |selector: &str, labels: &BTreeMap<String, String>| {
            let spec = json!({ "containers": [], "nodeSelector": { selector: "true" } });
            LeaseTerms::of_guest(&pod(spec), labels).counted_by
        };
        let own = "lease.comity.dev/lease-9";
        assert_eq!(counted(own, &remote).as_deref(), Some("gpus.lease.comity.dev/lease-9"));
        assert_eq!(counted("kubernetes.io/hostname", &remote), None);
        assert_eq!(counted(own, &BTreeMap::new()), None, "the donor's own pods");
    }

    #[test]
    fn guests_get_the_runtime_class() {
        let guests = terms(&[(RUNTIME_CLASS_LABEL, "gvisor")], &[]);
        assert_eq!(completed(&guests, json!({ "containers": [] }))["runtimeClassName"], "gvisor");
        let named = json!({ "containers": [], "runtimeClassName": "runc" });
        assert_eq!(completed(&guests, named)["runtimeClassName"], "runc", "the policy judges it");
    }

    #[test]
    fn containers_without_gpus_get_none() {
        let spec = json!({ "containers": [container(json!({ "nvidia.com/gpu": "1" })), { "name": "d" }],
            "initContainers": [{ "name": "i" }] });
        let void = json!([{ "name": "NVIDIA_VISIBLE_DEVICES", "value": "void" }]);
        let guests = completed(&terms(&[(VOID_DEVICES_LABEL, "true")], &[]), spec.clone());
        assert!(guests["containers"][0]["env"].is_null());
        assert_eq!((&guests["containers"][1]["env"], &guests["initContainers"][0]["env"]), (&void, &void));
        let others = completed(&terms(&[], &[]), spec);
        assert!(others["containers"][1]["env"].is_null());
    }

    #[test]
    fn images_that_a_node_keeps_are_pulled_again() {
        let spec = json!({
            "containers": [{ "name": "a", "imagePullPolicy": "IfNotPresent" }, { "name": "b", "imagePullPolicy": "Never" }],
            "initContainers": [{ "name": "c" }],
        });
        let pulled = completed(&terms(&[(ALWAYS_PULL_LABEL, "true")], &[]), spec.clone());
        for container in
            pulled["containers"].as_array().into_iter().chain(pulled["initContainers"].as_array()).flatten()
        {
            assert_eq!(container["imagePullPolicy"], "Always", "{container}");
        }
        let kept = completed(&terms(&[(ALWAYS_PULL_LABEL, "false")], &[]), spec);
        assert_eq!(kept["containers"][1]["imagePullPolicy"], "Never");
    }

    #[test]
    fn shares_of_hami_get_their_limits() {
        let share = [
            ("comity.dev/hami-gpumem", "4077"),
            ("comity.dev/hami-gpucores", "5"),
            ("comity.dev/hami-devices", "GPU-a"),
        ];
        let spec =
            completed(&terms(&[], &share), json!({ "containers": [container(json!({ "nvidia.com/gpu": "1" }))] }));
        assert_eq!(spec["containers"][0]["resources"]["limits"]["nvidia.com/gpumem"], "4077");
    }

    #[test]
    fn numbers_of_gpus_become_claims() {
        let by_claims = terms(&[], &[(GPU_RESOURCE_ANNOTATION, "gpu.nvidia.com.deviceclass.resource.k8s.io/devices")]);
        assert!(by_claims.has_claims && !terms(&[], &[(GPU_RESOURCE_ANNOTATION, "nvidia.com/gpu")]).has_claims);
        let mut pod = pod(json!({ "containers": [
            container(json!({ "nvidia.com/gpu": "2", "cpu": "1" })), { "name": "log" }, container(json!({ "nvidia.com/gpu": "1" })),
        ] }));
        assert_eq!(requested_gpus(&pod), 3);
        claim(&mut pod, &["gpu-0", "gpu-3", "gpu-4"].map(str::to_owned));
        let spec = serde_json::to_value(pod.spec).unwrap();
        let resources = |index: usize| spec["containers"][index]["resources"].clone();
        assert_eq!(
            resources(0),
            json!({ "limits": { "cpu": "1" }, "claims": [{ "name": "gpu-0" }, { "name": "gpu-3" }] })
        );
        assert_eq!(resources(2), json!({ "limits": {}, "claims": [{ "name": "gpu-4" }] }));
        assert!(resources(1).is_null());
        assert_eq!(spec["resourceClaims"][1], json!({ "name": "gpu-3", "resourceClaimName": "gpu-3" }));
    }
}
