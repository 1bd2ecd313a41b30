//! One HTTP request as a call: its procedure, where its message is, and how long it may take.

use std::time::Duration;

use http::header::{ACCEPT, ACCEPT_ENCODING, ALLOW, CONTENT_ENCODING, CONTENT_TYPE, HeaderName};
use http::request::Parts;
use http::{HeaderMap, Method, StatusCode};
use prost_reflect::MethodDescriptor;
use tonic::Code;

use crate::api::http::connect_error::Refused;
use crate::api::http::other_site;
use crate::api::http::procedures::{Procedures, Shape};

/// Path of the API's description.
pub const OPENAPI_PATH: &str = "/openapi.json";
/// Media type of server-sent events.
pub const EVENT_STREAM: &str = "text/event-stream";
/// Media types of gRPC begin with this.
const GRPC: &str = "application/grpc";
/// Media types of messages, as a refusal lists them.
const ACCEPTED: &str = "application/json, application/proto";
/// What curl sends unless it is told otherwise.
const FORM: &str = "application/x-www-form-urlencoded";

const PROTOCOL_VERSION: HeaderName = HeaderName::from_static("connect-protocol-version");
const TIMEOUT: HeaderName = HeaderName::from_static("connect-timeout-ms");
const LAST_EVENT: HeaderName = HeaderName::from_static("last-event-id");
/// Maximum digits of a timeout, as Connect defines it.
const TIMEOUT_DIGITS: usize = 10;

/// What a request asks for.
#[derive(Debug)]
pub enum HttpTarget {
    /// The description of the API.
    OpenApi,
    /// A call.
    Call(HttpCall),
}

/// A call over HTTP.
#[derive(Debug)]
pub struct HttpCall {
    /// The procedure.
    pub method: MethodDescriptor,
    /// Whether events answer it.
    pub shape: Shape,
    /// Where its message is.
    pub source: MessageSource,
    /// Time until it is answered, or until its events begin.
    pub timeout: Duration,
    /// The last event that the client has.
    pub last_event: Option<u64>,
}

/// Where the message of a call is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum MessageSource {
    /// The body, in JSON.
    Json,
    /// The body, in protobuf's binary form. The answer has the same form.
    Proto,
    /// The query of the URL.
    Query(String),
}

/// Whether a request is gRPC, which needs no conversion.
#[must_use]
pub fn is_grpc(headers: &HeaderMap) -> bool {
    // Not gRPC-Web, whose type begins with the same word.
    let rest = text(headers, &CONTENT_TYPE).and_then(|media| media.strip_prefix(GRPC));
    rest.is_some_and(|rest| rest.is_empty() || rest.starts_with(['+', ';']))
}

impl HttpTarget {
    /// Reads method, path and headers. `longest`: the timeout of calls that set none.
    ///
    /// # Errors
    /// [`Refused`] for a request that is no call.
    pub fn of(request: &Parts, longest: Duration) -> Result<Self, Refused> {
        let path = request.uri.path();
        if path == OPENAPI_PATH {
            return if request.method == Method::GET { Ok(Self::OpenApi) } else { Err(wrong_method("GET")) };
        }
        other_site::refuse(request)?;
        let Some(method) = Procedures::all().find(path) else {
            let reason = format!("this broker has no procedure at {path:?}");
            let remedy = "see the paths in /openapi.json; the broker may be older than the client";
            return Err(Refused::new(Code::Unimplemented, reason, remedy).with_http(StatusCode::NOT_FOUND));
        };
        let headers = &request.headers;
        let shape = Shape::of(method);
        let source = match (shape, &request.method) {
            (Shape::GrpcOnly, _) => {
                let reason = format!("{} streams both ways", method.full_name());
                return Err(Refused::new(Code::Unimplemented, reason, "call it with gRPC"));
            }
            (Shape::Unary | Shape::Events, &Method::POST) => body_form(request)?,
            (Shape::Events, &Method::GET) => MessageSource::Query(request.uri.query().unwrap_or_default().to_owned()),
            (Shape::Unary, _) => return Err(wrong_method("POST")),
            (Shape::Events, _) => return Err(wrong_method("GET, POST")),
        };
        if shape == Shape::Events && !accepts_events(headers) {
            let reason = format!("{} answers with {EVENT_STREAM}", method.full_name());
            let refused = Refused::new(Code::InvalidArgument, reason, "send the header `Accept: text/event-stream`");
            return Err(refused.with_http(StatusCode::NOT_ACCEPTABLE));
        }
        check_protocol(headers)?;
        let timeout = timeout(headers)?.map_or(longest, |asked| asked.min(longest));
        let last_event = number(headers, &LAST_EVENT, "is no revision")?;
        Ok(Self::Call(HttpCall { method: method.clone(), shape, source, timeout, last_event }))
    }
}

