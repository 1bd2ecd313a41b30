//! ConfigMaps and Secrets.

use axum::Json;
use axum::body::Bytes;
use axum::extract::{Extension, Path, RawQuery, State};
use axum::http::{HeaderMap, StatusCode, header};
use serde_json::{Value, json};

use super::Site;
use super::delete_options::{delete_options, is_dry_run};
use super::object_body::stored_object;
use crate::answers::{self, Caller, Refusal, table, wants_table};
use crate::objects::{NewObject, ObjectError, ObjectKind};

/// Part of a path.
type Name = Path<(String, String)>;

/// `GET …/configmaps`, `GET …/secrets`.
pub(super) async fn list(
    State(site): State<Site>,
    Path(namespace): Path<String>,
    Extension(caller): Extension<Caller>,
    Extension(kind): Extension<ObjectKind>,
    headers: HeaderMap,
) -> Result<Json<Value>, Refusal> {
    caller.check(&namespace)?;
    let host = site.host()?;
    let items = host.objects.list(caller.lease, kind);
    let version = host.book.of_lease(caller.lease).0;
    if wants_table(&headers) {
        return Ok(Json(objects_table(&items)));
    }
    Ok(Json(answers::list(kind.name(), items, version)))
}

/// `GET …/configmaps/{name}`, `GET …/secrets/{name}`.
pub(super) async fn get(
    State(site): State<Site>,
    Path((namespace, name)): Name,
    Extension(caller): Extension<Caller>,
    Extension(kind): Extension<ObjectKind>,
    headers: HeaderMap,
) -> Result<Json<Value>, Refusal> {
    caller.check(&namespace)?;
    let object = site.host()?.objects.get(caller.lease, kind, &name);
    let object = object.ok_or_else(|| Refusal::not_found(kind.resource(), &name))?;
    if wants_table(&headers) {
        return Ok(Json(objects_table(&[object])));
    }
    Ok(Json(object))
}

/// `POST …/configmaps`, `POST …/secrets`.
pub(super) async fn create(
    State(site): State<Site>,
    Path(namespace): Path<String>,
    Extension(caller): Extension<Caller>,
    Extension(kind): Extension<ObjectKind>,
    RawQuery(query): RawQuery,
    headers: HeaderMap,
    body: Bytes,
) -> Result<(StatusCode, Json<Value>), Refusal> {
    caller.check(&namespace)?;
    let object = stored_object(&headers, &body, kind)?;
    let created = write(&site, &caller, kind, &object, |new| {
        site.host()?.objects.create(new, is_dry_run(query.as_deref())).map_err(|error| refusal(kind, &object, &error))
    });
    created.map(|object| (StatusCode::CREATED, Json(object)))
}

/// `PUT …/configmaps/{name}`, `PUT …/secrets/{name}`.
pub(super) async fn replace(
    State(site): State<Site>,
    Path((namespace, name)): Name,
    Extension(caller): Extension<Caller>,
    Extension(kind): Extension<ObjectKind>,
    RawQuery(query): RawQuery,
    headers: HeaderMap,
    body: Bytes,
) -> Result<Json<Value>, Refusal> {
    caller.check(&namespace)?;
    let object = stored_object(&headers, &body, kind)?;
    if object["metadata"]["name"] != name.as_str() {
        let message = format!("metadata.name: {} is not {name:?}, as in the path", object["metadata"]["name"]);
        return Err(Refusal::new(StatusCode::BAD_REQUEST, message));
    }
    replace_by(&site, &caller, kind, &object, query.as_deref())
}

/// `PATCH …/configmaps/{name}`, `PATCH …/secrets/{name}`: RFC 7396, and kubectl's own form, which is the same for maps.
pub(super) async fn patch(
    State(site): State<Site>,
    Path((namespace, name)): Name,
    Extension(caller): Extension<Caller>,
    Extension(kind): Extension<ObjectKind>,
    RawQuery(query): RawQuery,
    headers: HeaderMap,
    body: Bytes,
) -> Result<Json<Value>, Refusal> {
    const FORMS: [&str; 2] = ["application/merge-patch+json", "application/strategic-merge-patch+json"];
    caller.check(&namespace)?;
    let form = headers.get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
    if !FORMS.contains(&form) {
        let message = format!("the patch is of type {form:?}; use {}", FORMS.join(" or "));
        return Err(Refusal::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, message));
    }
    let patch: Value =
        serde_json::from_slice(&body).map_err(|_| Refusal::new(StatusCode::BAD_REQUEST, "the patch is no JSON"))?;
    let object = site.host()?.objects.get(caller.lease, kind, &name);
    let mut object = object.ok_or_else(|| Refusal::not_found(kind.resource(), &name))?;
    // The patched object names the version that was read: a change in between is a conflict.
    json_patch::merge(&mut object, &patch);
    object["metadata"]["name"] = name.into();
    replace_by(&site, &caller, kind, &object, query.as_deref())
}

/// `DELETE …/configmaps/{name}`, `DELETE …/secrets/{name}`.
pub(super) async fn delete(
    State(site): State<Site>,
    Path((namespace, name)): Name,
    Extension(caller): Extension<Caller>,
    Extension(kind): Extension<ObjectKind>,
    RawQuery(query): RawQuery,
    body: Bytes,
) -> Result<Json<Value>, Refusal> {
    caller.check(&namespace)?;
    let objects = &site.host()?.objects;
    let object = objects.get(caller.lease, kind, &name);
    let object = object.ok_or_else(|| Refusal::not_found(kind.resource(), &name))?;
    if !delete_options(query.as_deref(), &body)?.dry_run {
        objects.remove(caller.lease, kind, &name).map_err(|error| refusal(kind, &object, &error))?;
    }
    Ok(Json(json!({ "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success" })))
}

fn replace_by(
    site: &Site,
    caller: &Caller,
    kind: ObjectKind,
    object: &Value,
    query: Option<&str>,
) -> Result<Json<Value>, Refusal> {
    let replaced = write(site, caller, kind, object, |new| {
        site.host()?.objects.replace(new, is_dry_run(query)).map_err(|error| refusal(kind, object, &error))
    });
    replaced.map(Json)
}

fn write(
    site: &Site,
    caller: &Caller,
    kind: ObjectKind,
    object: &Value,
    write: impl FnOnce(NewObject<'_>) -> Result<Value, Refusal>,
) -> Result<Value, Refusal> {
    let host = site.host()?;
    let version = host.book.next_version();
    let written = write(NewObject { lease: caller.lease, kind, object, version })?;
    if !site.leases.contains(caller.lease) {
        // It ended in between: whoever removed its objects may not have seen this one.
        host.objects.remove_all(caller.lease).map_err(|error| refusal(kind, object, &error))?;
        return Err(Refusal::new(StatusCode::UNAUTHORIZED, "the lease has ended"));
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
        let name = |item: &Value| item["metadata"]["name"].clone();
        let count = |item: &Value| {
            ["data", "binaryData"]
                .iter()
                .filter_map(|field| item[*field].as_object())
                .map(serde_json::Map::len)
                .sum::<usize>()
        };
        (vec![name(item), count(item).to_string().into()], item)
    };
    table(&["Name", "Data"], &items.iter().map(row).collect::<Vec<_>>(), None)
}
