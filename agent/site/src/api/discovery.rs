//! What this API has, in the forms in which kubectl asks.

use axum::Json;
use serde_json::{Value, json};

use super::lease_call::LeaseCall;

/// `GET /version`.
pub(super) async fn version() -> Json<Value> {
    Json(json!({
        "major": "1", "minor": "34", "gitVersion": concat!("v1.34.0-comity.", env!("CARGO_PKG_VERSION")),
        "platform": "linux",
    }))
}

/// `GET /api`.
pub(super) async fn versions() -> Json<Value> {
    Json(json!({ "kind": "APIVersions", "versions": ["v1"] }))
}

/// `GET /apis`.
pub(super) async fn groups() -> Json<Value> {
    Json(json!({ "kind": "APIGroupList", "apiVersion": "v1", "groups": [] }))
}

/// `GET /api/v1`.
pub(super) async fn resources() -> Json<Value> {
    let resource = |name: &str, kind: &str, short: &[&str], verbs: &[&str]| {
        let singular = if name.contains('/') { String::new() } else { kind.to_lowercase() };
        json!({
            "name": name, "singularName": singular, "shortNames": short, "kind": kind, "namespaced": true,
            "verbs": verbs,
        })
    };
    let objects = ["create", "delete", "get", "list", "patch", "update"];
    Json(json!({
        "kind": "APIResourceList", "apiVersion": "v1", "groupVersion": "v1",
        "resources": [
            resource("configmaps", "ConfigMap", &["cm"], &objects),
            resource("pods", "Pod", &["po"], &["create", "delete", "get", "list", "watch"]),
            resource("pods/exec", "PodExecOptions", &[], &["get"]),
            resource("pods/log", "Pod", &[], &["get"]),
            resource("resourcequotas", "ResourceQuota", &["quota"], &["get", "list"]),
            resource("secrets", "Secret", &[], &objects),
        ],
    }))
}

/// `GET /openapi/v3`.
pub(super) async fn openapi() -> Json<Value> {
    Json(json!({ "paths": { "api/v1": { "serverRelativeURL": "/openapi/v3/api/v1" } } }))
}

/// `GET /openapi/v3/api/v1`: that the server checks fields itself, which is all that kubectl reads before it creates.
pub(super) async fn openapi_v1() -> Json<Value> {
    let mut paths = serde_json::Map::new();
    for (resource, kind) in [("pods", "Pod"), ("configmaps", "ConfigMap"), ("secrets", "Secret")] {
        let operation = json!({
            "parameters": [{ "name": "fieldValidation", "in": "query" }], "responses": {},
            "x-kubernetes-group-version-kind": { "group": "", "kind": kind, "version": "v1" },
        });
        paths.insert(
            format!("/api/v1/namespaces/{{namespace}}/{resource}/{{name}}"),
            json!({ "patch": operation, "put": operation }),
        );
    }
    Json(json!({ "openapi": "3.0.0", "info": { "title": "Comity", "version": "v1" }, "paths": paths }))
}

/// `GET /api/v1/namespaces/{namespace}`: the lease's own.
pub(super) async fn namespace(call: LeaseCall) -> Json<Value> {
    let name = call.record.namespace;
    Json(json!({
        "kind": "Namespace", "apiVersion": "v1", "metadata": { "name": name }, "status": { "phase": "Active" },
    }))
}
