//! The wanted status of a replicated ResourceSlice. Pure.

use std::collections::{BTreeMap, BTreeSet};

use comity_agent_kubernetes::object_content::is_empty;
use comity_policy::quantity;
use kube::ResourceExt as _;
use kube::api::DynamicObject;
use serde_json::{Map, Value, json};

use super::grants::{Grant, Grants};
use crate::SLICE_CLASS;

/// Condition that says whether resources were granted.
const RESOURCES: &str = "Resources";

/// The status to write; `None` if it is as wanted. `now` is the RFC 3339 time for conditions whose status changes.
pub(crate) fn status_to_write(slice: &DynamicObject, grants: &Grants, now: &str) -> Option<Value> {
    if slice.metadata.deletion_timestamp.is_some() {
        return None;
    }
    let empty = Map::new();
    let found = slice.data.get("status").and_then(Value::as_object).unwrap_or(&empty);
    let wanted = match grant_of(slice, grants) {
        Some(grant) => granted(slice, grant, found, now),
        None => denied(found, now),
    };
    if is_same(found, &wanted) { None } else { Some(Value::Object(wanted)) }
}

/// Fields of the condition `Resources`.
struct Verdict<'a> {
    status: &'a str,
    reason: &'a str,
    message: &'a str,
}

/// The grant of the slice's lease.
fn grant_of<'a>(slice: &DynamicObject, grants: &'a Grants) -> Option<&'a Grant> {
    let text = |pointer: &str| slice.data.pointer(pointer).and_then(Value::as_str).unwrap_or_default();
    let namespace = slice.namespace().unwrap_or_default();
    let grant = grants.of_slice(&namespace, &slice.name_any(), text("/spec/consumerClusterID"))?;
    (text("/spec/class") == SLICE_CLASS).then_some(grant)
}

fn granted(slice: &DynamicObject, grant: &Grant, found: &Map<String, Value>, now: &str) -> Map<String, Value> {
    let message = format!("granted by lease {}", slice.name_any());
    let mut status = kept(found);
    status.insert("resources".into(), json!(grant.resources));
    status.insert("nodeSelector".into(), json!(grant.node_selector));
    status.insert("nodeLabels".into(), json!(grant.node_labels));
    status.insert(
        "conditions".into(),
        conditions(found, &Verdict { status: "Accepted", reason: "ComityGrant", message: &message }, now),
    );
    status
}

/// A status that grants nothing. Earlier resources are set to zero instead of left out: a resource that a quota does
/// not name is refused too, but the origin's virtual node would still show it. The node selector stays, because a lease
/// on the same nodes may use the slice next ([`suits`]).
fn denied(found: &Map<String, Value>, now: &str) -> Map<String, Value> {
    let mut status = kept(found);
    let zeros: BTreeMap<&String, &str> = found
        .get("resources")
        .and_then(Value::as_object)
        .into_iter()
        .flat_map(Map::keys)
        .map(|name| (name, "0"))
        .collect();
    if !zeros.is_empty() {
        status.insert("resources".into(), json!(zeros));
    }
    for (key, value) in found.iter().filter(|(key, _)| matches!(key.as_str(), "nodeSelector" | "nodeLabels")) {
        status.insert(key.clone(), value.clone());
    }
    let verdict =
        Verdict { status: "Denied", reason: "NoComityLease", message: "this slice belongs to no lease in force" };
    status.insert("conditions".into(), conditions(found, &verdict, now));
    status
}

/// Whether a slice without a lease can serve a lease with this grant. Its virtual-kubelet was started for the nodes of
/// the earlier lease, and its virtual node shows that lease's kinds of resources: both must be the same.
pub(super) fn suits(slice: &DynamicObject, grant: &Grant) -> bool {
    let status = &slice.data["status"];
    let kinds: BTreeSet<&String> =
        status["resources"].as_object().into_iter().flatten().map(|(name, _)| name).collect();
    slice.metadata.deletion_timestamp.is_none()
        && is_denied(slice)
        && status["nodeSelector"] == json!(grant.node_selector)
        && kinds.into_iter().eq(grant.resources.keys())
}

/// Whether a slice is known to have no lease.
pub(super) fn is_denied(slice: &DynamicObject) -> bool {
    let conditions = slice.data["status"]["conditions"].as_array();
    conditions.into_iter().flatten().any(|one| one["type"] == RESOURCES && one["status"] == "Denied")
}

