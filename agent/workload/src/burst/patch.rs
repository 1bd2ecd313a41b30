//! JSON patches of pods. Each begins with tests, so that it fails on another pod or another state.

use json_patch::Patch;
use serde_json::{Value, json};

use super::facts::pod::PodFacts;
use super::{GATE, LEASE, LIQO_TAINT, REQUEST};

/// Binds a gated pod to the lease's nodes, tolerates their taints, and removes the gate.
pub(crate) fn pin(pod: &PodFacts, lease: &str, request: &str) -> Patch {
    let mut steps = vec![same_pod(pod)];
    steps.extend(annotate(pod, &[(LEASE, lease), (REQUEST, request)]));
    if pod.has.node_selector {
        steps.push(json!({ "op": "add", "path": format!("/spec/nodeSelector/{}", escaped(LEASE)), "value": lease }));
    } else {
        steps.push(json!({ "op": "add", "path": "/spec/nodeSelector", "value": { LEASE: lease } }));
    }
    steps.extend(tolerations(pod, lease));
    steps.extend(remove_gate(pod));
    patch(steps)
}

/// Lets a pending pod tolerate the lease's taints; Kubernetes allows no other change.
pub(crate) fn tolerate(pod: &PodFacts, lease: &str, request: &str) -> Patch {
    let mut steps = vec![same_pod(pod)];
    steps.extend(annotate(pod, &[(LEASE, lease), (REQUEST, request)]));
    steps.extend(tolerations(pod, lease));
    patch(steps)
}

/// Removes the gate.
pub(crate) fn ungate(pod: &PodFacts) -> Patch {
    let mut steps = vec![same_pod(pod)];
    steps.extend(remove_gate(pod));
    patch(steps)
}

/// Annotates the pod with its request.
pub(crate) fn assign(pod: &PodFacts, request: &str) -> Patch {
    let mut steps = vec![same_pod(pod)];
    steps.extend(annotate(pod, &[(REQUEST, request)]));
    patch(steps)
}

fn same_pod(pod: &PodFacts) -> Value {
    json!({ "op": "test", "path": "/metadata/uid", "value": pod.pod.uid })
}

fn annotate(pod: &PodFacts, marks: &[(&str, &str)]) -> Vec<Value> {
    if !pod.has.annotations {
        let all: serde_json::Map<String, Value> =
            marks.iter().map(|(key, value)| ((*key).to_owned(), Value::from(*value))).collect();
        return vec![json!({ "op": "add", "path": "/metadata/annotations", "value": all })];
    }
    let add = |(key, value): &(&str, &str)| json!({ "op": "add", "path": format!("/metadata/annotations/{}", escaped(key)), "value": value });
    marks.iter().map(add).collect()
}

fn tolerations(pod: &PodFacts, lease: &str) -> Vec<Value> {
    if pod.tolerates.contains(lease) {
        return Vec::new();
    }
    add_tolerations(pod.has.tolerations, lease)
}

/// Steps that add tolerations of a lease's taints to a pod that has others, or none yet.
pub(super) fn add_tolerations(has_others: bool, lease: &str) -> Vec<Value> {
    let wanted = [
        json!({ "key": LIQO_TAINT, "operator": "Exists", "effect": "NoExecute" }),
        json!({ "key": LEASE, "operator": "Equal", "value": lease, "effect": "NoSchedule" }),
    ];
    if has_others {
        return wanted
            .into_iter()
            .map(|one| json!({ "op": "add", "path": "/spec/tolerations/-", "value": one }))
            .collect();
    }
    vec![json!({ "op": "add", "path": "/spec/tolerations", "value": wanted })]
}

fn remove_gate(pod: &PodFacts) -> Vec<Value> {
    let Some(index) = pod.gates.iter().position(|gate| gate == GATE) else { return Vec::new() };
    let path = format!("/spec/schedulingGates/{index}");
    vec![
        json!({ "op": "test", "path": format!("{path}/name"), "value": GATE }),
        json!({ "op": "remove", "path": path }),
    ]
}

/// Escapes a key for a JSON pointer.
fn escaped(key: &str) -> String {
    key.replace('~', "~0").replace('/', "~1")
}

fn patch(steps: Vec<Value>) -> Patch {
    serde_json::from_value(Value::Array(steps)).expect("every step above is a step of a JSON patch")
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;
    use crate::burst::fixtures::{gated, pod};

    fn applied(mut object: Value, patch: &Patch) -> Value {
        json_patch::patch(&mut object, patch).unwrap();
        object
    }

    #[test]
    fn one_patch_pins_a_gated_pod_whatever_it_has() {
        let mut facts = gated("p").facts;
        let bare = json!({ "metadata": { "uid": "p" }, "spec": { "schedulingGates": [{ "name": GATE }] } });
        let pinned = applied(bare, &pin(&facts, "lease-1", "req-1"));
        assert_eq!(pinned["spec"]["nodeSelector"], json!({ LEASE: "lease-1" }));
        assert_eq!(pinned["spec"]["schedulingGates"], json!([]));
        assert_eq!(pinned["spec"]["tolerations"].as_array().unwrap().len(), 2);
        assert_eq!(pinned["metadata"]["annotations"], json!({ LEASE: "lease-1", REQUEST: "req-1" }));

        facts.gates.insert(0, "other".to_owned());
        facts.has = crate::burst::facts::pod::Parts { node_selector: true, tolerations: true, annotations: true };
        let full = json!({
            "metadata": { "uid": "p", "annotations": { "a": "b" } },
            "spec": {
                "schedulingGates": [{ "name": "other" }, { "name": GATE }],
                "nodeSelector": { "kubernetes.io/os": "linux" }, "tolerations": [{ "operator": "Exists" }],
            },
        });
        let pinned = applied(full, &pin(&facts, "lease-1", "req-1"));
        assert_eq!(pinned["spec"]["schedulingGates"], json!([{ "name": "other" }]));
        assert_eq!(pinned["spec"]["nodeSelector"].as_object().unwrap().len(), 2);
        assert_eq!(pinned["spec"]["tolerations"].as_array().unwrap().len(), 3);
        assert_eq!(pinned["metadata"]["annotations"]["a"], "b");
    }

    #[test]
    fn another_pod_of_the_name_is_left_alone() {
        let mut object = json!({ "metadata": { "uid": "q" }, "spec": { "schedulingGates": [{ "name": GATE }] } });
        let before = object.clone();
        assert!(json_patch::patch(&mut object, &ungate(&gated("p").facts)).is_err());
        assert_eq!(object, before);
    }

    #[test]
    fn adds_tolerations_once() {
        let mut facts = pod("p").facts;
        let bare = json!({ "metadata": { "uid": "p" }, "spec": {} });
        let tolerating = applied(bare.clone(), &tolerate(&facts, "lease-1", "req-1"));
        assert_eq!(tolerating["spec"]["tolerations"][0]["key"], LIQO_TAINT);
        assert!(tolerating["spec"].get("nodeSelector").is_none());
        facts.tolerates.insert("lease-1".to_owned());
        assert!(applied(bare, &tolerate(&facts, "lease-1", "req-1"))["spec"].get("tolerations").is_none());
    }
}
