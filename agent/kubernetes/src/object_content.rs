//! The content of an object as the API server has it, compared with the content that it should have.

use std::collections::BTreeSet;

use kube::api::DynamicObject;
use serde_json::{Map, Value};

/// The part of an object that is compared: what its owner wrote.
#[must_use]
pub fn content(object: &DynamicObject) -> Value {
    ["spec", "data"].iter().find_map(|part| object.data.get(*part)).cloned().unwrap_or_default()
}

/// Whether a value is empty: the API server omits such fields.
#[must_use]
pub fn is_empty(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Array(items) => items.is_empty(),
        Value::Object(fields) => fields.is_empty(),
        _ => false,
    }
}

/// The first field that differs, as in `validations[3].expression`; empty fields do not count. `None`: the contents are
/// the same.
#[must_use]
pub fn first_difference(seen: &Value, wanted: &Value) -> Option<String> {
    difference(&without_empty(seen), &without_empty(wanted)).map(|path| path.trim_start_matches('.').to_owned())
}

/// Adds to the spec of a ValidatingAdmissionPolicy the defaults that the API server adds.
pub fn add_policy_defaults(spec: &mut Value) {
    let Some(spec) = spec.as_object_mut() else { return };
    set_default(spec, "failurePolicy", "Fail");
    let Some(constraints) = spec.get_mut("matchConstraints").and_then(Value::as_object_mut) else { return };
    set_default(constraints, "matchPolicy", "Equivalent");
    for rules in ["resourceRules", "excludeResourceRules"] {
        let rules = constraints.get_mut(rules).and_then(Value::as_array_mut);
        for rule in rules.into_iter().flatten().filter_map(Value::as_object_mut) {
            set_default(rule, "scope", "*");
        }
    }
}

fn set_default(fields: &mut Map<String, Value>, name: &str, value: &str) {
    fields.entry(name).or_insert_with(|| value.into());
}

fn difference(seen: &Value, wanted: &Value) -> Option<String> {
    match (seen, wanted) {
        (Value::Object(seen), Value::Object(wanted)) => {
            let names: BTreeSet<&String> = seen.keys().chain(wanted.keys()).collect();
            names.into_iter().find_map(|name| {
                let at = |fields: &Map<String, Value>| fields.get(name).cloned().unwrap_or_default();
                difference(&at(seen), &at(wanted)).map(|path| format!(".{name}{path}"))
            })
        }
        (Value::Array(seen), Value::Array(wanted)) => (0..seen.len().max(wanted.len())).find_map(|index| {
            let at = |items: &[Value]| items.get(index).cloned().unwrap_or_default();
            difference(&at(seen), &at(wanted)).map(|path| format!("[{index}]{path}"))
        }),
        _ => (seen != wanted).then(String::new),
    }
}

fn without_empty(value: &Value) -> Value {
    match value {
        Value::Object(fields) => Value::Object(
            fields
                .iter()
                .map(|(name, value)| (name.clone(), without_empty(value)))
                .filter(|(_, value)| !is_empty(value))
                .collect(),
        ),
        Value::Array(items) => Value::Array(items.iter().map(without_empty).collect()),
        other => other.clone(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn any_addition_or_change_counts_and_empty_fields_do_not() {
        let wanted =
            json!({ "failurePolicy": "Fail", "matchConstraints": { "namespaceSelector": {} }, "list": [{ "a": 1 }] });
        let differs = |seen: Value| first_difference(&seen, &wanted);
        assert_eq!(
            differs(json!({ "failurePolicy": "Fail", "list": [{ "a": 1, "b": null }], "auditAnnotations": [] })),
            None
        );
        for (seen, at) in [
            (json!({ "failurePolicy": "Ignore", "list": [{ "a": 1 }] }), "failurePolicy"),
            (json!({ "failurePolicy": "Fail", "list": [{ "a": 1 }, { "a": 2 }] }), "list[1]"),
            (json!({ "failurePolicy": "Fail", "list": [{ "a": 1, "b": 0 }] }), "list[0].b"),
            (json!({ "failurePolicy": "Fail" }), "list"),
            (
                json!({ "failurePolicy": "Fail", "list": [{ "a": 1 }], "matchConditions": [{ "expression": "false" }] }),
                "matchConditions",
            ),
        ] {
            assert_eq!(differs(seen).as_deref(), Some(at));
        }
        assert!(differs(Value::Null).is_some());
    }

    #[test]
    fn defaults_fill_only_what_is_left_out() {
        let mut spec = json!({ "matchConstraints": {
            "resourceRules": [{ "resources": ["pods"] }, { "scope": "Namespaced" }],
        } });
        add_policy_defaults(&mut spec);
        let filled = json!({ "failurePolicy": "Fail", "matchConstraints": {
            "matchPolicy": "Equivalent",
            "resourceRules": [{ "resources": ["pods"], "scope": "*" }, { "scope": "Namespaced" }],
        } });
        assert_eq!(spec, filled);
        let mut lenient = json!({ "failurePolicy": "Ignore" });
        add_policy_defaults(&mut lenient);
        assert_eq!(lenient, json!({ "failurePolicy": "Ignore" }));
    }
}