/// The status fields that belong to Liqo.
fn kept(found: &Map<String, Value>) -> Map<String, Value> {
    found.iter().filter(|(key, _)| *key == "authParams").map(|(key, value)| (key.clone(), value.clone())).collect()
}

/// Liqo's conditions unchanged, and ours, whose time changes only with its status.
fn conditions(found: &Map<String, Value>, verdict: &Verdict<'_>, now: &str) -> Value {
    let Verdict { status, reason, message } = verdict;
    let before = found.get("conditions").and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
    let is_ours = |condition: &&Value| condition["type"] == RESOURCES;
    let since = before
        .iter()
        .find(is_ours)
        .filter(|condition| condition["status"] == *status)
        .and_then(|condition| condition["lastTransitionTime"].as_str())
        .unwrap_or(now);
    let mut conditions: Vec<Value> = before.iter().filter(|condition| !is_ours(condition)).cloned().collect();
    conditions.push(json!({
        "type": RESOURCES, "status": status, "reason": reason, "message": message, "lastTransitionTime": since,
    }));
    Value::Array(conditions)
}

/// Whether two statuses are equal: empty fields equal absent ones, and "1024Mi" equals "1Gi".
fn is_same(found: &Map<String, Value>, wanted: &Map<String, Value>) -> bool {
    let says = |status: &Map<String, Value>| -> BTreeMap<String, Value> {
        status
            .iter()
            .filter(|(_, value)| !is_empty(value))
            .map(|(key, value)| match key.as_str() {
                "resources" => (key.clone(), amounts(value)),
                "conditions" => (key.clone(), sorted(value)),
                _ => (key.clone(), value.clone()),
            })
            .collect()
    };
    says(found) == says(wanted)
}

/// Quantities in thousandths, where they can be read.
fn amounts(resources: &Value) -> Value {
    let Some(resources) = resources.as_object() else { return resources.clone() };
    let amount = |value: &Value| {
        let text = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
        quantity::milli_ceil(&text).map_or(Value::String(text), Value::from)
    };
    Value::Object(resources.iter().map(|(name, value)| (name.clone(), amount(value))).collect())
}