fn text<'a>(headers: &'a HeaderMap, name: &HeaderName) -> Option<&'a str> {
    headers.get(name).and_then(|value| value.to_str().ok())
}

fn wrong_method(allowed: &'static str) -> Refused {
    let refused = Refused::new(Code::Unimplemented, format!("the method must be {allowed}"), "use another HTTP method");
    refused.with_http(StatusCode::METHOD_NOT_ALLOWED).accepting(ALLOW, allowed)
}

fn body_form(request: &Parts) -> Result<MessageSource, Refused> {
    let media = request.headers.get(CONTENT_TYPE).map(|value| value.to_str().unwrap_or_default());
    let essence = media.map(|media| media.split(';').next().unwrap_or_default().trim().to_ascii_lowercase());
    // A page can make a browser send a form without asking the server first.
    let by_browser = other_site::is_by_browser(request);
    match essence.as_deref() {
        Some("application/json") => Ok(MessageSource::Json),
        Some("application/proto") => Ok(MessageSource::Proto),
        None | Some(FORM) if !by_browser => Ok(MessageSource::Json),
        _ => {
            let reason = format!("the content type {:?} is not supported", media.unwrap_or_default());
            let refused =
                Refused::new(Code::InvalidArgument, reason, "send the header `Content-Type: application/json`");
            let accept_post = HeaderName::from_static("accept-post");
            Err(refused.with_http(StatusCode::UNSUPPORTED_MEDIA_TYPE).accepting(accept_post, ACCEPTED))
        }
    }
}

fn accepts_events(headers: &HeaderMap) -> bool {
    text(headers, &ACCEPT).is_none_or(|accept| {
        let mut types = accept.split(',').map(|media| media.split(';').next().unwrap_or_default().trim());
        types.any(|media| [EVENT_STREAM, "text/*", "*/*"].contains(&media))
    })
}

fn check_protocol(headers: &HeaderMap) -> Result<(), Refused> {
    if let Some(version) = text(headers, &PROTOCOL_VERSION).filter(|version| *version != "1") {
        let reason = format!("connect-protocol-version {version:?} is not supported");
        return Err(Refused::new(Code::InvalidArgument, reason, "use version 1"));
    }
    if let Some(encoding) = text(headers, &CONTENT_ENCODING).filter(|encoding| *encoding != "identity") {
        let reason = format!("content-encoding {encoding:?} is not supported");
        let refused = Refused::new(Code::Unimplemented, reason, "send the body without compression");
        return Err(refused.accepting(ACCEPT_ENCODING, "identity"));
    }
    Ok(())
}

fn timeout(headers: &HeaderMap) -> Result<Option<Duration>, Refused> {
    if text(headers, &TIMEOUT).is_some_and(|value| value.len() > TIMEOUT_DIGITS) {
        let reason = format!("connect-timeout-ms has more than {TIMEOUT_DIGITS} digits");
        return Err(Refused::new(Code::InvalidArgument, reason, "give milliseconds"));
    }
    Ok(number(headers, &TIMEOUT, "is no number of milliseconds")?.map(Duration::from_millis))
}

fn number(headers: &HeaderMap, name: &HeaderName, otherwise: &str) -> Result<Option<u64>, Refused> {
    let Some(value) = headers.get(name) else { return Ok(None) };
    let text = value.to_str().unwrap_or_default();
    let digits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    match text.parse() {
        Ok(number) if digits => Ok(Some(number)),
        _ => {
            let reason = format!("{name} {:?} {otherwise}", text.chars().take(40).collect::<String>());
            Err(Refused::new(Code::InvalidArgument, reason, "send decimal digits, or leave the header out"))
        }
    }
}

#[cfg(test)]
mod tests {
    use http::Request;

    use super::*;

    const GET_LEASE: &str = "/comity.v1.LeaseService/GetLease";
    const WATCH: &str = "/comity.v1.WatchService/Watch";
    const LONGEST: Duration = Duration::from_secs(100);

