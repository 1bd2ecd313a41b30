//! The variable by which NVIDIA's container runtime hands out GPUs, also to containers that request none.

use k8s_openapi::api::core::v1::{Container, EnvVar};

use crate::gpu_resource::counts_nvidia_gpus;
use crate::pod_request::amounts;

const VISIBLE_DEVICES: &str = "NVIDIA_VISIBLE_DEVICES";

/// Sets the variable to `void` unless the container requests devices of NVIDIA's device plugin, which sets it, or has a
/// value of its own, which policies judge. An image may set it to `all`.
///
/// A container with claims of a DRA driver gets it, too: its devices come by CDI.
pub fn void_devices(container: &mut Container) {
    let limits = container.resources.as_ref().and_then(|resources| resources.limits.as_ref());
    let limits = limits.map(amounts).unwrap_or_default();
    if limits.iter().any(|(name, amount)| counts_nvidia_gpus(name) && *amount > 0) {
        return;
    }
    let env = container.env.get_or_insert_default();
    if !env.iter().any(|variable| variable.name == VISIBLE_DEVICES) {
        env.push(EnvVar { name: VISIBLE_DEVICES.to_owned(), value: Some("void".to_owned()), value_from: None });
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn env(container: Value) -> Value {
        let mut container: Container = serde_json::from_value(container).unwrap();
        void_devices(&mut container);
        serde_json::to_value(container).unwrap()["env"].clone()
    }

    #[test]
    fn only_containers_without_devices_get_the_variable() {
        let void = json!([{ "name": VISIBLE_DEVICES, "value": "void" }]);
        let limited = |limits: Value| json!({ "name": "a", "resources": { "limits": limits } });
        let others = json!({ "nvidia.com/gpu": "0", "nvidia.com/ib_vf": "1", "amd.com/gpu": "1", "cpu": "1" });
        for none in [json!({ "name": "a" }), limited(others)] {
            assert_eq!(env(none), void);
        }
        assert_eq!(env(json!({ "name": "a", "resources": { "claims": [{ "name": "gpu-0" }] } })), void);
        for resource in ["nvidia.com/gpu", "nvidia.com/gpu.shared", "nvidia.com/mig-1g.10gb"] {
            assert!(env(limited(json!({ resource: "1" }))).is_null(), "{resource}");
        }
        let stated = json!([{ "name": VISIBLE_DEVICES, "value": "all" }]);
        assert_eq!(env(json!({ "name": "a", "env": stated })), stated, "the policy judges it");
    }
}
