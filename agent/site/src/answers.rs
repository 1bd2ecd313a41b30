//! Parts that all answers share.

use std::collections::BTreeMap;

use axum::Json;
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use comity_types::LeaseId;
use serde_json::{Value, json};

use super::leases::LeaseRecord;

/// The caller.
#[derive(Clone)]
pub(super) struct Caller {
    pub(super) lease: LeaseId,
    pub(super) record: LeaseRecord,
}

/// A refusal, written as Kubernetes writes one.
#[derive(Debug)]
pub(super) struct Refusal {
    status: StatusCode,
    reason: &'static str,
    message: String,
}

impl Refusal {
    pub(super) fn new(status: StatusCode, message: impl Into<String>) -> Self {
        Self { status, reason: reason(status), message: message.into() }
    }

    pub(super) fn exists(resource: &str, name: &str) -> Self {
        let message = format!("{resource} {name:?} already exists");
        Self { reason: "AlreadyExists", ..Self::new(StatusCode::CONFLICT, message) }
    }

    pub(super) fn not_found(resource: &str, name: &str) -> Self {
        Self::new(StatusCode::NOT_FOUND, format!("{resource} {name:?} not found"))
    }
}

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        let status = json!({
            "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
            "reason": self.reason, "code": self.status.as_u16(), "message": self.message,
        });
        (self.status, Json(status)).into_response()
    }
}

/// Kubernetes' word for a status.
fn reason(status: StatusCode) -> &'static str {
    match status {
        StatusCode::BAD_REQUEST => "BadRequest",
        StatusCode::UNAUTHORIZED => "Unauthorized",
        StatusCode::FORBIDDEN => "Forbidden",
        StatusCode::NOT_FOUND => "NotFound",
        StatusCode::METHOD_NOT_ALLOWED => "MethodNotAllowed",
        StatusCode::CONFLICT => "Conflict",
        StatusCode::GONE => "Expired",
        StatusCode::UNPROCESSABLE_ENTITY => "Invalid",
        StatusCode::UNSUPPORTED_MEDIA_TYPE => "UnsupportedMediaType",
        StatusCode::TOO_MANY_REQUESTS => "TooManyRequests",
        _ => "InternalError",
    }
}

/// Whether a client prefers a table, as kubectl does.
pub(super) fn wants_table(headers: &HeaderMap) -> bool {
    let accept = headers.get(header::ACCEPT).and_then(|value| value.to_str().ok()).unwrap_or_default();
    accept.contains("as=Table;v=v1;g=meta.k8s.io")
}

/// A table: the columns' names, and a row with its object for each.
pub(super) fn table(columns: &[&str], rows: &[(Vec<Value>, &Value)], version: Option<u64>) -> Value {
    let column = |name: &&str| {
        let format = if *name == "Name" { "name" } else { "" };
        json!({ "name": name, "type": "string", "format": format, "description": "", "priority": 0 })
    };
    let row = |(cells, object): &(Vec<Value>, &Value)| {
        let partial =
            json!({ "kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1", "metadata": object["metadata"] });
        json!({ "cells": cells, "object": partial })
    };
    let metadata = version.map_or(json!({}), |version| json!({ "resourceVersion": version.to_string() }));
    json!({
        "kind": "Table", "apiVersion": "meta.k8s.io/v1", "metadata": metadata,
        "columnDefinitions": columns.iter().map(column).collect::<Vec<_>>(),
        "rows": rows.iter().map(row).collect::<Vec<_>>(),
    })
}

/// A list of objects.
pub(super) fn list(kind: &str, items: Vec<Value>, version: u64) -> Value {
    json!({
        "kind": format!("{kind}List"), "apiVersion": "v1",
        "metadata": { "resourceVersion": version.to_string() }, "items": items,
    })
}

/// The parameters of a query; of several with one name the last.
pub(super) fn parameters(query: Option<&str>) -> BTreeMap<String, String> {
    form_urlencoded::parse(query.unwrap_or_default().as_bytes()).into_owned().collect()
}

/// A number in a query.
pub(super) fn number(parameters: &BTreeMap<String, String>, name: &str) -> Result<Option<u64>, Refusal> {
    let read = |text: &String| {
        let wrong = || Refusal::new(StatusCode::BAD_REQUEST, format!("{name}: {text:?} is no whole number"));
        text.parse().map_err(|_| wrong())
    };
    parameters.get(name).map(read).transpose()
}

/// Whether a query says yes.
pub(super) fn is_true(parameters: &BTreeMap<String, String>, name: &str) -> bool {
    parameters.get(name).is_some_and(|value| value == "true" || value == "1")
}
