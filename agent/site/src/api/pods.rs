//! One pod: make it, read it, delete it.

use std::time::Duration;

use axum::Json;
use axum::body::Bytes;
use axum::extract::RawQuery;
use axum::http::{HeaderMap, HeaderValue, StatusCode};
use axum::response::{IntoResponse as _, Response};
use serde_json::Value;

use super::delete_options::{delete_options, is_dry_run};
use super::lease_call::LeaseCall;
use super::object_body::json_object;
use super::pod_table::{as_object, pods_table};
use crate::answers::{Refusal, wants_table};
use crate::running::{BookError, MAX_GRACE, PodHost, PodKey, PodPlan, Refused};

/// Most warnings of an answer.
const MAX_WARNINGS: usize = 16;

/// `POST …/pods`.
pub(super) async fn create(
    call: LeaseCall,
    RawQuery(query): RawQuery,
    headers: HeaderMap,
    body: Bytes,
) -> Result<Response, Refusal> {
    let manifest = json_object(&headers, &body)?;
    let host = call.host()?;
    let (pod, warnings) = PodHost::add(host, call.lease, &call.record, &manifest, is_dry_run(query.as_deref()))
        .map_err(|error| refused(&manifest["metadata"]["name"], &error))?;
    if let Err(ended) = call.still_runs() {
        let key = PodKey { lease: call.lease, name: pod.metadata.name.clone().unwrap_or_default() };
        host.book.delete(&key, Duration::ZERO, host.now()).map_err(|error| book_refusal(&key.name, &error))?;
        return Err(ended);
    }
    let mut answer = (StatusCode::CREATED, Json(as_object(&pod))).into_response();
    for warning in warnings.iter().take(MAX_WARNINGS) {
        // RFC 7234, section 5.5, as Kubernetes warns.
        let text = format!("299 - {}", Value::from(warning.as_str()));
        if let Ok(value) = HeaderValue::from_str(&text) {
            answer.headers_mut().append("warning", value);
        }
    }
    Ok(answer)
}

/// `GET …/pods/{name}`.
pub(super) async fn get(call: LeaseCall, headers: HeaderMap) -> Result<Json<Value>, Refusal> {
    let (_, entry) = call.pod()?;
    let pod = as_object(&entry.pod);
    Ok(Json(if wants_table(&headers) { pods_table(&[pod], None, &call.host()?.now()) } else { pod }))
}

/// `DELETE …/pods/{name}`: returns at once; the pod goes when its container has ended.
pub(super) async fn delete(call: LeaseCall, RawQuery(query): RawQuery, body: Bytes) -> Result<Json<Value>, Refusal> {
    let (key, entry) = call.pod()?;
    let options = delete_options(query.as_deref(), &body)?;
    if let Some(uid) = options.uid.filter(|uid| uid != entry.uid()) {
        return Err(Refusal::new(
            StatusCode::CONFLICT,
            format!("preconditions.uid: the pod has another uid than {uid}"),
        ));
    }
    if options.dry_run {
        return Ok(Json(as_object(&entry.pod)));
    }
    let own = PodPlan::of_stored(&entry.pod, &entry.resource).map_or(Duration::ZERO, |plan| plan.grace);
    let grace = options.grace.map_or(own, |grace| grace.min(MAX_GRACE));
    let host = call.host()?;
    let deleted = host.book.delete(&key, grace, host.now()).map_err(|error| book_refusal(&key.name, &error))?;
    Ok(Json(as_object(&deleted.unwrap_or(entry.pod))))
}

fn refused(name: &Value, error: &Refused) -> Refusal {
    let name = name.as_str().unwrap_or_default();
    match error {
        Refused::Invalid(_) => {
            Refusal::new(StatusCode::UNPROCESSABLE_ENTITY, format!("Pod {name:?} is invalid: {error}"))
        }
        Refused::Book(error) => book_refusal(name, error),
    }
}

fn book_refusal(name: &str, error: &BookError) -> Refusal {
    match error {
        BookError::Exists => Refusal::exists("pods", name),
        BookError::TooMany | BookError::Quota(_) => {
            Refusal::new(StatusCode::FORBIDDEN, format!("pods {name:?} is forbidden: {error}"))
        }
        BookError::Disk(_) => Refusal::new(StatusCode::INTERNAL_SERVER_ERROR, format!("pods {name:?}: {error}")),
    }
}
