//! Lists of pods.

use axum::Json;
use axum::extract::RawQuery;
use axum::http::HeaderMap;
use axum::response::{IntoResponse as _, Response};
use serde_json::Value;

use super::lease_call::LeaseCall;
use super::pod_selector::Selector;
use super::pod_table::{as_object, pods_table};
use super::pod_watch;
use crate::answers::{self, Refusal, is_true, parameters, wants_table};

/// `GET …/pods`, also with `watch`.
pub(super) async fn list(call: LeaseCall, RawQuery(query): RawQuery, headers: HeaderMap) -> Result<Response, Refusal> {
    let parameters = parameters(query.as_deref());
    let selector = Selector::read(&parameters)?;
    let as_table = wants_table(&headers);
    if is_true(&parameters, "watch") {
        return pod_watch::stream(call, &parameters, selector, as_table);
    }
    // A host that runs no pods has none.
    let Some(host) = &call.site.host else {
        return Ok(Json(answers::list("Pod", Vec::new(), 1)).into_response());
    };
    let (version, entries) = host.book.of_lease(call.lease);
    let wanted = entries.iter().filter(|(_, entry)| selector.matches(&entry.pod));
    let pods: Vec<Value> = wanted.map(|(_, entry)| as_object(&entry.pod)).collect();
    let answer =
        if as_table { pods_table(&pods, Some(version), &host.now()) } else { answers::list("Pod", pods, version) };
    Ok(Json(answer).into_response())
}
