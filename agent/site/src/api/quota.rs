//! What the lease has, as a ResourceQuota.

use std::collections::BTreeMap;

use axum::Json;
use axum::http::HeaderMap;
use serde_json::{Map, Value, json};

use super::lease_call::LeaseCall;
use crate::answers::{self, table, wants_table};
use crate::held::Held;
use crate::leases::LeaseRecord;

/// `GET /api/v1/namespaces/{namespace}/resourcequotas`.
pub(super) async fn list(call: LeaseCall, headers: HeaderMap) -> Json<Value> {
    let quota = quota(&call);
    Json(if wants_table(&headers) { quota_table(&quota) } else { answers::list("ResourceQuota", vec![quota], 1) })
}

/// `GET /api/v1/namespaces/{namespace}/resourcequotas/gpus`.
pub(super) async fn get(call: LeaseCall, headers: HeaderMap) -> Json<Value> {
    let quota = quota(&call);
    Json(if wants_table(&headers) { quota_table(&quota) } else { quota })
}

/// The columns that `kubectl get resourcequota` has elsewhere.
fn quota_table(quota: &Value) -> Value {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let parts = |of_requests: bool| {
        let hard = quota["status"]["hard"].as_object().into_iter().flatten();
        let hard = hard.filter(|(name, _)| name.starts_with("requests.") == of_requests);
        let part =
            |(name, most): (&String, _)| format!("{name}: {}/{}", text(&quota["status"]["used"][name]), text(most));
        Value::from(hard.map(part).collect::<Vec<_>>().join(", "))
    };
    table(&["Name", "Request", "Limit"], &[(vec!["gpus".into(), parts(true), parts(false)], quota)], None)
}

fn quota(call: &LeaseCall) -> Value {
    let LeaseRecord { tenant, namespace, resource, gpus, share, .. } = &call.record;
    let pods = call.site.host.as_ref().map(|host| host.book.of_lease(call.lease).1).unwrap_or_default();
    let held: Vec<Held> =
        pods.into_iter().filter(|(_, entry)| !entry.has_ended()).map(|(_, entry)| entry.held).collect();
    let free = share.clone().without(&held);
    let amounts = |gpus: u64, held: &Held| {
        let mut amounts = Map::new();
        amounts.insert(format!("requests.{resource}"), gpus.to_string().into());
        amounts.insert("limits.cpu".to_owned(), format!("{}m", held.cpu_milli).into());
        amounts.insert("limits.memory".to_owned(), format!("{}Mi", held.memory_mib).into());
        Value::Object(amounts)
    };
    let used = Held {
        cpu_milli: share.cpu_milli - free.cpu_milli,
        memory_mib: share.memory_mib - free.memory_mib,
        devices: BTreeMap::new(),
    };
    let hard = amounts(*gpus, share);
    json!({
        "kind": "ResourceQuota", "apiVersion": "v1",
        "metadata": {
            "name": "gpus", "namespace": namespace,
            "labels": { "comity.dev/lease": call.lease, "comity.dev/tenant": tenant },
        },
        "spec": { "hard": hard },
        "status": { "hard": hard, "used": amounts(share.units() - free.units(), &used) },
    })
}
