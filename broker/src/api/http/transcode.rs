//! Serves HTTP requests that are not gRPC by calls of the gRPC services.

use std::pin::Pin;
use std::task::{Context as TaskContext, Poll};
use std::time::Duration;

use bytes::Bytes;
use comity_runtime::tls::PeerInfo;
use http::header::{CONTENT_TYPE, HeaderValue};
use http::{Method, Request, Response, Version};
use tonic::body::Body;
use tonic::{Code, Status};
use tower::{Layer, Service, ServiceExt as _};

use crate::api::http::call::{HttpCall, HttpTarget, MessageSource, is_grpc};
use crate::api::http::connect_error::JSON;
use crate::api::http::grpc_frames::FrameReader;
use crate::api::http::procedures::Shape;
use crate::api::http::request_body::{BodyLimit, Start, grpc_body, grpc_headers};
use crate::api::http::{connect_error, event_stream, json_message, openapi, other_site};
use crate::api::rpc::MAX_AGENT_MESSAGE_BYTES;
use crate::api::rpc::explain_failure::explained;
use crate::api::rpc::peer_limit::PeerShares;

/// Maximum bytes of an answer before its conversion: the largest offer, with room to spare.
const MAX_ANSWER_BYTES: usize = MAX_AGENT_MESSAGE_BYTES;

/// Converts between HTTP and gRPC. Must be outside of all layers that see gRPC, so that they apply to
/// converted calls.
#[derive(Debug, Clone)]
pub struct TranscodeLayer {
    /// Timeout of calls that set none, and the longest that they can set.
    pub timeout: Duration,
    /// Charged for requests that become no calls.
    pub shares: PeerShares,
}

impl<S> Layer<S> for TranscodeLayer {
    type Service = Transcode<S>;
    fn layer(&self, inner: S) -> Transcode<S> {
        Transcode { inner, timeout: self.timeout, shares: self.shares.clone() }
    }
}

/// Service of [`TranscodeLayer`].
#[derive(Debug, Clone)]
pub struct Transcode<S> {
    inner: S,
    timeout: Duration,
    shares: PeerShares,
}

impl<S> Service<Request<Body>> for Transcode<S>
where
    S: Service<Request<Body>, Response = Response<Body>> + Clone + Send + 'static,
    S::Future: Send + 'static,
    S::Error: Send + 'static,
{
    type Response = Response<Body>;
    type Error = S::Error;
    type Future = Pin<Box<dyn Future<Output = Result<Response<Body>, S::Error>> + Send>>;

    fn poll_ready(&mut self, cx: &mut TaskContext<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        if is_grpc(request.headers()) {
            let (parts, body) = request.into_parts();
            if let Err(refused) = other_site::refuse(&parts) {
                let shares = self.shares.clone();
                return Box::pin(async move {
                    shares.hold_answer(parts.extensions.get()).await;
                    Ok(refused.into_response())
                });
            }
            return Box::pin(self.inner.call(Request::from_parts(parts, body)));
        }
        let (inner, timeout, shares) = (self.inner.clone(), self.timeout, self.shares.clone());
        Box::pin(serve(inner, timeout, shares, request))
    }
}

