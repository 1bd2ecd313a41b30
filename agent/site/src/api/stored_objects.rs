//! ConfigMaps and Secrets.

use axum::Json;
use axum::body::Bytes;
use axum::extract::{Extension, Path, State};
use axum::http::{HeaderMap, StatusCode, header};
use serde_json::{Value, json};

use super::Site;
use super::object_body::stored_object;
use crate::answers::{self, Caller, Refusal, table, wants_table};
use crate::objects::{ObjectError, ObjectKind};

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
    headers: HeaderMap,
    body: Bytes,
) -> Result<(StatusCode, Json<Value>), Refusal> {
    caller.check(&namespace)?;
    let object = stored_object(&headers, &body, kind)?;
    let host = site.host()?;
    let name = object["metadata"]["name"].as_str().unwrap_or_default();
    if host.objects.get(caller.lease, kind, name).is_some() {
        return Err(Refusal::new(StatusCode::CONFLICT, format!("{} {name:?} already exists", kind.resource())));
    }
    put(&site, &caller, kind, &object).map(|object| (StatusCode::CREATED, Json(object)))
}

/// `PUT …/configmaps/{name}`, `PUT …/secrets/{name}`; makes the object if there is none.
pub(super) async fn replace(
    State(site): State<Site>,
    Path((namespace, name)): Name,
    Extension(caller): Extension<Caller>,
    Extension(kind): Extension<ObjectKind>,
    headers: HeaderMap,
    body: Bytes,
) -> Result<Json<Value>, Refusal> {
    caller.check(&namespace)?;
    let object = stored_object(&headers, &body, kind)?;
    if object["metadata"]["name"] != name.as_str() {
        let message = format!("metadata.name: {} is not {name:?}, as in the path", object["metadata"]["name"]);
        return Err(Refusal::new(StatusCode::BAD_REQUEST, message));
    }
    put(&site, &caller, kind, &object).map(Json)
}

/// `PATCH …/configmaps/{name}`, `PATCH …/secrets/{name}`: RFC 7396, and kubectl's own form, which is the same for maps.
pub(super) async fn patch(
    State(site): State<Site>,
    Path((namespace, name)): Name,
    Extension(caller): Extension<Caller>,
    Extension(kind): Extension<ObjectKind>,
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
    json_patch::merge(&mut object, &patch);
    object["metadata"]["name"] = name.into();
    put(&site, &caller, kind, &object).map(Json)
}

/// `DELETE …/configmaps/{name}`, `DELETE …/secrets/{name}`.
pub(super) async fn delete(
    State(site): State<Site>,
    Path((namespace, name)): Name,
    Extension(caller): Extension<Caller>,
    Extension(kind): Extension<ObjectKind>,
) -> Result<Json<Value>, Refusal> {
    caller.check(&namespace)?;
    let removed = site.host()?.objects.remove(caller.lease, kind, &name).map_err(|error| refusal(&error))?;
    removed.ok_or_else(|| Refusal::not_found(kind.resource(), &name))?;
    Ok(Json(json!({ "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success" })))
}

fn put(site: &Site, caller: &Caller, kind: ObjectKind, object: &Value) -> Result<Value, Refusal> {
    let host = site.host()?;
    let version = host.book.next_version();
    host.objects.put(caller.lease, kind, object, version).map_err(|error| refusal(&error))
}

fn refusal(error: &ObjectError) -> Refusal {
    let status = match error {
        ObjectError::Invalid(_) => StatusCode::UNPROCESSABLE_ENTITY,
        ObjectError::TooMany => StatusCode::FORBIDDEN,
        ObjectError::Disk(_) => StatusCode::INTERNAL_SERVER_ERROR,
    };
    Refusal::new(status, error.to_string())
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
