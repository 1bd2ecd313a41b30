//! What the lease has, as a ResourceQuota.

use axum::Json;
use axum::extract::{Extension, Path, State};
use axum::http::HeaderMap;
use serde_json::{Map, Value, json};

use super::Site;
use crate::answers::{self, Caller, Refusal, table, wants_table};
use crate::held::Held;
use crate::leases::LeaseRecord;

/// `GET /api/v1/namespaces/{namespace}/resourcequotas`.
pub(super) async fn list(
    State(site): State<Site>,
    Path(namespace): Path<String>,
    Extension(caller): Extension<Caller>,
    headers: HeaderMap,
) -> Result<Json<Value>, Refusal> {
    caller.check(&namespace)?;
    Ok(answer(&site, &caller, &headers, |quota| answers::list("ResourceQuota", vec![quota], 1)))
}

/// `GET /api/v1/namespaces/{namespace}/resourcequotas/gpus`.
pub(super) async fn get(
    State(site): State<Site>,
    Path(namespace): Path<String>,
    Extension(caller): Extension<Caller>,
    headers: HeaderMap,
) -> Result<Json<Value>, Refusal> {
    caller.check(&namespace)?;
    Ok(answer(&site, &caller, &headers, |quota| quota))
}

/// The caller's quota as a table if that is asked for, else as `form` says.
fn answer(site: &Site, caller: &Caller, headers: &HeaderMap, form: impl Fn(Value) -> Value) -> Json<Value> {
    let quota = quota(site, caller);
    if !wants_table(headers) {
        return Json(form(quota));
    }
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let parts = |of_requests: bool| {
        let hard = quota["status"]["hard"].as_object().into_iter().flatten();
        let hard = hard.filter(|(name, _)| name.starts_with("requests.") == of_requests);
        let part =
            |(name, most): (&String, _)| format!("{name}: {}/{}", text(&quota["status"]["used"][name]), text(most));
        Value::from(hard.map(part).collect::<Vec<_>>().join(", "))
    };
    Json(table(&["Name", "Request", "Limit"], &[(vec!["gpus".into(), parts(true), parts(false)], &quota)], None))
}

fn quota(site: &Site, caller: &Caller) -> Value {
    let LeaseRecord { tenant, namespace, resource, gpus, share, .. } = &caller.record;
    let pods = site.host.as_ref().map(|host| host.book.of_lease(caller.lease).1).unwrap_or_default();
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
        devices: std::collections::BTreeMap::new(),
    };
    let hard = amounts(*gpus, share);
    json!({
        "kind": "ResourceQuota", "apiVersion": "v1",
        "metadata": {
            "name": "gpus", "namespace": namespace,
            "labels": { "comity.dev/lease": caller.lease, "comity.dev/tenant": tenant },
        },
        "spec": { "hard": hard },
        "status": { "hard": hard, "used": amounts(share.units() - free.units(), &used) },
    })
}
