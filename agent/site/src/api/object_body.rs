//! Bodies of requests: JSON, and for ConfigMaps and Secrets also protobuf, in which `kubectl create` sends them.

use std::collections::BTreeMap;

use axum::http::{HeaderMap, StatusCode, header};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use prost::Message;
use serde_json::{Value, json};

use crate::answers::Refusal;
use crate::objects::ObjectKind;

const PROTOBUF: &str = "application/vnd.kubernetes.protobuf";
/// Before every message (apimachinery: `pkg/runtime/serializer/protobuf`).
const MAGIC: &[u8] = b"k8s\0";

/// `runtime.Unknown`: what is around an object.
#[derive(Clone, PartialEq, Message)]
struct Wrapper {
    #[prost(bytes = "vec", tag = "2")]
    raw: Vec<u8>,
}

/// The fields of `meta.v1.ObjectMeta` that are kept.
#[derive(Clone, PartialEq, Message)]
struct Metadata {
    #[prost(string, tag = "1")]
    name: String,
    #[prost(btree_map = "string, string", tag = "11")]
    labels: BTreeMap<String, String>,
    #[prost(btree_map = "string, string", tag = "12")]
    annotations: BTreeMap<String, String>,
}

/// `core.v1.ConfigMap`.
#[derive(Clone, PartialEq, Message)]
struct ConfigMap {
    #[prost(message, optional, tag = "1")]
    metadata: Option<Metadata>,
    #[prost(btree_map = "string, string", tag = "2")]
    data: BTreeMap<String, String>,
    #[prost(btree_map = "string, bytes", tag = "3")]
    binary_data: BTreeMap<String, Vec<u8>>,
}

/// `core.v1.Secret`.
#[derive(Clone, PartialEq, Message)]
#[prost(skip_debug)]
struct Secret {
    #[prost(message, optional, tag = "1")]
    metadata: Option<Metadata>,
    #[prost(btree_map = "string, bytes", tag = "2")]
    data: BTreeMap<String, Vec<u8>>,
    #[prost(string, tag = "3")]
    type_name: String,
    #[prost(btree_map = "string, string", tag = "4")]
    string_data: BTreeMap<String, String>,
}

/// A JSON object.
pub(super) fn json_object(headers: &HeaderMap, body: &[u8]) -> Result<Value, Refusal> {
    if is_protobuf(headers) {
        let message = "the body is protobuf, which this host reads for ConfigMaps and Secrets only; send JSON";
        return Err(Refusal::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, message));
    }
    // The error might quote a Secret.
    let object: Option<Value> = serde_json::from_slice(body).ok();
    let object = object.filter(Value::is_object);
    object.ok_or_else(|| Refusal::new(StatusCode::BAD_REQUEST, "the body is no JSON object"))
}

/// A ConfigMap or Secret, as JSON.
pub(super) fn stored_object(headers: &HeaderMap, body: &[u8], kind: ObjectKind) -> Result<Value, Refusal> {
    if !is_protobuf(headers) {
        return json_object(headers, body);
    }
    protobuf_object(body, kind).ok_or_else(|| {
        Refusal::new(StatusCode::BAD_REQUEST, format!("the body is no {} in Kubernetes' protobuf form", kind.name()))
    })
}

fn is_protobuf(headers: &HeaderMap) -> bool {
    headers.get(header::CONTENT_TYPE).is_some_and(|form| form.as_bytes().starts_with(PROTOBUF.as_bytes()))
}

fn protobuf_object(body: &[u8], kind: ObjectKind) -> Option<Value> {
    let raw = Wrapper::decode(body.strip_prefix(MAGIC)?).ok()?.raw;
    let encoded = |data: BTreeMap<String, Vec<u8>>| {
        data.into_iter().map(|(key, value)| (key, STANDARD.encode(value))).collect::<BTreeMap<_, _>>()
    };
    let (metadata, mut object) = match kind {
        ObjectKind::ConfigMap => {
            let map = ConfigMap::decode(raw.as_slice()).ok()?;
            (map.metadata, json!({ "data": map.data, "binaryData": encoded(map.binary_data) }))
        }
        ObjectKind::Secret => {
            let secret = Secret::decode(raw.as_slice()).ok()?;
            let mut object = json!({ "data": encoded(secret.data), "stringData": secret.string_data });
            if !secret.type_name.is_empty() {
                object["type"] = secret.type_name.into();
            }
            (secret.metadata, object)
        }
    };
    let Metadata { name, labels, annotations } = metadata?;
    object["metadata"] = json!({ "name": name, "labels": labels, "annotations": annotations });
    Some(object)
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use comity_fuzz::fuzz;

    use super::*;

    /// As kubectl 1.34 sent it for `create secret generic s --from-literal=a=1`.
    const SECRET: &[u8] = b"k8s\0\n\x0c\n\x02v1\x12\x06Secret\x12\x1d\n\x11\n\x01s\x12\0\x1a\0\"\0*\x002\08\0B\0\x12\x06\n\x01a\x12\x011\x1a\0\x1a\0\"\0";

    #[test]
    fn what_kubectl_creates_is_read() {
        let object = protobuf_object(SECRET, ObjectKind::Secret).unwrap();
        assert_eq!((object["metadata"]["name"].as_str(), object["data"]["a"].as_str()), (Some("s"), Some("MQ==")));
        assert!(protobuf_object(&SECRET[1..], ObjectKind::Secret).is_none());
        let mut headers = HeaderMap::new();
        headers.insert(header::CONTENT_TYPE, PROTOBUF.parse().unwrap());
        assert!(json_object(&headers, b"{}").is_err() && json_object(&HeaderMap::new(), b"[]").is_err());
    }

    #[test]
    fn objects_in_protobuf() {
        fuzz!("site_object", vec![SECRET.to_vec()], |bytes: &[u8]| {
            let read = |kind| protobuf_object(bytes, kind).is_some();
            read(ObjectKind::Secret) | read(ObjectKind::ConfigMap)
        });
    }
}
