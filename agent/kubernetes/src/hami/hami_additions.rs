//! Fields that a pod needs in a namespace with HAMi's shares, where its author left them out.

use k8s_openapi::api::core::v1::{Container, Pod};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;

use super::{CORES_RESOURCE, HamiShare, MEMORY_RESOURCE, USE_UUIDS_ANNOTATION};
use crate::gpu_resource::NVIDIA_GPU;
use crate::void_devices::void_devices;

/// Adds the share's limits to containers that request a GPU, no GPU to the others, and the devices to the pod. It changes
/// nothing that the author wrote: the admission policy `comity-hami` refuses the rest.
pub fn hami_additions(share: &HamiShare, pod: &mut Pod) {
    let Some(spec) = pod.spec.as_mut() else { return };
    let mut wants_gpus = false;
    for container in spec.containers.iter_mut().chain(spec.init_containers.iter_mut().flatten()) {
        if requests_gpus(container) {
            wants_gpus = true;
            limit(share, container);
        } else {
            void_devices(container);
        }
    }
    if wants_gpus {
        let annotations = pod.metadata.annotations.get_or_insert_default();
        annotations.entry(USE_UUIDS_ANNOTATION.to_owned()).or_insert_with(|| share.device_list());
    }
}

fn requests_gpus(container: &Container) -> bool {
    let limits = container.resources.as_ref().and_then(|resources| resources.limits.as_ref());
    limits.and_then(|limits| limits.get(NVIDIA_GPU)).is_some_and(|Quantity(amount)| amount != "0")
}

fn limit(share: &HamiShare, container: &mut Container) {
    let resources = container.resources.get_or_insert_default();
    let wanted = [(MEMORY_RESOURCE, share.memory_mib.to_string()), (CORES_RESOURCE, share.cores.to_string())];
    for (name, amount) in wanted {
        let limits = resources.limits.get_or_insert_default();
        let limit = limits.entry(name.to_owned()).or_insert(Quantity(amount)).clone();
        // The API server sets requests from limits before it calls webhooks.
        resources.requests.get_or_insert_default().entry(name.to_owned()).or_insert(limit);
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn completed(pod: Value) -> Value {
        let share = HamiShare { memory_mib: 4_077, cores: 5, devices: ["GPU-a".to_owned()].into() };
        let mut pod: Pod = serde_json::from_value(pod).unwrap();
        hami_additions(&share, &mut pod);
        serde_json::to_value(pod).unwrap()
    }

    #[test]
    fn a_plain_gpu_pod_gets_limits_and_devices() {
        let pod = completed(json!({ "metadata": { "name": "p" }, "spec": { "containers": [
            { "name": "work", "resources": { "limits": { "nvidia.com/gpu": "1" } } }, { "name": "log" },
        ] } }));
        let limits = &pod["spec"]["containers"][0]["resources"]["limits"];
        assert_eq!((&limits["nvidia.com/gpumem"], &limits["nvidia.com/gpucores"]), (&json!("4077"), &json!("5")));
        assert_eq!(pod["spec"]["containers"][0]["resources"]["requests"]["nvidia.com/gpucores"], "5");
        assert_eq!(pod["metadata"]["annotations"][USE_UUIDS_ANNOTATION], "GPU-a");
        assert_eq!(pod["spec"]["containers"][1]["env"][0]["value"], "void");
        assert!(pod["spec"]["containers"][1]["resources"].is_null() && pod["spec"]["containers"][0]["env"].is_null());
    }

    #[test]
    fn the_authors_own_fields_stay() {
        let pod = completed(json!({
            "metadata": { "name": "p", "annotations": { USE_UUIDS_ANNOTATION: "GPU-z" } },
            "spec": {
                "containers": [{ "name": "work", "resources": {
                    "limits": { "nvidia.com/gpu": "1", "nvidia.com/gpumem": "9" } } }],
                "initContainers": [{ "name": "i", "env": [{ "name": "NVIDIA_VISIBLE_DEVICES", "value": "all" }] }],
            },
        }));
        assert_eq!(pod["metadata"]["annotations"][USE_UUIDS_ANNOTATION], "GPU-z");
        assert_eq!(pod["spec"]["containers"][0]["resources"]["limits"]["nvidia.com/gpumem"], "9");
        assert_eq!(pod["spec"]["initContainers"][0]["env"].as_array().unwrap().len(), 1);
        let none = completed(json!({ "metadata": { "name": "p" }, "spec": { "containers": [{ "name": "c" }] } }));
        assert!(none["metadata"]["annotations"].is_null());
    }
}
