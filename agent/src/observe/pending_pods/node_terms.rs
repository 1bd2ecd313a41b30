//! The nodes that a pod may use, by the Kubernetes scheduler's rules: node selector, required node affinity, taints.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{NodeSelectorRequirement, NodeSelectorTerm, Pod, Taint, Toleration};

use crate::observe::node_facts::NodeFacts;

/// The only field that terms may match.
const NAME_FIELD: &str = "metadata.name";

/// A pod's requirements on its node.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct NodeTerms {
    selector: BTreeMap<String, String>,
    /// The node must match one of these; `None`: any node does.
    affinity: Option<Vec<NodeSelectorTerm>>,
    tolerations: Vec<Toleration>,
}

impl NodeTerms {
    pub(crate) fn of(pod: &Pod) -> Self {
        let Some(spec) = &pod.spec else { return Self::default() };
        let affinity = spec.affinity.as_ref().and_then(|affinity| affinity.node_affinity.as_ref());
        let required = affinity.and_then(|node| node.required_during_scheduling_ignored_during_execution.as_ref());
        Self {
            selector: spec.node_selector.clone().unwrap_or_default(),
            affinity: required.map(|required| required.node_selector_terms.clone()),
            tolerations: spec.tolerations.clone().unwrap_or_default(),
        }
    }

    pub(crate) fn allow(&self, node: &NodeFacts) -> bool {
        node.ready
            && self.selector.iter().all(|(key, value)| node.label(key) == Some(value))
            && self.affinity.as_ref().is_none_or(|terms| terms.iter().any(|term| matches_term(term, node)))
            && node.taints.iter().all(|taint| self.tolerates(taint))
    }

    fn tolerates(&self, taint: &Taint) -> bool {
        !matches!(taint.effect.as_str(), "NoSchedule" | "NoExecute")
            || self.tolerations.iter().any(|toleration| is_tolerated(taint, toleration))
    }
}

/// A term without requirements matches no node.
fn matches_term(term: &NodeSelectorTerm, node: &NodeFacts) -> bool {
    let expressions = term.match_expressions.as_deref().unwrap_or_default();
    let fields = term.match_fields.as_deref().unwrap_or_default();
    let by_name = |field: &NodeSelectorRequirement| field.key == NAME_FIELD && matches(field, Some(&node.name));
    !(expressions.is_empty() && fields.is_empty())
        && expressions.iter().all(|wanted| matches(wanted, node.label(&wanted.key)))
        && fields.iter().all(by_name)
}

fn matches(wanted: &NodeSelectorRequirement, value: Option<&str>) -> bool {
    let values = wanted.values.as_deref().unwrap_or_default();
    let is_listed = value.is_some_and(|value| values.iter().any(|listed| listed == value));
    let numbers = || Some((value?.parse::<i64>().ok()?, values.first()?.parse::<i64>().ok()?));
    match wanted.operator.as_str() {
        "In" => is_listed,
        "NotIn" => !is_listed,
        "Exists" => value.is_some(),
        "DoesNotExist" => value.is_none(),
        "Gt" => numbers().is_some_and(|(value, bound)| value > bound),
        "Lt" => numbers().is_some_and(|(value, bound)| value < bound),
        _ => false,
    }
}

