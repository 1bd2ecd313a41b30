//! ConfigMaps and Secrets.

use axum::Json;
use axum::body::Bytes;
use axum::extract::{Extension, RawQuery};
use axum::http::{HeaderMap, StatusCode, header};
use serde_json::{Map, Value, json};

use super::delete_options::{delete_options, is_dry_run};
use super::lease_call::LeaseCall;
use super::object_body::stored_object;
use crate::answers::{self, Refusal, table, wants_table};
use crate::objects::{NewObject, ObjectError, ObjectKind};

/// `GET …/configmaps`, `GET …/secrets`.
pub(super) async fn list(
    call: LeaseCall,
    Extension(kind): Extension<ObjectKind>,
    headers: HeaderMap,
) -> Result<Json<Value>, Refusal> {
    let host = call.host()?;
    let items = host.objects.list(call.lease, kind);
    if wants_table(&headers) {
        return Ok(Json(objects_table(&items)));
    }
    let version = host.book.of_lease(call.lease).0;
    Ok(Json(answers::list(kind.name(), items, version)))
}

/// `GET …/configmaps/{name}`, `GET …/secrets/{name}`.
pub(super) async fn get(
    call: LeaseCall,
    Extension(kind): Extension<ObjectKind>,
    headers: HeaderMap,
) -> Result<Json<Value>, Refusal> {
    let object = present(&call, kind)?;
    Ok(Json(if wants_table(&headers) { objects_table(&[object]) } else { object }))
}

/// `POST …/configmaps`, `POST …/secrets`.
pub(super) async fn create(
    call: LeaseCall,
    Extension(kind): Extension<ObjectKind>,
    RawQuery(query): RawQuery,
    headers: HeaderMap,
    body: Bytes,
) -> Result<(StatusCode, Json<Value>), Refusal> {
    let object = stored_object(&headers, &body, kind)?;
    let created = write(&call, kind, &object, |new| {
        call.host()?.objects.create(new, is_dry_run(query.as_deref())).map_err(|error| refusal(kind, &object, &error))
    });
    created.map(|object| (StatusCode::CREATED, Json(object)))
}

/// `PUT …/configmaps/{name}`, `PUT …/secrets/{name}`.
pub(super) async fn replace(
    call: LeaseCall,
    Extension(kind): Extension<ObjectKind>,
    RawQuery(query): RawQuery,
    headers: HeaderMap,
    body: Bytes,
) -> Result<Json<Value>, Refusal> {
    let object = stored_object(&headers, &body, kind)?;
    let (given, name) = (&object["metadata"]["name"], &call.name);
    if given != name.as_str() {
        let message = format!("metadata.name: {given} is not {name:?}, as in the path");
        return Err(Refusal::new(StatusCode::BAD_REQUEST, message));
    }
    put(&call, kind, &object, query.as_deref())
}

/// `PATCH …/configmaps/{name}`, `PATCH …/secrets/{name}`: RFC 7396, and kubectl's own form, which is the same for maps.
pub(super) async fn patch(
    call: LeaseCall,
    Extension(kind): Extension<ObjectKind>,
    RawQuery(query): RawQuery,
    headers: HeaderMap,
    body: Bytes,
) -> Result<Json<Value>, Refusal> {
    const FORMS: [&str; 2] = ["application/merge-patch+json", "application/strategic-merge-patch+json"];
    let form = headers.get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
    if !FORMS.contains(&form) {
        let message = format!("the patch is of type {form:?}; use {}", FORMS.join(" or "));
        return Err(Refusal::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, message));
    }
    let patch: Value =
        serde_json::from_slice(&body).map_err(|_| Refusal::new(StatusCode::BAD_REQUEST, "the patch is no JSON"))?;
    // The patched object names the version that was read: a change in between is a conflict.
    let mut object = present(&call, kind)?;
    json_patch::merge(&mut object, &patch);
    object["metadata"]["name"] = call.name.as_str().into();
    put(&call, kind, &object, query.as_deref())
}

/// `DELETE …/configmaps/{name}`, `DELETE …/secrets/{name}`.
pub(super) async fn delete(
    call: LeaseCall,
    Extension(kind): Extension<ObjectKind>,
    RawQuery(query): RawQuery,
    body: Bytes,
) -> Result<Json<Value>, Refusal> {
    let object = present(&call, kind)?;
    if !delete_options(query.as_deref(), &body)?.dry_run {
        let removed = call.host()?.objects.remove(call.lease, kind, &call.name);
        removed.map_err(|error| refusal(kind, &object, &error))?;
    }
    Ok(Json(json!({ "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success" })))
}

/// The object that the path names.
fn present(call: &LeaseCall, kind: ObjectKind) -> Result<Value, Refusal> {
    let object = call.host()?.objects.get(call.lease, kind, &call.name);
    object.ok_or_else(|| Refusal::not_found(kind.resource(), &call.name))
}

fn put(call: &LeaseCall, kind: ObjectKind, object: &Value, query: Option<&str>) -> Result<Json<Value>, Refusal> {
    let replaced = write(call, kind, object, |new| {
        call.host()?.objects.replace(new, is_dry_run(query)).map_err(|error| refusal(kind, object, &error))
    });
    replaced.map(Json)
}

fn write(
    call: &LeaseCall,
    kind: ObjectKind,
    object: &Value,
    write: impl FnOnce(NewObject<'_>) -> Result<Value, Refusal>,
) -> Result<Value, Refusal> {
    let host = call.host()?;
    let version = host.book.next_version();
    let written = write(NewObject { lease: call.lease, kind, object, version })?;
    if let Err(ended) = call.still_runs() {
        host.objects.remove_all(call.lease).map_err(|error| refusal(kind, object, &error))?;
        return Err(ended);
    }
    Ok(written)
}

fn refusal(kind: ObjectKind, object: &Value, error: &ObjectError) -> Refusal {
    let name = object["metadata"]["name"].as_str().unwrap_or_default();
    match error {
        ObjectError::Invalid(_) => Refusal::new(StatusCode::UNPROCESSABLE_ENTITY, error.to_string()),
        ObjectError::Exists => Refusal::exists(kind.resource(), name),
        ObjectError::Missing => Refusal::not_found(kind.resource(), name),
        ObjectError::Conflict => Refusal::new(StatusCode::CONFLICT, format!("{} {name:?}: {error}", kind.resource())),
        ObjectError::TooMany => Refusal::new(StatusCode::FORBIDDEN, error.to_string()),
        ObjectError::Disk(_) => Refusal::new(StatusCode::INTERNAL_SERVER_ERROR, error.to_string()),
    }
}

fn objects_table(items: &[Value]) -> Value {
    let row = |item| {
        let entries = |field: &str, item: &Value| item[field].as_object().map_or(0, Map::len);
        let count = entries("data", item) + entries("binaryData", item);
        (vec![item["metadata"]["name"].clone(), count.to_string().into()], item)
    };
    table(&["Name", "Data"], &items.iter().map(row).collect::<Vec<_>>(), None)
}