fn sorted(conditions: &Value) -> Value {
    let mut conditions = conditions.as_array().cloned().unwrap_or_default();
    conditions.sort_by_key(|condition| condition["type"].as_str().unwrap_or_default().to_owned());
    Value::Array(conditions)
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    const NOW: &str = "2026-01-01T00:00:00Z";

    fn grants() -> Grants {
        let grant = Grant {
            origin_liqo_id: "origin".into(),
            namespace: "team-a".into(),
            resources: [("cpu".to_owned(), "8".to_owned()), ("nvidia.com/gpu".to_owned(), "3".to_owned())].into(),
            node_selector: [("nvidia.com/gpu.product".to_owned(), "H100".to_owned())].into(),
            node_labels: [("comity.dev/gpu".to_owned(), "H100".to_owned())].into(),
        };
        Grants([("lease-7".to_owned(), grant)].into())
    }

    fn slice(name: &str, change: impl FnOnce(&mut Value)) -> DynamicObject {
        let mut object = json!({
            "apiVersion": "authentication.liqo.io/v1beta1", "kind": "ResourceSlice",
            "metadata": { "name": name, "namespace": "liqo-tenant-origin" },
            "spec": { "class": "comity", "consumerClusterID": "origin", "resources": { "nvidia.com/gpu": "99" } },
            "status": {
                "authParams": { "apiServer": "https://a" },
                "conditions": [{ "type": "Authentication", "status": "Accepted", "lastTransitionTime": NOW }],
            },
        });
        change(&mut object);
        serde_json::from_value(object).unwrap()
    }

    /// Applies the status until nothing is left to write; more than one write would be a hot loop.
    fn settled(mut slice: DynamicObject, grants: &Grants) -> Value {
        if let Some(status) = status_to_write(&slice, grants, NOW) {
            slice.data["status"] = status;
        }
        assert_eq!(status_to_write(&slice, grants, "2026-01-01T00:00:09Z"), None);
        slice.data["status"].clone()
    }

    #[test]
    fn a_lease_is_granted_exactly_and_liqos_fields_stay() {
        let status = settled(slice("lease-7", |_| ()), &grants());
        assert_eq!(status["resources"], json!({ "cpu": "8", "nvidia.com/gpu": "3" }));
        assert_eq!(status["nodeSelector"], json!({ "nvidia.com/gpu.product": "H100" }));
        assert_eq!(status["nodeLabels"], json!({ "comity.dev/gpu": "H100" }));
        assert_eq!(status["authParams"]["apiServer"], "https://a");
        assert_eq!(status["conditions"][0]["type"], "Authentication");
        assert_eq!(status["conditions"][1]["status"], "Accepted");
    }

    #[test]
    fn writes_by_others_are_reverted() {
        for change in [
            json!({ "resources": { "cpu": "8", "nvidia.com/gpu": "100" } }),
            json!({ "nodeSelector": null }),
            json!({ "nodeLabels": { "a": "b" } }),
            json!({ "storageClasses": [{ "storageClassName": "fast" }] }),
            json!({ "conditions": [] }),
        ] {
            let mut changed = slice("lease-7", |_| ());
            changed.data["status"] = settled(changed.clone(), &grants());
            for (key, value) in change.as_object().unwrap() {
                changed.data["status"][key] = value.clone();
            }
            let status = settled(changed, &grants());
            assert_eq!(status["resources"]["nvidia.com/gpu"], "3", "{change}");
            assert_eq!(status["nodeSelector"]["nvidia.com/gpu.product"], "H100", "{change}");
            assert_eq!(status.get("storageClasses"), None, "{change}");
        }
    }

    #[test]
    fn equal_amounts_in_other_words_are_left_alone() {
        let mut rewritten = slice("lease-7", |_| ());
        rewritten.data["status"] = settled(rewritten.clone(), &grants());
        rewritten.data["status"]["resources"]["cpu"] = json!("8000m");
        assert_eq!(status_to_write(&rewritten, &grants(), NOW), None);
    }

    #[test]
    fn an_idle_slice_suits_a_lease_on_the_same_nodes_of_the_same_kinds() {
        let grant = grants().0.remove("lease-7").unwrap();
        let mut idle = slice("lease-7", |_| ());
        idle.data["status"] = settled(idle.clone(), &grants());
        assert!(!suits(&idle, &grant), "it stands for a lease");
        idle.data["status"] = settled(idle.clone(), &Grants::default());
        assert!(suits(&idle, &grant));
        let with = |change: fn(&mut Grant)| {
            let mut other = grant.clone();
            change(&mut other);
            suits(&idle, &other)
        };
        assert!(with(|other| drop(other.resources.insert("cpu".into(), "64".into()))), "amounts may differ");
        assert!(!with(|other| drop(other.resources.insert("nvidia.com/mig-1g.10gb".into(), "1".into()))));
        assert!(!with(|other| drop(other.resources.remove("nvidia.com/gpu"))));
        assert!(!with(|other| other.node_selector.clear()));
        assert!(!suits(&slice("lease-8", |_| ()), &grant), "nobody has looked at it yet");
    }

    #[test]
    fn everything_else_is_denied() {
        for (what, denied) in [
            ("another name", slice("lease-8", |_| ())),
            ("another class", slice("lease-7", |object| object["spec"]["class"] = json!("default"))),
            ("no class", slice("lease-7", |object| object["spec"]["class"] = json!(""))),
            ("another consumer", slice("lease-7", |object| object["spec"]["consumerClusterID"] = json!("other"))),
            (
                "another namespace",
                slice("lease-7", |object| object["metadata"]["namespace"] = json!("liqo-tenant-other")),
            ),
            ("no spec", slice("lease-7", |object| object["spec"] = json!(null))),
        ] {
            let status = settled(denied, &grants());
            assert_eq!(status.get("resources"), None, "{what}");
            assert_eq!(status["conditions"][1]["status"], "Denied", "{what}");
        }
    }

    #[test]
    fn an_ended_grant_is_set_to_zero() {
        let mut granted = slice("lease-7", |_| ());
        granted.data["status"] = settled(granted.clone(), &grants());
        let status = settled(granted.clone(), &Grants::default());
        assert_eq!(status["resources"], json!({ "cpu": "0", "nvidia.com/gpu": "0" }));
        assert_eq!(status["conditions"][1]["status"], "Denied");
        assert_eq!(status["nodeSelector"]["nvidia.com/gpu.product"], "H100");
        granted.data["metadata"] = Value::Null;
        granted.metadata.deletion_timestamp = Some(serde_json::from_value(json!(NOW)).unwrap());
        assert_eq!(status_to_write(&granted, &Grants::default(), NOW), None);
    }
}