    fn target(method: &str, path: &str, headers: &[(&str, &str)]) -> Result<HttpTarget, u16> {
        let mut request = Request::builder().method(method).uri(path);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let (parts, ()) = request.body(()).expect("a request").into_parts();
        HttpTarget::of(&parts, LONGEST).map_err(|refused| refused.into_response().status().as_u16())
    }

    fn call(method: &str, path: &str, headers: &[(&str, &str)]) -> HttpCall {
        match target(method, path, headers) {
            Ok(HttpTarget::Call(call)) => call,
            other => panic!("{method} {path}: {other:?}"),
        }
    }

    #[test]
    fn curl_needs_no_header() {
        let plain = call("POST", GET_LEASE, &[("content-type", FORM), ("accept", "*/*")]);
        assert_eq!((plain.shape, plain.source, plain.timeout), (Shape::Unary, MessageSource::Json, LONGEST));
        assert_eq!(call("POST", GET_LEASE, &[]).source, MessageSource::Json);
        let watch = call("GET", "/comity.v1.WatchService/Watch?request=req-1", &[("accept", "*/*")]);
        assert_eq!(watch.source, MessageSource::Query("request=req-1".to_owned()));
    }

    #[test]
    fn headers_of_connect_are_honoured() {
        let headers = [
            ("content-type", "application/json; charset=utf-8"),
            ("connect-protocol-version", "1"),
            ("connect-timeout-ms", "2500"),
        ];
        assert_eq!(call("POST", GET_LEASE, &headers).timeout, Duration::from_millis(2_500));
        assert_eq!(call("POST", GET_LEASE, &[("connect-timeout-ms", "9999999999")]).timeout, LONGEST);
        assert_eq!(call("POST", GET_LEASE, &[("content-type", "application/proto")]).source, MessageSource::Proto);
        assert_eq!(call("GET", WATCH, &[("last-event-id", "41")]).last_event, Some(41));
    }

    #[test]
    fn a_page_of_another_site_cannot_use_a_browsers_certificate() {
        for (name, value) in [("origin", "https://elsewhere.example"), ("sec-fetch-site", "cross-site")] {
            let headers = [("content-type", "application/json"), (name, value)];
            assert_eq!(target("POST", GET_LEASE, &headers).err(), Some(403), "{name}");
            assert_eq!(target("GET", WATCH, &[(name, value)]).err(), Some(403), "{name}");
        }
        for (name, value) in [("content-type", FORM), ("content-type", "text/plain"), ("x-none", "")] {
            let headers = [(name, value), ("sec-fetch-site", "same-origin")];
            assert_eq!(target("POST", GET_LEASE, &headers).err(), Some(415), "{value}");
        }
    }

    #[test]
    fn other_requests_are_refused_with_the_status_that_says_why() {
        let refused = |method, path, headers: &[(&str, &str)]| target(method, path, headers).err();
        assert_eq!(refused("GET", GET_LEASE, &[]), Some(405));
        assert_eq!(refused("DELETE", WATCH, &[]), Some(405));
        assert_eq!(refused("POST", OPENAPI_PATH, &[]), Some(405));
        assert_eq!(refused("POST", "/comity.v1.LeaseService/Nothing", &[]), Some(404));
        assert_eq!(refused("POST", "/comity.raft.v1.TransportService/Append", &[]), Some(404));
        assert_eq!(refused("POST", "/comity.v1.AgentService/Connect", &[]), Some(501));
        assert_eq!(refused("POST", GET_LEASE, &[("content-type", "text/plain")]), Some(415));
        assert_eq!(refused("POST", GET_LEASE, &[("content-encoding", "gzip")]), Some(501));
        assert_eq!(refused("POST", WATCH, &[("accept", "application/json")]), Some(406));
        for (name, value) in [
            ("connect-protocol-version", "2"),
            ("connect-timeout-ms", "soon"),
            ("connect-timeout-ms", "+5"),
            ("connect-timeout-ms", "10000000000"),
            ("last-event-id", "-1"),
        ] {
            assert_eq!(refused("POST", WATCH, &[(name, value)]), Some(400), "{name} {value}");
        }
    }

    #[test]
    fn grpc_is_told_from_grpc_web() {
        let is = |media: &str| {
            let mut headers = HeaderMap::new();
            headers.insert(CONTENT_TYPE, media.parse().expect("a value"));
            is_grpc(&headers)
        };
        assert!(is("application/grpc") && is("application/grpc+proto"));
        assert!(!is("application/grpc-web") && !is("application/json"));
    }
}
