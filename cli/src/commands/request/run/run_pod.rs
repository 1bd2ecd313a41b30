//! The pod of a run. Pure.

use k8s_openapi::api::core::v1::Pod;
use serde_json::{Value, json};

use super::scripts::{CONTROL, RUN_COMMAND, WAIT_FOR_END, WORK};
use crate::failure::Failure;
use crate::views::Lease;

/// Name of the pod and of its container.
pub(super) const POD: &str = "run";
/// Ending of the name by which quotas count devices of DRA drivers (kubernetes/api, core/v1, ResourceClaimsPerClass).
const CLAIMED_DEVICES: &str = ".deviceclass.resource.k8s.io/devices";
/// Seconds between TERM and KILL. With the lease's term it is less than a minute, after which nothing is left of a run
/// whose client died.
const GRACE_S: u32 = 15;

/// What runs.
pub(super) struct Work<'a> {
    pub(super) image: &'a str,
    pub(super) command: &'a [String],
    pub(super) is_interactive: bool,
    /// Names and values.
    pub(super) env: &'a [(String, String)],
    pub(super) user: u32,
}

/// The pod, which uses everything that the lease has.
///
/// # Errors
/// [`Failure`] if the lease is not on one node.
pub(super) fn manifest(work: &Work<'_>, lease: &Lease) -> Result<Pod, Failure> {
    let placement = lease.placement.as_ref();
    let node = placement.and_then(|placement| match &placement.nodes[..] {
        [node] => Some(node),
        _ => None,
    });
    let (Some(placement), Some(node)) = (placement, node) else {
        return Err(Failure::refused("several-nodes", format!("{} is not on one node", lease.id))
            .remedy("a run is one container; use 'comity request submit' for work on several nodes"));
    };
    let mut resources = json!({});
    let mut claims = Vec::new();
    if placement.resource_name.ends_with(CLAIMED_DEVICES) {
        claims = (0..placement.resource_count).map(|index| format!("gpu-{index}")).collect();
        let names: Vec<Value> = claims.iter().map(|name| json!({ "name": name })).collect();
        resources["claims"] = Value::from(names);
    } else {
        resources["limits"][&placement.resource_name] = placement.resource_count.to_string().into();
    }
    for (name, amount) in [("cpu", format!("{}m", node.cpu_milli)), ("memory", format!("{}Mi", node.memory_mib))] {
        if !matches!(amount.as_str(), "0m" | "0Mi") {
            resources["limits"][name] = amount.clone().into();
            resources["requests"][name] = amount.into();
        }
    }
    let script = if work.is_interactive { WAIT_FOR_END } else { RUN_COMMAND };
    let words = work.command.iter().filter(|_| !work.is_interactive).map(String::as_str);
    let command: Vec<String> = ["/bin/sh", "-c", script, POD].into_iter().chain(words).map(unexpanded).collect();
    let mut env = vec![json!({ "name": "HOME", "value": "/tmp" })];
    env.extend(work.env.iter().map(|(name, value)| json!({ "name": name, "value": unexpanded(value) })));
    let pod = json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": { "name": POD },
        "spec": {
            "restartPolicy": "Never",
            "automountServiceAccountToken": false,
            "enableServiceLinks": false,
            "terminationGracePeriodSeconds": GRACE_S,
            // As Pod Security `restricted` requires it of leases.
            "securityContext": {
                "runAsNonRoot": true, "runAsUser": work.user, "runAsGroup": work.user,
                "fsGroup": work.user, "seccompProfile": { "type": "RuntimeDefault" },
            },
            "resourceClaims": claims.iter().map(|name| json!({ "name": name, "resourceClaimName": name })).collect::<Vec<_>>(),
            "containers": [{
                "name": POD, "image": work.image, "command": command, "env": env, "workingDir": WORK,
                "resources": resources,
                "securityContext": { "allowPrivilegeEscalation": false, "capabilities": { "drop": ["ALL"] } },
                "volumeMounts": [{ "name": "work", "mountPath": WORK }, { "name": "control", "mountPath": CONTROL }],
            }],
            "volumes": [{ "name": "work", "emptyDir": {} }, { "name": "control", "emptyDir": {} }],
        },
    });
    let pod = if claims.is_empty() { without_claims(pod) } else { pod };
    serde_json::from_value(pod).map_err(|error| Failure::refused("bad-pod", format!("the pod cannot be made: {error}")))
}

