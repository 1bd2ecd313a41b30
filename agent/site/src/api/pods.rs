//! One pod: make it, read it, delete it.

use std::time::Duration;

use axum::Json;
use axum::body::Bytes;
use axum::extract::{Extension, Path, RawQuery, State};
use axum::http::{HeaderMap, HeaderValue, StatusCode};
use axum::response::{IntoResponse as _, Response};
use serde_json::Value;

use super::Site;
use super::delete_options::{delete_options, is_dry_run};
use super::object_body::json_object;
use super::one_pod::{as_object, find};
use super::pod_table::pods_table;
use crate::answers::{Caller, Refusal, wants_table};
use crate::pod_book::{BookError, PodKey};
use crate::pod_host::{LeaseShare, PodHost, Refused};
use crate::pod_plan::{MAX_GRACE, PodPlan};

/// Most warnings of an answer.
const MAX_WARNINGS: usize = 16;

/// `POST …/pods`.
pub(super) async fn create(
    State(site): State<Site>,
    Path(namespace): Path<String>,
    Extension(caller): Extension<Caller>,
    RawQuery(query): RawQuery,
    headers: HeaderMap,
    body: Bytes,
) -> Result<Response, Refusal> {
    caller.check(&namespace)?;
    let manifest = json_object(&headers, &body)?;
    let dry_run = is_dry_run(query.as_deref());
    let share =
        LeaseShare { lease: caller.lease, resource: caller.record.resource.clone(), all: caller.record.share.clone() };
    let (pod, warnings) = PodHost::add(site.host()?, &share, &manifest, dry_run)
        .map_err(|error| refused(&manifest["metadata"]["name"], &error))?;
    if !dry_run && !site.leases.contains(caller.lease) {
        // It ended in between: whoever ended its pods may not have seen this one.
        let key = PodKey { lease: caller.lease, name: pod.metadata.name.clone().unwrap_or_default() };
        let host = site.host()?;
        host.book.delete(&key, Duration::ZERO, host.now()).map_err(|error| book_refusal(&key.name, &error))?;
        return Err(Refusal::new(StatusCode::UNAUTHORIZED, "the lease has ended"));
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
pub(super) async fn get(
    State(site): State<Site>,
    Path((namespace, name)): Path<(String, String)>,
    Extension(caller): Extension<Caller>,
    headers: HeaderMap,
) -> Result<Json<Value>, Refusal> {
    let (_, entry) = find(&site, &caller, &namespace, &name)?;
    let pod = as_object(&entry.pod);
    let now = site.host()?.now();
    Ok(Json(if wants_table(&headers) { pods_table(&[pod], None, &now) } else { pod }))
}

/// `DELETE …/pods/{name}`: returns at once; the pod goes when its container has ended.
pub(super) async fn delete(
    State(site): State<Site>,
    Path((namespace, name)): Path<(String, String)>,
    Extension(caller): Extension<Caller>,
    RawQuery(query): RawQuery,
    body: Bytes,
) -> Result<Json<Value>, Refusal> {
    let (key, entry) = find(&site, &caller, &namespace, &name)?;
    let host = site.host()?;
    let options = delete_options(query.as_deref(), &body)?;
    if let Some(uid) = options.uid.filter(|uid| Some(uid) != entry.pod.metadata.uid.as_ref()) {
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
    let deleted = host.book.delete(&key, grace, host.now()).map_err(|error| book_refusal(&name, &error))?;
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
