//! Pods in lists and tables.

use std::collections::BTreeMap;

use axum::Json;
use axum::extract::{Extension, Path, RawQuery, State};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse as _, Response};
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use serde_json::Value;

use super::Site;
use super::pod_watch;
use super::pods::as_object;
use crate::answers::{self, Caller, Refusal, is_true, parameters, table, wants_table};

const COLUMNS: [&str; 5] = ["Name", "Ready", "Status", "Restarts", "Age"];

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

/// Which pods are wanted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Selector {
    /// Label, value, and whether it is to be equal.
    labels: Vec<(String, Option<String>, bool)>,
    name: Option<String>,
    phase: Option<String>,
}

impl Selector {
    /// Reads `labelSelector` and `fieldSelector`.
    pub(super) fn read(parameters: &BTreeMap<String, String>) -> Result<Self, Refusal> {
        let mut selector = Self::default();
        let parts = |name: &str| {
            let text = parameters.get(name).cloned().unwrap_or_default();
            text.split(',').map(|part| part.trim().to_owned()).filter(|part| !part.is_empty()).collect::<Vec<_>>()
        };
        for part in parts("labelSelector") {
            if part.contains(['(', ')', ' ']) {
                let message = format!("labelSelector: {part:?} is not read here; use key=value, key!=value or key");
                return Err(Refusal::new(StatusCode::BAD_REQUEST, message));
            }
            let label = if let Some((key, value)) = part.split_once("!=") {
                (key.to_owned(), Some(value.to_owned()), false)
            } else if let Some((key, value)) = part.split_once('=') {
                (key.to_owned(), Some(value.trim_start_matches('=').to_owned()), true)
            } else if let Some(key) = part.strip_prefix('!') {
                (key.to_owned(), None, false)
            } else {
                (part, None, true)
            };
            selector.labels.push(label);
        }
        for part in parts("fieldSelector") {
            match part.split_once('=').map(|(field, value)| (field, value.trim_start_matches('=').to_owned())) {
                Some(("metadata.name", name)) => selector.name = Some(name),
                Some(("status.phase", phase)) => selector.phase = Some(phase),
                _ => {
                    let message =
                        format!("fieldSelector: {part:?} is not read here; use metadata.name or status.phase");
                    return Err(Refusal::new(StatusCode::BAD_REQUEST, message));
                }
            }
        }
        Ok(selector)
    }

    /// Whether a pod is wanted.
    pub(super) fn matches(&self, pod: &Pod) -> bool {
        let label = |(key, value, equal): &(String, Option<String>, bool)| {
            let has = pod.metadata.labels.as_ref().and_then(|labels| labels.get(key));
            let same = match value {
                Some(value) => has == Some(value),
                None => has.is_some(),
            };
            same == *equal
        };
        let phase = pod.status.as_ref().and_then(|status| status.phase.as_ref());
        self.labels.iter().all(label)
            && self.name.as_ref().is_none_or(|name| pod.metadata.name.as_ref() == Some(name))
            && self.phase.as_ref().is_none_or(|wanted| phase == Some(wanted))
    }
}

/// Pods as `kubectl get pods` shows them.
pub(super) fn pods_table(pods: &[Value], version: Option<u64>, now: &Time) -> Value {
    let row = |pod| (cells(pod, now), pod);
    table(&COLUMNS, &pods.iter().map(row).collect::<Vec<_>>(), version)
}

fn cells(pod: &Value, now: &Time) -> Vec<Value> {
    let status = &pod["status"];
    let container = &status["containerStatuses"][0];
    let state = &container["state"];
    let init = status["initContainerStatuses"].as_array().into_iter().flatten();
    let init =
        init.filter_map(|init| init["state"]["waiting"]["reason"].as_str()).find(|reason| *reason != "PodInitializing");
    let reason = state["terminated"]["reason"].as_str().or(state["waiting"]["reason"].as_str());
    let shown = if pod["metadata"]["deletionTimestamp"].is_null() {
        status["reason"].as_str().or(init).or(reason).or(status["phase"].as_str()).unwrap_or("Unknown")
    } else {
        "Terminating"
    };
    let made: Option<jiff::Timestamp> =
        pod["metadata"]["creationTimestamp"].as_str().and_then(|time| time.parse().ok());
    let age = made.map_or(0, |made| now.0.as_second().saturating_sub(made.as_second()).max(0));
    let ready = if container["ready"] == true { "1/1" } else { "0/1" };
    let restarts = container["restartCount"].as_u64().unwrap_or_default();
    vec![pod["metadata"]["name"].clone(), ready.into(), shown.into(), restarts.to_string().into(), age_text(age).into()]
}

/// As kubectl writes ages: the largest unit, with the next one where it is small.
fn age_text(seconds: i64) -> String {
    match seconds {
        ..120 => format!("{seconds}s"),
        120..600 if seconds % 60 != 0 => format!("{}m{}s", seconds / 60, seconds % 60),
        120..10_800 => format!("{}m", seconds / 60),
        10_800..172_800 => format!("{}h", seconds / 3_600),
        _ => format!("{}d", seconds / 86_400),
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use serde_json::json;

    use super::*;

    fn read(labels: &str, fields: &str) -> Result<Selector, Refusal> {
        let pair = |name: &str, value: &str| (name.to_owned(), value.to_owned());
        Selector::read(&BTreeMap::from([pair("labelSelector", labels), pair("fieldSelector", fields)]))
    }

    #[test]
    fn selectors_choose_pods_or_are_refused() {
        let pod: Pod = serde_json::from_value(json!({
            "metadata": {"name": "a", "labels": {"app": "x"}}, "status": {"phase": "Running"},
        }))
        .unwrap();
        for (labels, fields, expected) in [
            ("", "", true),
            ("app=x", "metadata.name=a", true),
            ("app==x,!other", "status.phase=Running", true),
            ("app!=x", "", false),
            ("other", "", false),
            ("", "metadata.name=b", false),
        ] {
            assert_eq!(read(labels, fields).unwrap().matches(&pod), expected, "{labels} {fields}");
        }
        assert!(read("app in (x)", "").is_err() && read("", "spec.nodeName=n").is_err());
    }

    #[test]
    fn ages_are_those_of_kubectl() {
        for (seconds, expected) in [(5, "5s"), (125, "2m5s"), (900, "15m"), (20_000, "5h"), (200_000, "2d")] {
            assert_eq!(age_text(seconds), expected);
        }
    }
}