fn is_tolerated(taint: &Taint, toleration: &Toleration) -> bool {
    let set = |field: &Option<String>| field.as_deref().unwrap_or_default().to_owned();
    let (effect, key) = (set(&toleration.effect), set(&toleration.key));
    if !(effect.is_empty() || effect == taint.effect) {
        return false;
    }
    match toleration.operator.as_deref().unwrap_or_default() {
        "Exists" => key.is_empty() || key == taint.key,
        "" | "Equal" => key == taint.key && set(&toleration.value) == set(&taint.value),
        _ => false,
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn node() -> NodeFacts {
        let labels = [("zone", "a"), ("generation", "9"), ("kubernetes.io/hostname", "gpu-1")];
        let taint = Taint {
            key: "gpu".to_owned(),
            value: Some("lab".to_owned()),
            effect: "NoSchedule".to_owned(),
            time_added: None,
        };
        NodeFacts {
            name: "gpu-1".to_owned(),
            ready: true,
            other_labels: labels.map(|(key, value)| (key.to_owned(), value.to_owned())).into(),
            taints: vec![taint],
            ..NodeFacts::default()
        }
    }

    fn may_use(mut spec: Value) -> bool {
        spec["containers"] = json!([]);
        if spec.get("tolerations").is_none() {
            spec["tolerations"] = json!([{ "operator": "Exists" }]);
        }
        NodeTerms::of(&serde_json::from_value(json!({ "spec": spec })).unwrap()).allow(&node())
    }

    fn affinity(terms: Value) -> Value {
        json!({ "affinity": { "nodeAffinity": {
            "requiredDuringSchedulingIgnoredDuringExecution": { "nodeSelectorTerms": terms },
        } } })
    }

    #[test]
    fn a_selector_must_match_every_label() {
        assert!(may_use(json!({ "nodeSelector": { "zone": "a" } })));
        assert!(!may_use(json!({ "nodeSelector": { "zone": "a", "rack": "4" } })));
    }

    #[test]
    fn one_term_of_the_affinity_must_match_with_all_its_requirements() {
        let one = |key: &str, operator: &str, values: &[&str]| {
            affinity(json!([{ "matchExpressions": [{ "key": key, "operator": operator, "values": values }] }]))
        };
        for (key, operator, values) in [
            ("zone", "In", &["b", "a"][..]),
            ("zone", "NotIn", &["b"]),
            ("rack", "NotIn", &["4"]),
            ("zone", "Exists", &[]),
            ("rack", "DoesNotExist", &[]),
            ("generation", "Gt", &["8"]),
            ("generation", "Lt", &["10"]),
        ] {
            assert!(may_use(one(key, operator, values)), "{key} {operator} {values:?}");
        }
        for (key, operator, values) in [
            ("zone", "In", &["b"][..]),
            ("zone", "NotIn", &["a"]),
            ("rack", "Exists", &[]),
            ("zone", "DoesNotExist", &[]),
            ("generation", "Gt", &["9"]),
            ("zone", "Lt", &["9"]),
            ("zone", "Resembles", &["a"]),
        ] {
            assert!(!may_use(one(key, operator, values)), "{key} {operator} {values:?}");
        }
        let field = |name: &str| json!([{ "key": "metadata.name", "operator": "In", "values": [name] }]);
        let wrong = json!({ "matchExpressions": [{ "key": "zone", "operator": "In", "values": ["b"] }] });
        assert!(may_use(affinity(json!([wrong, { "matchFields": field("gpu-1") }]))));
        assert!(!may_use(affinity(json!([wrong, { "matchFields": field("gpu-2") }]))));
        assert!(!may_use(affinity(json!([{}]))), "an empty term matches no node");
    }

    #[test]
    fn every_taint_needs_a_toleration() {
        for toleration in [
            json!({ "key": "gpu", "operator": "Exists" }),
            json!({ "key": "gpu", "value": "lab", "effect": "NoSchedule" }),
            json!({ "operator": "Exists", "effect": "NoSchedule" }),
        ] {
            assert!(may_use(json!({ "tolerations": [toleration] })), "{toleration}");
        }
        for toleration in [
            json!({ "key": "gpu", "value": "other" }),
            json!({ "key": "gpu", "operator": "Exists", "effect": "NoExecute" }),
            json!({ "key": "cpu", "operator": "Exists" }),
        ] {
            assert!(!may_use(json!({ "tolerations": [toleration] })), "{toleration}");
        }
    }

    #[test]
    fn a_node_that_is_not_ready_is_no_place() {
        let pod: Pod = serde_json::from_value(json!({ "spec": {
            "containers": [], "tolerations": [{ "operator": "Exists" }],
        } }))
        .unwrap();
        assert!(!NodeTerms::of(&pod).allow(&NodeFacts { ready: false, ..node() }));
    }
}