async fn serve<S>(
    inner: S,
    longest: Duration,
    shares: PeerShares,
    request: Request<Body>,
) -> Result<Response<Body>, S::Error>
where
    S: Service<Request<Body>, Response = Response<Body>>,
{
    let (mut parts, body) = request.into_parts();
    let call = match HttpTarget::of(&parts, longest) {
        Ok(HttpTarget::Call(call)) => call,
        Ok(HttpTarget::OpenApi) => {
            shares.hold_answer(parts.extensions.get()).await;
            return Ok(success(JSON, openapi::document()));
        }
        Err(refused) => {
            shares.hold_answer(parts.extensions.get()).await;
            return Ok(refused.into_response());
        }
    };
    let start = Start::default();
    let is_certified = parts.extensions.get::<PeerInfo>().is_some_and(|peer| peer.spiffe.is_some());
    let limit = if is_certified { BodyLimit::Certified } else { BodyLimit::Anonymous };
    let body = grpc_body(&call, body, limit, start.clone());
    parts.method = Method::POST;
    parts.version = Version::HTTP_2;
    parts.headers = grpc_headers(parts.headers);
    let request = Request::from_parts(parts, body);
    let answered = async { Ok(answer(&call, &start, inner.oneshot(request).await?).await) };
    match tokio::time::timeout(call.timeout, answered).await {
        Ok(response) => response,
        Err(_) => {
            let reason = format!("the call took longer than {} ms", call.timeout.as_millis());
            Ok(connect_error::response(&explained(Status::deadline_exceeded(reason))))
        }
    }
}

/// Converts the response to a call.
async fn answer(call: &HttpCall, start: &Start, response: Response<Body>) -> Response<Body> {
    if let Some(status) = Status::from_header_map(response.headers())
        && status.code() != Code::Ok
    {
        return connect_error::response(&status);
    }
    let mut frames = FrameReader::new(response.into_body(), MAX_ANSWER_BYTES);
    if call.shape == Shape::Events {
        return event_stream::response(frames, call.method.output(), start.revision());
    }
    match only_message(&mut frames).await.and_then(|message| encode(call, message)) {
        Ok((media, body)) => success(media, body),
        Err(status) => connect_error::response(&status),
    }
}

async fn only_message(frames: &mut FrameReader) -> Result<Bytes, Status> {
    let message = frames.next().await?.ok_or_else(|| Status::internal("the call has no answer"))?;
    match frames.next().await? {
        None => Ok(message),
        Some(_) => Err(Status::internal("the call has several answers")),
    }
}

fn encode(call: &HttpCall, message: Bytes) -> Result<(HeaderValue, Bytes), Status> {
    match call.source {
        MessageSource::Proto => Ok((HeaderValue::from_static("application/proto"), message)),
        MessageSource::Json | MessageSource::Query(_) => {
            Ok((JSON, json_message::encode(call.method.output(), &message)?.into()))
        }
    }
}

