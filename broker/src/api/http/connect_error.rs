//! Errors in the JSON form of Connect, <https://connectrpc.com/docs/protocol#error-end-stream>.

use std::collections::BTreeMap;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD_NO_PAD;
use comity_proto::{ErrorDetails, StatusExt as _, v1};
use comity_runtime::tls::ELSEWHERE_METADATA;
use http::header::{CONTENT_TYPE, HeaderName, HeaderValue};
use http::{Response, StatusCode};
use prost::Message as _;
use serde_json::{Value, json};
use tonic::body::Body;
use tonic::{Code, Status};

use crate::api::error_answer::error_answer;

/// Media type of errors and of JSON messages.
pub const JSON: HeaderValue = HeaderValue::from_static("application/json");

/// The part of `google.rpc.Status` with further details.
#[derive(Clone, PartialEq, prost::Message)]
struct RpcStatus {
    #[prost(message, repeated, tag = "3")]
    details: Vec<prost_types::Any>,
}

/// A refusal by HTTP itself, before there is a call.
#[derive(Debug)]
pub struct Refused {
    status: Status,
    http: StatusCode,
    accepted: Option<(HeaderName, HeaderValue)>,
}

impl Refused {
    /// With the HTTP status of its code.
    #[must_use]
    pub fn new(code: Code, reason: impl Into<String>, remedy: &str) -> Self {
        let detail = v1::ErrorDetail {
            code: match code {
                Code::Unimplemented => "unimplemented",
                Code::PermissionDenied => "permission-denied",
                _ => "malformed-message",
            }
            .to_owned(),
            reason: reason.into(),
            remedy: remedy.to_owned(),
            ..v1::ErrorDetail::default()
        };
        Self { status: error_answer(code, &detail, ErrorDetails::new()), http: http_status(code), accepted: None }
    }

    /// With another HTTP status.
    #[must_use]
    pub fn with_http(self, http: StatusCode) -> Self {
        Self { http, ..self }
    }

    /// With a header that says what is accepted.
    #[must_use]
    pub fn accepting(self, header: HeaderName, value: &'static str) -> Self {
        Self { accepted: Some((header, HeaderValue::from_static(value))), ..self }
    }

    /// The response.
    #[must_use]
    pub fn into_response(self) -> Response<Body> {
        let mut refused = response(&self.status);
        *refused.status_mut() = self.http;
        refused.headers_mut().extend(self.accepted);
        refused
    }
}

/// The response to a failed call.
#[must_use]
pub fn response(status: &Status) -> Response<Body> {
    let body = Body::new(http_body_util::Full::from(to_json(status).to_string()));
    let mut response = Response::new(body);
    *response.status_mut() = http_status(status.code());
    response.headers_mut().insert(CONTENT_TYPE, JSON);
    if status.metadata().get(ELSEWHERE_METADATA).is_some() {
        response.headers_mut().insert(ELSEWHERE_METADATA, HeaderValue::from_static("1"));
    }
    response
}

/// An error as JSON.
#[must_use]
pub fn to_json(status: &Status) -> Value {
    let mut error = json!({ "code": connect_code(status.code()).0, "message": status.message() });
    let details = details(status);
    if !details.is_empty() {
        error["details"] = Value::Array(details);
    }
    error
}

fn details(status: &Status) -> Vec<Value> {
    let known = status.get_error_details();
    let detail = |any: &prost_types::Any| {
        let name = any.type_url.rsplit('/').next().unwrap_or_default();
        let mut detail = json!({ "type": name, "value": STANDARD_NO_PAD.encode(&any.value) });
        if let Some(debug) = readable(name, &known) {
            detail["debug"] = debug;
        }
        detail
    };
    RpcStatus::decode(status.details()).unwrap_or_default().details.iter().map(detail).collect()
}

