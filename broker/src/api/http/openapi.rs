//! The description of the API as an OpenAPI 3.1 document, made from the descriptors and their comments.

mod proto_comments;
mod schema;

use std::sync::LazyLock;

use bytes::Bytes;
use prost_reflect::MethodDescriptor;
use serde_json::{Map, Value, json};

use crate::api::http::call::EVENT_STREAM;
use crate::api::http::connect_error::code_names;
use crate::api::http::openapi::proto_comments::ProtoComments;
use crate::api::http::openapi::schema::Schemas;
use crate::api::http::procedures::{Procedures, Shape};

/// Name of the schema of errors.
const ERROR: &str = "connect.Error";

static DOCUMENT: LazyLock<Bytes> = LazyLock::new(|| build().to_string().into());

/// The document as JSON.
#[must_use]
pub fn document() -> Bytes {
    DOCUMENT.clone()
}

fn build() -> Value {
    let comments = ProtoComments::of(Procedures::all().pool());
    let mut schemas = Schemas::new(&comments);
    let mut paths = Map::new();
    let mut tags = Vec::new();
    for (path, method) in Procedures::all().iter() {
        let shape = Shape::of(method);
        if shape == Shape::GrpcOnly {
            continue;
        }
        let service = method.parent_service();
        let tag = json!({ "name": service.name(), "description": comments.of_service(service) });
        if tags.last() != Some(&tag) {
            tags.push(tag);
        }
        let mut operations = json!({ "post": post(method, shape, &comments, &mut schemas) });
        if shape == Shape::Events {
            operations["get"] = get(method, &comments, &mut schemas);
        }
        paths.insert(path.to_owned(), operations);
    }
    let detail = schemas.reference_to("comity.v1.ErrorDetail");
    schemas.add(ERROR, error(detail));
    json!({
        "openapi": "3.1.0",
        "info": {
            "title": "Comity",
            "version": "v1",
            "description": "The API of a Comity broker as JSON over HTTP. The unary calls are Connect's protocol \
                (https://connectrpc.com/docs/protocol); the same port serves gRPC.",
            "license": { "name": "Apache-2.0", "identifier": "Apache-2.0" },
        },
        "servers": [{
            "url": "https://{broker}",
            "variables": { "broker": { "default": "localhost:7443", "description": "Address of a broker." } },
        }],
        "security": [{ "certificate": [] }, {}],
        "tags": tags,
        "paths": paths,
        "components": {
            "securitySchemes": { "certificate": {
                "type": "mutualTLS",
                "description": "A certificate of the federation. Calls that anybody may make need none.",
            } },
            "schemas": schemas.into_components(),
        },
    })
}

/// The parts that GET and POST of a procedure share.
fn operation(method: &MethodDescriptor, shape: Shape, comments: &ProtoComments, schemas: &mut Schemas<'_>) -> Value {
    let output = schemas.reference(&method.output());
    let (media, answer) = match shape {
        Shape::Events => {
            let description = "Server-sent events. `event` is the field that is set, `data` the message, and `id` the \
                revision from which a client resumes. An event `error` holds the error that ends the stream.";
            (EVENT_STREAM, json!({ "schema": { "type": "string", "description": description }, "x-message": output }))
        }
        Shape::Unary | Shape::GrpcOnly => ("application/json", json!({ "schema": output })),
    };
    json!({
        "tags": [method.parent_service().name()],
        "description": comments.of_method(method),
        "responses": {
            "200": { "description": comments.of_message(&method.output()), "content": { media: answer } },
            "default": {
                "description": "The call failed.",
                "content": { "application/json": { "schema": Schemas::named(ERROR) } },
            },
        },
    })
}

fn post(method: &MethodDescriptor, shape: Shape, comments: &ProtoComments, schemas: &mut Schemas<'_>) -> Value {
    let mut operation = operation(method, shape, comments, schemas);
    operation["operationId"] = json!(method.name());
    let schema = schemas.reference(&method.input());
    operation["requestBody"] = json!({ "required": true, "content": { "application/json": { "schema": schema } } });
    operation
}

