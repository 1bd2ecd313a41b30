//! Limits concurrent calls per peer, so that one client cannot starve others.

use std::pin::Pin;
use std::task::{Context as TaskContext, Poll};

use comity_runtime::tls::{HeldSlots, KeyedSlots, PeerInfo, SlotLimit, SourceAddress};
use tonic::Status;
use tonic::body::Body;
use tonic::codegen::http::{Request, Response};
use tower::{Layer, Service};

use crate::api::http::held_body;
use crate::api::http::procedures::{Procedures, Shape};
use crate::api::rpc_error::RpcError;

/// Maximum concurrent calls per peer. A call ends with its response; agents' streams and watches, which have limits of
/// their own, count until they have begun.
pub const MAX_CALLS_PER_PEER: usize = 64;
/// Maximum concurrent calls of all peers without a certificate.
pub const MAX_ANONYMOUS_CALLS: usize = 512;

/// Whom a call counts for.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
enum Calling {
    Identity(String),
    AnonymousFrom(SourceAddress),
    Anonymous,
}

type CallSlots = HeldSlots<Calling>;

/// Limits each peer: by SPIFFE id, or by address where there is no certificate.
#[derive(Debug, Clone, Default)]
pub struct PeerLimitLayer {
    under_way: KeyedSlots<Calling>,
}

impl<S> Layer<S> for PeerLimitLayer {
    type Service = PeerLimit<S>;
    fn layer(&self, inner: S) -> PeerLimit<S> {
        PeerLimit { inner, under_way: self.under_way.clone() }
    }
}

/// Service of [`PeerLimitLayer`].
#[derive(Debug, Clone)]
pub struct PeerLimit<S> {
    inner: S,
    under_way: KeyedSlots<Calling>,
}

fn take(under_way: &KeyedSlots<Calling>, peer: Option<&PeerInfo>) -> Result<CallSlots, RpcError> {
    let own = peer.map(|peer| match &peer.spiffe {
        Some(id) => Calling::Identity(id.to_string()),
        None => Calling::AnonymousFrom(SourceAddress::of(peer.remote_addr.ip())),
    });
    let all = match own {
        Some(Calling::Identity(_)) => None,
        Some(Calling::AnonymousFrom(_) | Calling::Anonymous) | None => Some(Calling::Anonymous),
    };
    let own = own.map(|key| SlotLimit { key, most: MAX_CALLS_PER_PEER });
    let all = all.map(|key| SlotLimit { key, most: MAX_ANONYMOUS_CALLS });
    under_way.take(own.into_iter().chain(all)).map_err(|SlotLimit { key, most }| {
        let reason = match key {
            Calling::Identity(id) => format!("{id} has {most} calls under way, which is the limit of one caller"),
            Calling::AnonymousFrom(source) => {
                format!("{source} has {most} calls without a certificate under way, which is the limit of one address")
            }
            Calling::Anonymous => {
                format!("{most} calls without a certificate are under way, which is the limit of this broker")
            }
        };
        RpcError::LimitReached { reason, remedy: "wait until some of them are done" }
    })
}

/// Whether the call is a stream that has a limit of its own.
fn is_limited_stream(path: &str) -> bool {
    let shape = Procedures::all().find(path).map(Shape::of);
    matches!(shape, Some(Shape::Events | Shape::GrpcOnly))
}

impl<S, B> Service<Request<B>> for PeerLimit<S>
where
    S: Service<Request<B>, Response = Response<Body>>,
    S::Future: Send + 'static,
    S::Error: 'static,
{
    type Response = Response<Body>;
    type Error = S::Error;
    type Future = Pin<Box<dyn Future<Output = Result<Response<Body>, S::Error>> + Send>>;

    fn poll_ready(&mut self, cx: &mut TaskContext<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        match take(&self.under_way, request.extensions().get::<PeerInfo>()) {
            Ok(slots) => {
                let ends_early = is_limited_stream(request.uri().path());
                let call = self.inner.call(request);
                Box::pin(async move {
                    let response = call.await?;
                    Ok(if ends_early { response } else { response.map(|body| held_body::hold(body, slots)) })
                })
            }
            Err(error) => {
                let response = Status::from(error).into_http();
                Box::pin(async move { Ok(response) })
            }
        }
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use std::convert::Infallible;

    use tower::ServiceExt as _;

    use super::*;

    fn peer(address: &str, id: Option<&str>) -> PeerInfo {
        let remote_addr = (address.parse::<std::net::IpAddr>().unwrap(), 1).into();
        PeerInfo { spiffe: id.map(|id| id.parse().unwrap()), ..PeerInfo::anonymous(remote_addr) }
    }

    fn refusal(under_way: &KeyedSlots<Calling>, peer: &PeerInfo) -> String {
        take(under_way, Some(peer)).unwrap_err().to_string()
    }

    #[test]
    fn a_caller_cannot_starve_others() {
        let (under_way, alice) = (KeyedSlots::default(), Some("spiffe://dev.test/user/alice"));
        let calls = |peer: &PeerInfo| {
            (0..MAX_CALLS_PER_PEER).map(|_| take(&under_way, Some(peer)).unwrap()).collect::<Vec<_>>()
        };
        let _alice = calls(&peer("192.0.2.1", alice));
        assert!(
            refusal(&under_way, &peer("192.0.2.9", alice)).starts_with("spiffe://dev.test/user/alice has 64 calls")
        );
        let _network = calls(&peer("2001:db8::1", None));
        assert!(refusal(&under_way, &peer("2001:db8::2", None)).starts_with("2001:db8::/64 has 64 calls"));
        let _others: Vec<_> = (1..8).map(|last| calls(&peer(&format!("192.0.2.{last}"), None))).collect();
        assert!(refusal(&under_way, &peer("192.0.2.99", None)).starts_with("512 calls without a certificate"));
        take(&under_way, Some(&peer("192.0.2.1", Some("spiffe://dev.test/user/bob")))).unwrap();
    }

    #[tokio::test]
    async fn a_call_counts_until_its_response_ends_and_a_watch_until_it_begins() {
        let layer = PeerLimitLayer::default();
        let answer = |_: Request<()>| async {
            Ok::<_, Infallible>(Response::new(Body::new(http_body_util::Full::from("answer"))))
        };
        let call = async |path: &str| {
            let mut request = Request::post(path).body(()).unwrap();
            request.extensions_mut().insert(peer("192.0.2.1", None));
            layer.layer(tower::service_fn(answer)).oneshot(request).await.unwrap()
        };
        let health = call("/grpc.health.v1.Health/Watch").await;
        assert_eq!(layer.under_way.in_use(&Calling::Anonymous), 1);
        drop(health);
        assert!(layer.under_way.is_unused());
        let _watch = call("/comity.v1.WatchService/Watch").await;
        assert!(layer.under_way.is_unused());
    }
}
