//! Counts the calls of each connection, so that an idle one can close, and limits how slowly requests may arrive, and how
//! much callers without a certificate may send.

use std::pin::Pin;
use std::task::{Context as TaskContext, Poll};
use std::time::Duration;

use comity_runtime::tls::PeerInfo;
use http::{Request, Response};
use tonic::body::Body;
use tower::{Layer, Service};

use crate::api::http::procedures::{Procedures, Shape};
use crate::api::http::request_body::SMALL_BODY_BYTES;
use crate::api::http::{body_deadline, body_size, held_body};

/// Bytes of the body of a request without a certificate: gRPC adds a few to the message.
const ANONYMOUS_BODY_BYTES: usize = SMALL_BODY_BYTES + 1_024;
/// Time for the body of a request without a certificate. Joins have a few kilobytes.
const ANONYMOUS_BODY_TIMEOUT: Duration = Duration::from_secs(10);
/// Time for the body of a request with a certificate: 4 MiB over a line of 1 Mbit/s.
const CERTIFIED_BODY_TIMEOUT: Duration = Duration::from_secs(60);

/// Must be the outermost layer, so that a call ends with the last byte of its response.
#[derive(Debug, Clone, Copy)]
pub struct ConnectionCallsLayer;

impl<S> Layer<S> for ConnectionCallsLayer {
    type Service = ConnectionCalls<S>;
    fn layer(&self, inner: S) -> ConnectionCalls<S> {
        ConnectionCalls { inner }
    }
}

/// Service of [`ConnectionCallsLayer`].
#[derive(Debug, Clone)]
pub struct ConnectionCalls<S> {
    inner: S,
}

impl<S> Service<Request<Body>> for ConnectionCalls<S>
where
    S: Service<Request<Body>, Response = Response<Body>>,
    S::Future: Send + 'static,
    S::Error: 'static,
{
    type Response = Response<Body>;
    type Error = S::Error;
    type Future = Pin<Box<dyn Future<Output = Result<Response<Body>, S::Error>> + Send>>;

    fn poll_ready(&mut self, cx: &mut TaskContext<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let peer = request.extensions().get::<PeerInfo>();
        let open = peer.map(|peer| peer.calls.begin());
        let is_anonymous = is_anonymous(peer);
        let timeout = body_timeout(peer, request.uri().path());
        let request = request.map(|body| {
            let body = if is_anonymous { body_size::at_most(body, ANONYMOUS_BODY_BYTES) } else { body };
            match timeout {
                Some(timeout) => body_deadline::end_within(body, timeout),
                None => body,
            }
        });
        let call = self.inner.call(request);
        Box::pin(async move { Ok(call.await?.map(|body| held_body::hold(body, open))) })
    }
}

fn is_anonymous(peer: Option<&PeerInfo>) -> bool {
    peer.is_none_or(|peer| peer.spiffe.is_none())
}

/// Time for the body of a request; `None` for streams, whose bodies last as long as they do.
fn body_timeout(peer: Option<&PeerInfo>, path: &str) -> Option<Duration> {
    if is_anonymous(peer) {
        return Some(ANONYMOUS_BODY_TIMEOUT);
    }
    let shape = Procedures::all().find(path).map(Shape::of);
    matches!(shape, Some(Shape::Unary | Shape::Events)).then_some(CERTIFIED_BODY_TIMEOUT)
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    #[test]
    fn only_streams_of_certificate_holders_may_last() {
        let anonymous = PeerInfo::anonymous("192.0.2.1:9".parse().unwrap());
        let agent = PeerInfo { spiffe: Some("spiffe://dev.test/cluster/a".parse().unwrap()), ..anonymous.clone() };
        let (connect, lease) = ("/comity.v1.AgentService/Connect", "/comity.v1.LeaseService/GetLease");
        let reflection = "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo";
        for path in [connect, lease, reflection, "/comity.v1.WatchService/Watch"] {
            assert_eq!(body_timeout(Some(&anonymous), path), Some(ANONYMOUS_BODY_TIMEOUT), "{path}");
        }
        assert_eq!(body_timeout(Some(&agent), lease), Some(CERTIFIED_BODY_TIMEOUT));
        assert_eq!(body_timeout(Some(&agent), connect), None);
        assert_eq!(body_timeout(Some(&agent), reflection), None);
    }
}
