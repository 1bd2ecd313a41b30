//! Pods as objects of the API, and as `kubectl get pods` shows them.

use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use serde_json::Value;

use crate::answers::table;

const COLUMNS: [&str; 5] = ["Name", "Ready", "Status", "Restarts", "Age"];

/// A pod as the API writes it.
pub(super) fn as_object(pod: &Pod) -> Value {
    // Only maps with keys other than strings cannot be written.
    serde_json::to_value(pod).unwrap_or_default()
}

/// The table of pods at a time.
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
mod tests {
    use super::*;

    #[test]
    fn ages_are_those_of_kubectl() {
        for (seconds, expected) in [(5, "5s"), (125, "2m5s"), (900, "15m"), (20_000, "5h"), (200_000, "2d")] {
            assert_eq!(age_text(seconds), expected);
        }
    }
}
