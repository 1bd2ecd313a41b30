//! Parts that all answers of the echo API share.

use axum::Json;
use axum::http::StatusCode;
use axum::response::{IntoResponse as _, Response};
use comity_types::LeaseId;
use serde_json::json;

use super::leases::LeaseRecord;

/// Part of every answer, so that nobody mistakes this API for Kubernetes.
pub(super) const NOTE: &str =
    "this is Comity's echo API; it stands in for a kube-apiserver on hosts without Kubernetes";

/// The caller.
#[derive(Clone)]
pub(super) struct Caller {
    pub(super) lease: LeaseId,
    pub(super) record: LeaseRecord,
}

/// A refusal, as Kubernetes writes one.
pub(super) fn refusal(status: StatusCode, message: &str) -> Response {
    let status_object = json!({
        "kind": "Status", "apiVersion": "v1", "status": "Failure",
        "standsInFor": NOTE, "code": status.as_u16(), "message": message,
    });
    (status, Json(status_object)).into_response()
}