/// Text in which Kubernetes replaces nothing: `$(NAME)` and `$$` mean something there.
fn unexpanded(text: &str) -> String {
    text.replace('$', "$$")
}

fn without_claims(mut pod: Value) -> Value {
    if let Some(spec) = pod["spec"].as_object_mut() {
        spec.remove("resourceClaims");
    }
    pod
}

#[cfg(test)]
mod tests {
    use comity_proto::v1;

    use super::*;

    fn lease(resource: &str, nodes: u32) -> Lease {
        let node = |index: u32| v1::NodePlacement {
            node: format!("n{index}"),
            cpu_milli: 2_000,
            memory_mib: 4_096,
            ..v1::NodePlacement::default()
        };
        let placement = v1::Placement {
            donor: "centre".to_owned(),
            nodes: (0..nodes).map(node).collect(),
            resource_name: resource.to_owned(),
            resource_count: 2,
            ..v1::Placement::default()
        };
        Lease::from(v1::Lease { id: "lease-7".to_owned(), placement: Some(placement), ..v1::Lease::default() })
    }

    fn made(resource: &str, is_interactive: bool) -> Value {
        let command = ["python", "train.py", "$(HOME)"].map(str::to_owned);
        let env = [("EPOCHS".to_owned(), "3".to_owned())];
        let work = Work { image: "lab/torch:2", command: &command, is_interactive, env: &env, user: 1_000 };
        serde_json::to_value(manifest(&work, &lease(resource, 1)).expect("made")).expect("JSON")
    }

    #[test]
    fn the_pod_uses_the_whole_lease_and_passes_pod_security() {
        let pod = made("nvidia.com/gpu", false);
        let container = &pod["spec"]["containers"][0];
        assert_eq!(
            container["resources"]["limits"],
            json!({ "nvidia.com/gpu": "2", "cpu": "2000m", "memory": "4096Mi" })
        );
        let command: Vec<&str> =
            container["command"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
        assert_eq!(command[3..], [POD, "python", "train.py", "$$(HOME)"]);
        assert_eq!(pod["spec"]["securityContext"]["runAsNonRoot"], true);
        assert_eq!(container["env"][1], json!({ "name": "EPOCHS", "value": "3" }));
        assert_eq!(pod["spec"]["resourceClaims"], Value::Null);
        let waits = made("nvidia.com/gpu", true);
        assert_eq!(
            waits["spec"]["containers"][0]["command"].as_array().map(Vec::len),
            Some(4),
            "the command runs beside it"
        );
    }

    #[test]
    fn claimed_devices_are_named() {
        let pod = made("gpu.nvidia.com.deviceclass.resource.k8s.io/devices", false);
        assert_eq!(pod["spec"]["resourceClaims"][1], json!({ "name": "gpu-1", "resourceClaimName": "gpu-1" }));
        let resources = &pod["spec"]["containers"][0]["resources"];
        assert_eq!(resources["claims"], json!([{ "name": "gpu-0" }, { "name": "gpu-1" }]));
        assert_eq!(resources["limits"], json!({ "cpu": "2000m", "memory": "4096Mi" }));
    }

    #[test]
    fn a_lease_on_several_nodes_is_refused() {
        let work = Work { image: "i", command: &[], is_interactive: false, env: &[], user: 1_000 };
        let failure = manifest(&work, &lease("nvidia.com/gpu", 2)).expect_err("two nodes");
        assert_eq!(failure.code, "several-nodes");
    }
}
