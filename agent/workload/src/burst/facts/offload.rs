//! Obstacles to running a pod on another cluster.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Pod, PodSpec, Volume};

/// A node selector that every virtual node satisfies.
const PORTABLE_SELECTOR: (&str, &str) = ("kubernetes.io/os", "linux");

/// The first reason why the pod cannot burst, with the remedy.
pub(crate) fn obstacle(pod: &Pod) -> Option<String> {
    let spec = pod.spec.as_ref()?;
    if let Some(problem) = [&pod.metadata.labels, &pod.metadata.annotations].into_iter().find_map(unclear) {
        return Some(problem);
    }
    if spec.host_network == Some(true) || spec.host_pid == Some(true) || spec.host_ipc == Some(true) {
        return Some("it uses its host's network, processes or IPC".to_owned());
    }
    if let Some(name) = privileged(spec) {
        return Some(format!("container {name} is privileged or takes a port of its host"));
    }
    if let Some(reason) = spec.volumes.iter().flatten().find_map(local_volume) {
        return Some(reason);
    }
    if spec.resource_claims.as_ref().is_some_and(|claims| !claims.is_empty()) {
        return Some(
            "it has resource claims, which do not travel; ask for nvidia.com/gpu, or use delivery namespace".to_owned(),
        );
    }
    if pod.metadata.owner_references.iter().flatten().any(|owner| owner.kind == "DaemonSet") {
        return Some("it is a DaemonSet's pod".to_owned());
    }
    node_choice(spec)
}

/// An invalid value of the opt-out label or annotation.
fn unclear(map: &Option<BTreeMap<String, String>>) -> Option<String> {
    let said =
        map.as_ref()?.get(crate::burst::OFFLOAD_LABEL).filter(|text| !matches!(text.as_str(), "true" | "false"))?;
    Some(format!("its {} is {said:?}; write \"true\", or \"false\" to keep it here", crate::burst::OFFLOAD_LABEL))
}

fn privileged(spec: &PodSpec) -> Option<&str> {
    let containers = spec.containers.iter().chain(spec.init_containers.iter().flatten());
    let mut bad = containers.filter(|container| {
        container.security_context.as_ref().is_some_and(|context| context.privileged == Some(true))
            || container.ports.iter().flatten().any(|port| port.host_port.is_some_and(|port| port > 0))
    });
    bad.next().map(|container| container.name.as_str())
}

fn local_volume(volume: &Volume) -> Option<String> {
    let name = &volume.name;
    if volume.host_path.is_some() {
        return Some(format!("volume {name} is a path of its host"));
    }
    if let Some(claim) = &volume.persistent_volume_claim {
        return Some(format!("volume {name} is the claim {}, whose storage is this cluster's", claim.claim_name));
    }
    if volume.ephemeral.is_some() || volume.csi.is_some() {
        return Some(format!("volume {name} is storage of this cluster"));
    }
    None
}

fn node_choice(spec: &PodSpec) -> Option<String> {
    let chosen = spec.node_selector.iter().flatten().find(|(key, value)| {
        key.as_str() != crate::burst::LEASE && (key.as_str(), value.as_str()) != PORTABLE_SELECTOR
    });
    if let Some((key, value)) = chosen {
        return Some(format!("its node selector {key}={value} names nodes of this cluster"));
    }
    let affinity = spec.affinity.as_ref()?;
    let required = affinity
        .node_affinity
        .as_ref()
        .and_then(|affinity| affinity.required_during_scheduling_ignored_during_execution.as_ref())?;
    // Liqo writes the selector of its NamespaceOffloading, which is ours, into new pods; it leads to virtual nodes.
    let is_liqos = |key: &str| {
        matches!(key, "liqo.io/remote-cluster-id" | "liqo.io/type" | comity_agent_liqo::TARGET_NAMESPACE_LABEL)
    };
    let mut expressions = required.node_selector_terms.iter().flat_map(|term| term.match_expressions.iter().flatten());
    let foreign = expressions.find(|expression| !is_liqos(&expression.key))?;
    Some(format!("its node affinity on {} names nodes of this cluster", foreign.key))
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn obstacle_of(extra: Value) -> Option<String> {
        let mut spec = json!({ "containers": [{ "name": "c" }] });
        for (key, value) in extra.as_object().unwrap() {
            spec[key] = value.clone();
        }
        obstacle(&serde_json::from_value(json!({ "metadata": { "name": "p" }, "spec": spec })).unwrap())
    }

    #[test]
    fn an_ordinary_pod_may_go() {
        let ordinary = json!({
            "nodeSelector": { "kubernetes.io/os": "linux" },
            "volumes": [{ "name": "tmp", "emptyDir": {} }, { "name": "c", "configMap": { "name": "c" } }],
        });
        assert_eq!(obstacle_of(ordinary), None);
    }

    #[test]
    fn an_opt_out_other_than_true_or_false_is_named() {
        let said = |text: &str| {
            let pod = json!({
                "metadata": { "name": "p", "annotations": { "comity.dev/offload": text } },
                "spec": { "containers": [{ "name": "c" }] },
            });
            obstacle(&serde_json::from_value(pod).unwrap())
        };
        assert_eq!((said("true"), said("false")), (None, None));
        let problem = said("yes").unwrap();
        assert!(problem.contains("comity.dev/offload is \"yes\"") && problem.contains("\"false\""), "{problem}");
    }

    #[test]
    fn a_pod_of_a_namespace_that_is_offloaded_already_may_go() {
        let term = |key: &str| json!({ "matchExpressions": [{ "key": key, "operator": "Exists" }] });
        let terms = [term("liqo.io/remote-cluster-id"), term(comity_agent_liqo::TARGET_NAMESPACE_LABEL)];
        let required = json!({ "requiredDuringSchedulingIgnoredDuringExecution": { "nodeSelectorTerms": terms } });
        assert_eq!(obstacle_of(json!({ "affinity": { "nodeAffinity": required } })), None);
    }

    #[test]
    fn what_belongs_to_this_clusters_hosts_stays() {
        let term = json!({ "matchExpressions": [{ "key": "rack", "operator": "In", "values": ["1"] }] });
        let required = json!({ "requiredDuringSchedulingIgnoredDuringExecution": { "nodeSelectorTerms": [term] } });
        for (pod, expected) in [
            (json!({ "hostNetwork": true }), "host's network"),
            (json!({ "volumes": [{ "name": "data", "hostPath": { "path": "/" } }] }), "volume data is a path"),
            (json!({ "volumes": [{ "name": "d", "persistentVolumeClaim": { "claimName": "set" } }] }), "the claim set"),
            (json!({ "containers": [{ "name": "c", "securityContext": { "privileged": true } }] }), "container c"),
            (
                json!({ "containers": [{ "name": "c", "ports": [{ "containerPort": 1, "hostPort": 1 }] }] }),
                "container c",
            ),
            (json!({ "nodeSelector": { "disk": "fast" } }), "disk=fast"),
            (json!({ "affinity": { "nodeAffinity": required } }), "affinity on rack"),
            (json!({ "resourceClaims": [{ "name": "gpu" }] }), "resource claims"),
        ] {
            let found = obstacle_of(pod).unwrap();
            assert!(found.contains(expected), "{found}");
        }
    }
}