fn get(method: &MethodDescriptor, comments: &ProtoComments, schemas: &mut Schemas<'_>) -> Value {
    let mut operation = operation(method, Shape::Events, comments, schemas);
    operation["operationId"] = json!(format!("{}ByGet", method.name()));
    let input = method.input();
    let fields = input.fields().map(|field| {
        json!({
            "name": field.json_name(),
            "in": "query",
            "description": comments.of_field(&field),
            "schema": schemas.of_kind(&field.kind()),
        })
    });
    let mut parameters: Vec<Value> = fields.collect();
    parameters.push(json!({
        "name": "Last-Event-ID",
        "in": "header",
        "description": "Id of the last event that the client has. It replaces `fromRevision`.",
        "schema": { "type": "string", "format": "uint64" },
    }));
    operation["parameters"] = Value::Array(parameters);
    operation
}

fn error(detail: Value) -> Value {
    json!({
        "type": "object",
        "description": "An error in the form of Connect.",
        "required": ["code", "message"],
        "properties": {
            "code": { "type": "string", "enum": code_names().collect::<Vec<_>>() },
            "message": { "type": "string", "description": "Reason and remedy, for people." },
            "details": {
                "type": "array",
                "description": "The first one is a comity.v1.ErrorDetail.",
                "items": {
                    "type": "object",
                    "required": ["type", "value"],
                    "properties": {
                        "type": { "type": "string", "description": "Name of the message." },
                        "value": {
                            "type": "string",
                            "contentEncoding": "base64",
                            "description": "The message in its binary form.",
                        },
                        "debug": { "description": "The message as JSON.", "anyOf": [detail, {}] },
                    },
                },
            },
        },
    })
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    #[test]
    fn the_document_in_the_book_is_current() {
        let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/openapi.json");
        let built = build();
        if std::env::var_os("COMITY_WRITE_GOLDEN").is_some() {
            std::fs::write(&file, format!("{built:#}\n")).expect("docs/openapi.json can be written");
        }
        let text = std::fs::read_to_string(&file).unwrap_or_default();
        let kept: Value = serde_json::from_str(&text).unwrap_or_default();
        assert!(
            kept == built,
            "docs/openapi.json is stale; write it with \
             `COMITY_WRITE_GOLDEN=1 cargo test -p comity-broker --lib http::openapi`"
        );
    }

    #[test]
    fn every_reference_leads_to_a_schema() {
        fn references<'a>(value: &'a Value, found: &mut Vec<&'a str>) {
            match value {
                Value::Object(fields) => {
                    found.extend(fields.get("$ref").and_then(Value::as_str));
                    fields.values().for_each(|value| references(value, found));
                }
                Value::Array(items) => items.iter().for_each(|value| references(value, found)),
                _ => {}
            }
        }
        let document = build();
        let mut found = Vec::new();
        references(&document, &mut found);
        assert!(found.len() > 100, "{} references", found.len());
        for reference in found {
            let pointer = reference.strip_prefix('#').expect("within the document");
            assert!(document.pointer(pointer).is_some(), "{reference}");
        }
    }

    #[test]
    fn procedures_have_the_words_of_their_protos() {
        let document = build();
        let get_lease = &document["paths"]["/comity.v1.LeaseService/GetLease"]["post"];
        assert_eq!(get_lease["description"], "Reads one lease.");
        let watch = &document["paths"]["/comity.v1.WatchService/Watch"];
        assert_eq!(watch["get"]["parameters"][0]["name"], "fromRevision");
        assert!(watch["post"]["responses"]["200"]["content"].get(EVENT_STREAM).is_some());
        assert!(document["paths"].get("/comity.v1.AgentService/Connect").is_none());
        let schemas = &document["components"]["schemas"];
        assert_eq!(schemas["comity.v1.Lease"]["properties"]["fencingToken"]["format"], "uint64");
        let state = &schemas["comity.v1.LeaseState"];
        assert_eq!(state["enum"][3], "LEASE_STATE_ACTIVE");
        assert!(state["description"].as_str().is_some_and(|text| text.contains("- `LEASE_STATE_ACTIVE`: The origin")));
    }
}
