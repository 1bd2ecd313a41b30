#![expect(clippy::unwrap_used, reason = "tests")]

use serde_json::{Value, json};

use super::*;
use crate::objects::NewObject;
use crate::running::pod_plan::PodPlan;

fn variables(container: Value) -> Result<BTreeMap<String, Variable>, String> {
    let dir = tempfile::tempdir().unwrap();
    let objects = Objects::open(dir.path()).unwrap();
    let secret = json!({ "metadata": { "name": "s" }, "data": { "token": "czNjcmV0", "binary": "/w==" } });
    let new = |kind, object| NewObject { lease: LeaseId(1), kind, object, version: 1 };
    objects.create(new(ObjectKind::Secret, &secret), false).unwrap();
    let map = json!({ "metadata": { "name": "m" }, "data": { "a": "1" } });
    objects.create(new(ObjectKind::ConfigMap, &map), false).unwrap();
    let mut container = container;
    (container["name"], container["image"]) = ("c".into(), "i".into());
    let manifest = json!({
        "metadata": { "name": "p", "annotations": { "k": "v" } }, "spec": { "containers": [container] },
    });
    let plan = PodPlan::read(&manifest, "nvidia.com/gpu").unwrap();
    let pod: Pod = serde_json::from_value(manifest).unwrap();
    Sources { lease: LeaseId(1), objects: &objects, pod: &pod }.variables(&plan.main)
}

#[test]
fn what_holds_a_secret_is_marked_even_through_a_reference() {
    let read = variables(json!({
        "envFrom": [{ "configMapRef": { "name": "m" } }],
        "env": [
            { "name": "TOKEN", "valueFrom": { "secretKeyRef": { "name": "s", "key": "token" } } },
            { "name": "URL", "value": "https://me:$(TOKEN)@host/$(a)" },
            { "name": "PLAIN", "value": "$(a)" },
            { "name": "ANNOTATION", "valueFrom": { "fieldRef": { "fieldPath": "metadata.annotations['k']" } } },
        ],
    }))
    .unwrap();
    let shown: Vec<_> = read.iter().map(|(name, v)| (name.as_str(), v.value.as_str(), v.is_secret)).collect();
    assert_eq!(
        shown,
        [
            ("ANNOTATION", "v", false),
            ("PLAIN", "1", false),
            ("TOKEN", "s3cret", true),
            ("URL", "https://me:s3cret@host/1", true),
            ("a", "1", false),
        ]
    );
}

#[test]
fn what_is_missing_is_named_and_no_secret_is_quoted() {
    let from_secret = |name: &str, key: &str, optional: bool| {
        let key = json!({ "name": name, "key": key, "optional": optional });
        variables(json!({ "env": [{ "name": "A", "valueFrom": { "secretKeyRef": key } }] }))
    };
    for (result, expected) in [
        (from_secret("other", "k", false), "Secret \"other\" does not exist"),
        (from_secret("s", "k", false), "Secret \"s\" has no key \"k\""),
        (from_secret("s", "binary", false), "the value of variable A is no text; mount it as a file"),
    ] {
        assert_eq!(result.err().unwrap(), expected);
    }
    assert!(from_secret("s", "k", true).unwrap().is_empty());
}