fn success(media: HeaderValue, body: Bytes) -> Response<Body> {
    let mut response = Response::new(Body::new(http_body_util::Full::from(body)));
    response.headers_mut().insert(CONTENT_TYPE, media);
    response
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;
    use std::sync::Arc;

    use comity_core::Refusal;
    use comity_proto::v1;
    use comity_proto::v1::lease_service_server::{LeaseService, LeaseServiceServer};
    use comity_runtime::clock::{ManualClock, SystemClock};
    use futures::FutureExt as _;
    use http::StatusCode;
    use http_body_util::BodyExt as _;
    use prost::Message as _;
    use serde_json::{Value, json};
    use tonic::service::Routes;

    use super::*;
    use crate::api::http::call::OPENAPI_PATH;
    use crate::api::rpc::MAX_USER_MESSAGE_BYTES;
    use crate::api::rpc::explain_failure::ExplainFailureLayer;
    use crate::api::rpc::peer_limit::PeerLimitLayer;
    use crate::api::rpc_error::RpcError;
    use crate::api::shares::call_pace::kernel_thread_time;

    /// Knows `lease-1`; shows the caller's address and a header in its message. Renewals take forever.
    struct Leases;

    type Answer<T> = Result<tonic::Response<T>, Status>;

    #[tonic::async_trait]
    impl LeaseService for Leases {
        async fn get_lease(&self, request: tonic::Request<v1::GetLeaseRequest>) -> Answer<v1::GetLeaseResponse> {
            let peer = request.extensions().get::<PeerInfo>().map(|peer| peer.remote_addr.to_string());
            let header = request.metadata().get("x-test").and_then(|value| value.to_str().ok());
            let message = format!("{} {}", peer.unwrap_or_default(), header.unwrap_or_default());
            let id = request.get_ref().lease.clone();
            if id != "lease-1" {
                let refusal = Refusal::invalid("lease", &id, "is not a lease", "list the leases that exist");
                return Err(RpcError::from(refusal).into());
            }
            let lease = v1::Lease { id, message, ..v1::Lease::default() };
            Ok(tonic::Response::new(v1::GetLeaseResponse { lease: Some(lease) }))
        }

        async fn list_leases(&self, _: tonic::Request<v1::ListLeasesRequest>) -> Answer<v1::ListLeasesResponse> {
            let lease = v1::Lease { message: "x".repeat(MAX_ANSWER_BYTES), ..v1::Lease::default() };
            Ok(tonic::Response::new(v1::ListLeasesResponse { leases: vec![lease], page: None }))
        }

        async fn release_lease(&self, _: tonic::Request<v1::ReleaseLeaseRequest>) -> Answer<v1::ReleaseLeaseResponse> {
            Err(Status::unimplemented(""))
        }

        async fn renew_lease(&self, _: tonic::Request<v1::RenewLeaseRequest>) -> Answer<v1::RenewLeaseResponse> {
            std::future::pending().await
        }

        async fn checkpoint_lease(
            &self,
            _: tonic::Request<v1::CheckpointLeaseRequest>,
        ) -> Answer<v1::CheckpointLeaseResponse> {
            Err(Status::unimplemented(""))
        }
    }

    async fn send(request: Request<Body>) -> (StatusCode, Bytes) {
        let clock = SystemClock::new();
        send_within(&PeerLimitLayer::new(Arc::new(clock), kernel_thread_time).shares(), request).await
    }

    async fn send_within(shares: &PeerShares, request: Request<Body>) -> (StatusCode, Bytes) {
        let leases = LeaseServiceServer::new(Leases).max_decoding_message_size(MAX_USER_MESSAGE_BYTES);
        let layers = tower::ServiceBuilder::new()
            .layer(TranscodeLayer { timeout: Duration::from_secs(100), shares: shares.clone() })
            .layer(ExplainFailureLayer);
        let response: Result<_, Infallible> = layers.service(Routes::new(leases)).oneshot(request).await;
        let (parts, body) = response.expect("infallible").into_parts();
        (parts.status, body.collect().await.expect("a body").to_bytes())
    }

    fn post(procedure: &str, body: impl Into<Bytes>) -> Request<Body> {
        let body = Body::new(http_body_util::Full::from(body.into()));
        let request = Request::post(format!("/comity.v1.LeaseService/{procedure}"));
        request.header(CONTENT_TYPE, "application/json").body(body).expect("a request")
    }

    async fn send_json(procedure: &str, body: impl Into<Bytes>) -> (u16, Value) {
        let (status, body) = send(post(procedure, body)).await;
        (status.as_u16(), serde_json::from_slice(&body).expect("JSON"))
    }

    #[tokio::test]
    async fn a_call_keeps_its_caller_and_its_headers() {
        let mut request = post("GetLease", r#"{"lease": "lease-1"}"#);
        let remote_addr = "192.0.2.1:9".parse().expect("an address");
        request.extensions_mut().insert(PeerInfo::anonymous(remote_addr));
        request.headers_mut().insert("x-test", HeaderValue::from_static("kept"));
        let (status, body) = send(request).await;
        assert_eq!(status, StatusCode::OK);
        let body: Value = serde_json::from_slice(&body).expect("JSON");
        assert_eq!(body, json!({ "lease": { "id": "lease-1", "message": "192.0.2.1:9 kept" } }));
    }

    #[tokio::test]
    async fn the_binary_form_is_answered_in_the_binary_form() {
        let message = v1::GetLeaseRequest { lease: "lease-1".to_owned(), consistency: 0 };
        let mut request = post("GetLease", message.encode_to_vec());
        request.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/proto"));
        let (status, body) = send(request).await;
        assert_eq!(status, StatusCode::OK);
        let answer = v1::GetLeaseResponse::decode(body).expect("a message");
        assert_eq!(answer.lease.expect("a lease").id, "lease-1");
    }

    #[tokio::test]
    async fn refusals_of_services_and_of_the_conversion_look_alike() {
        let (status, error) = send_json("GetLease", "").await;
        assert_eq!((status, &error["details"][0]["debug"]["reason"]), (400, &json!("INVALID_FIELD")));
        let (status, error) = send_json("GetLease", r#"{"leese": "lease-1"}"#).await;
        assert_eq!((status, &error["code"]), (400, &json!("invalid_argument")));
        assert_eq!(error["message"], "the message has no field \"leese\"; see the call's schema in /openapi.json");
        assert_eq!(error["details"][0]["debug"]["metadata"]["field"], "leese");
        let (status, error) = send_json("ReleaseLease", "{}").await;
        assert_eq!((status, &error["details"][0]["debug"]["reason"]), (501, &json!("UNIMPLEMENTED")));
    }

    #[tokio::test]
    async fn bodies_and_answers_are_bounded() {
        let (status, error) = send_json("GetLease", vec![b' '; MAX_USER_MESSAGE_BYTES + 1]).await;
        assert_eq!((status, &error["details"][0]["debug"]["reason"]), (429, &json!("MESSAGE_TOO_LARGE")));
        let (status, error) = send_json("ListLeases", "{}").await;
        assert_eq!((status, &error["details"][0]["debug"]["reason"]), (429, &json!("MESSAGE_TOO_LARGE")));
    }

    #[tokio::test]
    async fn only_callers_with_a_certificate_may_send_large_bodies() {
        let large = || post("GetLease", " ".repeat(70_000) + r#"{"lease": "lease-1"}"#);
        assert_eq!(send(large()).await.0, StatusCode::TOO_MANY_REQUESTS);
        let mut certified = large();
        let spiffe = Some("spiffe://dev.test/user/alice".parse().expect("an id"));
        let remote_addr = "192.0.2.1:9".parse().expect("an address");
        certified.extensions_mut().insert(PeerInfo { spiffe, ..PeerInfo::anonymous(remote_addr) });
        assert_eq!(send(certified).await.0, StatusCode::OK);
    }

    #[tokio::test(start_paused = true)]
    async fn a_call_ends_at_its_timeout() {
        let mut request = post("RenewLease", "{}");
        request.headers_mut().insert("connect-timeout-ms", HeaderValue::from_static("250"));
        let began = tokio::time::Instant::now();
        assert_eq!(send(request).await.0, StatusCode::GATEWAY_TIMEOUT);
        // The clock of tests advances by whole milliseconds.
        assert!((250..255).contains(&began.elapsed().as_millis()), "{:?}", began.elapsed());
        assert_eq!(send(post("RenewLease", "{}")).await.0, StatusCode::GATEWAY_TIMEOUT);
        assert_eq!(began.elapsed().as_secs(), 100);
    }

    #[tokio::test]
    async fn requests_that_become_no_calls_are_charged_to_who_sends_them() {
        let clock = ManualClock::at_unix_ms(0);
        let shares = PeerLimitLayer::new(Arc::new(clock), |_| Duration::ZERO).shares();
        let at_once = |path: &str, last: u8| {
            let request = || {
                let mut request = Request::get(path).body(Body::empty()).expect("a request");
                request.extensions_mut().insert(PeerInfo::anonymous(([192, 0, 2, last], 1).into()));
                request
            };
            (0..600).filter(|_| send_within(&shares, request()).now_or_never().is_some()).count()
        };
        assert_eq!(at_once("/nothing", 1), 500);
        assert_eq!(at_once(OPENAPI_PATH, 2), 500);
    }
}
