//! Lists of pods.

use axum::Json;
use axum::extract::{Extension, Path, RawQuery, State};
use axum::http::HeaderMap;
use axum::response::{IntoResponse as _, Response};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use serde_json::Value;

use super::Site;
use super::one_pod::as_object;
use super::pod_selector::Selector;
use super::pod_table::pods_table;
use super::pod_watch;
use crate::answers::{self, Caller, Refusal, is_true, parameters, wants_table};

/// `GET …/pods`, also with `watch`.
pub(super) async fn list(
    State(site): State<Site>,
    Path(namespace): Path<String>,
    Extension(caller): Extension<Caller>,
    RawQuery(query): RawQuery,
    headers: HeaderMap,
) -> Result<Response, Refusal> {
    caller.check(&namespace)?;
    let parameters = parameters(query.as_deref());
    let selector = Selector::read(&parameters)?;
    let as_table = wants_table(&headers);
    if is_true(&parameters, "watch") {
        return pod_watch::stream(&site, caller.lease, &parameters, selector, as_table);
    }
    // Without `site` there are none.
    let (version, entries) = site.host.as_ref().map_or((1, Vec::new()), |host| host.book.of_lease(caller.lease));
    let pods: Vec<Value> = entries
        .iter()
        .filter(|(_, entry)| selector.matches(&entry.pod))
        .map(|(_, entry)| as_object(&entry.pod))
        .collect();
    let now = site.host.as_ref().map_or_else(|| Time(jiff::Timestamp::UNIX_EPOCH), |host| host.now());
    Ok(Json(if as_table { pods_table(&pods, Some(version), &now) } else { answers::list("Pod", pods, version) })
        .into_response())
}
