//! The leased GPUs as a ResourceQuota, and the discovery that `kubectl get resourcequota` needs.

use axum::Json;
use axum::extract::{Extension, Path};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse as _, Response};
use serde_json::{Value, json};

use super::answers::{Caller, NOTE, refusal};
use super::leases::LeaseRecord;

/// `GET /api`.
pub(super) async fn versions() -> Json<Value> {
    Json(json!({ "kind": "APIVersions", "standsInFor": NOTE, "versions": ["v1"] }))
}

/// `GET /apis`.
pub(super) async fn groups() -> Json<Value> {
    Json(json!({ "kind": "APIGroupList", "apiVersion": "v1", "standsInFor": NOTE, "groups": [] }))
}

/// `GET /api/v1`.
pub(super) async fn resources() -> Json<Value> {
    let quotas = json!({
        "name": "resourcequotas", "singularName": "resourcequota", "shortNames": ["quota"], "kind": "ResourceQuota",
        "namespaced": true, "verbs": ["get", "list"],
    });
    Json(json!({
        "kind": "APIResourceList", "apiVersion": "v1", "groupVersion": "v1",
        "standsInFor": NOTE, "resources": [quotas],
    }))
}

/// `GET /api/v1/namespaces/{namespace}/resourcequotas`.
pub(super) async fn list(
    Path(namespace): Path<String>,
    Extension(caller): Extension<Caller>,
    headers: HeaderMap,
) -> Response {
    answer(&namespace, &caller, &headers, |quota| {
        let kind = "ResourceQuotaList";
        json!({ "kind": kind, "apiVersion": "v1", "metadata": {}, "standsInFor": NOTE, "items": [quota] })
    })
}

/// `GET /api/v1/namespaces/{namespace}/resourcequotas/gpus`.
pub(super) async fn get(
    Path(namespace): Path<String>,
    Extension(caller): Extension<Caller>,
    headers: HeaderMap,
) -> Response {
    answer(&namespace, &caller, &headers, |quota| quota)
}

/// The caller's quota as a table if that is asked for, else as `form` says.
fn answer(namespace: &str, caller: &Caller, headers: &HeaderMap, form: impl Fn(Value) -> Value) -> Response {
    if namespace != caller.record.namespace {
        return refusal(StatusCode::FORBIDDEN, "the token is for another namespace");
    }
    let accept = headers.get(header::ACCEPT).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let quota = quota(caller);
    Json(if accept.contains("as=Table;v=v1;g=meta.k8s.io") { table(caller, &quota) } else { form(quota) })
        .into_response()
}

fn quota(caller: &Caller) -> Value {
    let LeaseRecord { tenant, namespace, resource, gpus, .. } = &caller.record;
    let hard = json!({ requests(resource): gpus.to_string() });
    json!({
        "kind": "ResourceQuota", "apiVersion": "v1",
        "metadata": { "name": "gpus", "namespace": namespace },
        "spec": { "hard": hard }, "status": { "hard": hard },
        "standsInFor": NOTE, "lease": caller.lease, "tenant": tenant,
        "namespace": namespace, "resource": resource, "gpus": gpus,
    })
}

fn table(caller: &Caller, quota: &Value) -> Value {
    let LeaseRecord { resource, gpus, .. } = &caller.record;
    let column = |name: &str, format: &str| json!({ "name": name, "type": "string", "format": format, "priority": 0 });
    let object =
        json!({ "kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1", "metadata": quota["metadata"] });
    json!({
        "kind": "Table", "apiVersion": "meta.k8s.io/v1", "metadata": {}, "standsInFor": NOTE,
        "columnDefinitions": [column("Name", "name"), column("Request", "")],
        "rows": [{ "cells": ["gpus", format!("{}: {gpus}", requests(resource))], "object": object }],
    })
}

/// The quota's name for requests of a resource.
fn requests(resource: &str) -> String {
    format!("requests.{resource}")
}