/// A detail in the JSON form of its message.
fn readable(name: &str, known: &ErrorDetails) -> Option<Value> {
    match name {
        "google.rpc.ErrorInfo" => known.error_info().map(|info| {
            let metadata: BTreeMap<_, _> = info.metadata.iter().collect();
            json!({ "reason": info.reason, "domain": info.domain, "metadata": metadata })
        }),
        "google.rpc.BadRequest" => known.bad_request().map(|bad| {
            let violations = bad.field_violations.iter();
            let violations = violations.map(|one| json!({ "field": one.field, "description": one.description }));
            json!({ "fieldViolations": violations.collect::<Vec<_>>() })
        }),
        "google.rpc.RetryInfo" => {
            let delay = known.retry_info()?.retry_delay?;
            Some(json!({ "retryDelay": format!("{}s", delay.as_secs_f64()) }))
        }
        _ => None,
    }
}

/// Names and HTTP statuses of codes, as Connect defines them.
const fn connect_code(code: Code) -> (&'static str, u16) {
    match code {
        // OK is no error: a call that ends with it and without a message is broken.
        Code::Ok | Code::Internal => ("internal", 500),
        Code::Cancelled => ("canceled", 499),
        Code::Unknown => ("unknown", 500),
        Code::InvalidArgument => ("invalid_argument", 400),
        Code::DeadlineExceeded => ("deadline_exceeded", 504),
        Code::NotFound => ("not_found", 404),
        Code::AlreadyExists => ("already_exists", 409),
        Code::PermissionDenied => ("permission_denied", 403),
        Code::ResourceExhausted => ("resource_exhausted", 429),
        Code::FailedPrecondition => ("failed_precondition", 400),
        Code::Aborted => ("aborted", 409),
        Code::OutOfRange => ("out_of_range", 400),
        Code::Unimplemented => ("unimplemented", 501),
        Code::Unavailable => ("unavailable", 503),
        Code::DataLoss => ("data_loss", 500),
        Code::Unauthenticated => ("unauthenticated", 401),
    }
}

fn http_status(code: Code) -> StatusCode {
    StatusCode::from_u16(connect_code(code).1).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR)
}

/// Every code of an error, by its name in JSON.
pub fn code_names() -> impl Iterator<Item = &'static str> {
    (1..=16).map(|number| connect_code(Code::from_i32(number)).0)
}

#[cfg(test)]
mod tests {
    use comity_core::Refusal;
    use http_body_util::BodyExt as _;

    use super::*;
    use crate::api::rpc_error::RpcError;

    #[tokio::test]
    async fn a_refusal_has_its_code_its_status_and_its_detail_in_both_forms() {
        let refusal = Refusal::invalid("spec.gpus.count", 0, "is out of range", "ask for 1 to 4096");
        let response = response(&Status::from(RpcError::from(refusal)));
        assert_eq!(response.status(), StatusCode::BAD_REQUEST);
        assert_eq!(response.headers()[CONTENT_TYPE], "application/json");
        let body = response.into_body().collect().await.expect("a body").to_bytes();
        let error: Value = serde_json::from_slice(&body).expect("JSON");
        assert_eq!(error["code"], "invalid_argument");
        assert_eq!(error["message"], "spec.gpus.count \"0\" is out of range; ask for 1 to 4096");
        let detail = |name: &str| {
            let details = error["details"].as_array().expect("details").iter();
            details
                .clone()
                .find(|detail| detail["type"] == name)
                .cloned()
                .unwrap_or_else(|| panic!("no {name}: {error}"))
        };
        let info = detail("google.rpc.ErrorInfo");
        assert_eq!(info["debug"]["reason"], "INVALID_FIELD");
        assert_eq!(info["debug"]["metadata"]["remedy"], "ask for 1 to 4096");
        assert_eq!(detail("google.rpc.BadRequest")["debug"]["fieldViolations"][0]["field"], "spec.gpus.count");
    }

    #[test]
    fn details_of_google_rpc_status_are_kept() {
        let any = prost_types::Any { type_url: "type.googleapis.com/google.rpc.Help".to_owned(), value: vec![1, 2, 3] };
        let bytes = RpcStatus { details: vec![any] }.encode_to_vec();
        let error = to_json(&Status::with_details(Code::NotFound, "no lease", bytes.into()));
        assert_eq!(
            error,
            json!({
                "code": "not_found",
                "message": "no lease",
                "details": [{ "type": "google.rpc.Help", "value": "AQID" }],
            })
        );
    }
}
