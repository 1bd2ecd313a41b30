//! Limits what each peer has of this broker at once, so that one client cannot starve others: its calls under way, the
//! processor time of its reads, and how often it can be refused. Without a certificate, all calls count as reads.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context as TaskContext, Poll};
use std::time::Duration;

use comity_runtime::clock::Clock;
use comity_runtime::tls::{HeldSlots, KeyedSlots, PeerInfo, SlotLimit, SourceAddress};
use tonic::body::Body;
use tonic::codegen::http::{Request, Response};
use tonic::{Code, Status};
use tower::{Layer, Service};

use crate::api::http::held_body;
use crate::api::http::procedures::{Procedures, Shape, is_read};
use crate::api::rpc_error::RpcError;
use crate::api::shares::call_pace::{CallPace, ThreadTime};

/// Maximum concurrent calls per peer. A call ends with its response; agents' streams and watches, which have limits of
/// their own, count until they have begun.
pub const MAX_CALLS_PER_PEER: usize = 64;
/// Maximum concurrent calls of all peers without a certificate.
pub const MAX_ANONYMOUS_CALLS: usize = 512;
/// How long the answer to a call beyond a limit is held back. Refusals take little, but a client that repeats them as
/// fast as they come would keep a core busy.
const REFUSAL_HELD_FOR: Duration = Duration::from_millis(100);
/// Processor time that a refusal is charged for, in addition to what its handler took: for encryption, HTTP and the
/// message. A caller has 500 refusals at once, and 250 a second after them.
const REFUSAL_USE: Duration = Duration::from_millis(1);

/// Whom a call counts for.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Calling {
    Identity(String),
    AnonymousFrom(SourceAddress),
    Anonymous,
}

type CallSlots = HeldSlots<Calling>;

/// Limits each peer: by SPIFFE id, or by address where there is no certificate.
#[derive(Debug, Clone)]
pub struct PeerLimitLayer {
    shares: PeerShares,
}

/// What all peers have. Clones share it.
#[derive(Debug, Clone)]
pub struct PeerShares {
    clock: Arc<dyn Clock>,
    under_way: KeyedSlots<Calling>,
    pace: CallPace<Calling>,
}

impl PeerLimitLayer {
    /// Without calls under way.
    #[must_use]
    pub fn new(clock: Arc<dyn Clock>, thread_time: ThreadTime) -> Self {
        let (under_way, pace) = (KeyedSlots::default(), CallPace::new(Arc::clone(&clock), thread_time));
        Self { shares: PeerShares { clock, under_way, pace } }
    }

    /// The shares, for layers outside of this one that answer by themselves.
    #[must_use]
    pub fn shares(&self) -> PeerShares {
        self.shares.clone()
    }
}

impl PeerShares {
    /// Holds back the answer to what never becomes a call, such as an unknown path, until its caller has time for it.
    pub async fn hold_answer(&self, peer: Option<&PeerInfo>) {
        let calling = Calling::of(peer);
        match take(&self.under_way, &calling) {
            Ok(_slots) => self.hold_refusal(calling, Duration::ZERO).await,
            Err(_) => self.clock.sleep(REFUSAL_HELD_FOR).await,
        }
    }

    /// Charges a caller for a refusal and for what was not charged as it ran, and waits until the caller has time for it.
    async fn hold_refusal(&self, calling: Calling, unpaid: Duration) {
        let wait = self.pace.charge(calling, REFUSAL_USE + unpaid);
        if !wait.is_zero() {
            self.clock.sleep(wait).await;
        }
    }
}

impl<S> Layer<S> for PeerLimitLayer {
    type Service = PeerLimit<S>;
    fn layer(&self, inner: S) -> PeerLimit<S> {
        PeerLimit { inner, shares: self.shares.clone() }
    }
}

/// Service of [`PeerLimitLayer`].
#[derive(Debug, Clone)]
pub struct PeerLimit<S> {
    inner: S,
    shares: PeerShares,
}

impl Calling {
    pub(super) fn of(peer: Option<&PeerInfo>) -> Self {
        match peer {
            Some(PeerInfo { spiffe: Some(id), .. }) => Self::Identity(id.to_string()),
            Some(peer) => Self::AnonymousFrom(SourceAddress::of(peer.remote_addr.ip())),
            None => Self::Anonymous,
        }
    }
}

impl std::fmt::Display for Calling {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Identity(id) => f.write_str(id),
            Self::AnonymousFrom(source) => write!(f, "{source}"),
            Self::Anonymous => f.write_str("a caller without a certificate"),
        }
    }
}

fn take(under_way: &KeyedSlots<Calling>, calling: &Calling) -> Result<CallSlots, RpcError> {
    let own = (*calling != Calling::Anonymous).then(|| calling.clone());
    let all = match calling {
        Calling::Identity(_) => None,
        Calling::AnonymousFrom(_) | Calling::Anonymous => Some(Calling::Anonymous),
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
        let shares = self.shares.clone();
        let calling = Calling::of(request.extensions().get::<PeerInfo>());
        let slots = match take(&shares.under_way, &calling) {
            Ok(slots) => slots,
            Err(error) => {
                let response = Status::from(error).into_http();
                return Box::pin(async move {
                    shares.clock.sleep(REFUSAL_HELD_FOR).await;
                    Ok(response)
                });
            }
        };
        let ends_early = is_limited_stream(request.uri().path());
        let paced = is_read(request.uri().path()) || !matches!(calling, Calling::Identity(_));
        let call = self.inner.call(request);
        Box::pin(async move {
            let (response, unpaid) = if paced {
                (shares.pace.run(calling.clone(), call).await, Duration::ZERO)
            } else {
                shares.pace.run_now(call).await
            };
            let response = response?;
            let code = refused_with(&response);
            if code == Some(Code::ResourceExhausted) {
                shares.clock.sleep(REFUSAL_HELD_FOR).await;
            }
            if code.is_some_and(is_of_caller) {
                shares.hold_refusal(calling, unpaid).await;
            }
            Ok(if ends_early { response } else { response.map(|body| held_body::hold(body, slots)) })
        })
    }
}

/// The code of a call that was refused. Its status is in the headers.
fn refused_with(response: &Response<Body>) -> Option<Code> {
    Status::from_header_map(response.headers()).map(|status| status.code()).filter(|code| *code != Code::Ok)
}

/// Whether a refusal is the caller's doing, and not a fault of the brokers, after which it should try again.
fn is_of_caller(code: Code) -> bool {
    match code {
        Code::InvalidArgument
        | Code::NotFound
        | Code::AlreadyExists
        | Code::PermissionDenied
        | Code::ResourceExhausted
        | Code::FailedPrecondition
        | Code::OutOfRange
        | Code::Unimplemented
        | Code::Unauthenticated => true,
        Code::Ok
        | Code::Cancelled
        | Code::Unknown
        | Code::DeadlineExceeded
        | Code::Aborted
        | Code::Internal
        | Code::Unavailable
        | Code::DataLoss => false,
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use std::convert::Infallible;

    use comity_runtime::clock::ManualClock;
    use futures::FutureExt as _;
    use tower::ServiceExt as _;

    use super::*;
    use crate::api::shares::call_pace::{SAVED_USE, TIME_PER_USE};

    fn peer(address: &str, id: Option<&str>) -> PeerInfo {
        let remote_addr = (address.parse::<std::net::IpAddr>().unwrap(), 1).into();
        PeerInfo { spiffe: id.map(|id| id.parse().unwrap()), ..PeerInfo::anonymous(remote_addr) }
    }

    fn layer(clock: &ManualClock) -> PeerLimitLayer {
        PeerLimitLayer::new(Arc::new(clock.clone()), |clock| clock.elapsed())
    }

    fn refusal(under_way: &KeyedSlots<Calling>, peer: &PeerInfo) -> String {
        take(under_way, &Calling::of(Some(peer))).unwrap_err().to_string()
    }

    #[test]
    fn a_caller_cannot_starve_others() {
        let (under_way, alice) = (KeyedSlots::default(), Some("spiffe://dev.test/user/alice"));
        let calls = |peer: &PeerInfo| {
            (0..MAX_CALLS_PER_PEER).map(|_| take(&under_way, &Calling::of(Some(peer))).unwrap()).collect::<Vec<_>>()
        };
        let _alice = calls(&peer("192.0.2.1", alice));
        assert!(
            refusal(&under_way, &peer("192.0.2.9", alice)).starts_with("spiffe://dev.test/user/alice has 64 calls")
        );
        let _network = calls(&peer("2001:db8::1", None));
        assert!(refusal(&under_way, &peer("2001:db8::2", None)).starts_with("2001:db8::/64 has 64 calls"));
        let _others: Vec<_> = (1..8).map(|last| calls(&peer(&format!("192.0.2.{last}"), None))).collect();
        assert!(refusal(&under_way, &peer("192.0.2.99", None)).starts_with("512 calls without a certificate"));
        take(&under_way, &Calling::of(Some(&peer("192.0.2.1", Some("spiffe://dev.test/user/bob"))))).unwrap();
    }

    #[tokio::test]
    async fn a_call_counts_until_its_response_ends_and_a_watch_until_it_begins() {
        let layer = layer(&ManualClock::at_unix_ms(0));
        let answer = |_: Request<()>| async {
            Ok::<_, Infallible>(Response::new(Body::new(http_body_util::Full::from("answer"))))
        };
        let call = async |path: &str| {
            let mut request = Request::post(path).body(()).unwrap();
            request.extensions_mut().insert(peer("192.0.2.1", None));
            layer.layer(tower::service_fn(answer)).oneshot(request).await.unwrap()
        };
        let health = call("/grpc.health.v1.Health/Watch").await;
        assert_eq!(layer.shares.under_way.in_use(&Calling::Anonymous), 1);
        drop(health);
        assert!(layer.shares.under_way.is_unused());
        let _watch = call("/comity.v1.WatchService/Watch").await;
        assert!(layer.shares.under_way.is_unused());
    }

    fn from_alice(path: &str) -> Request<()> {
        let mut request = Request::post(path).body(()).unwrap();
        request.extensions_mut().insert(peer("192.0.2.1", Some("spiffe://dev.test/user/alice")));
        request
    }

    #[tokio::test]
    async fn a_refusal_because_of_a_limit_is_held_back_and_other_answers_are_not() {
        let clock = ManualClock::at_unix_ms(0);
        let layer = layer(&clock);
        let refuse = |code: Code| {
            let answer = move |_: Request<()>| async move {
                Ok::<Response<Body>, Infallible>(Status::new(code, "refused").into_http())
            };
            layer.layer(tower::service_fn(answer)).oneshot(from_alice("/comity.v1.RequestService/QuoteRequest"))
        };
        assert!(refuse(Code::PermissionDenied).now_or_never().is_some());
        let mut held = refuse(Code::ResourceExhausted).boxed();
        assert!((&mut held).now_or_never().is_none());
        // Meanwhile it counts as one of the caller's calls.
        assert!(!layer.shares.under_way.is_unused());
        clock.advance(REFUSAL_HELD_FOR);
        drop(held.await.unwrap());
        assert!(layer.shares.under_way.is_unused());

        // A call beyond the limit of calls does not even begin.
        let alice = Calling::of(from_alice("/").extensions().get::<PeerInfo>());
        let _all: Vec<_> = (0..MAX_CALLS_PER_PEER).map(|_| take(&layer.shares.under_way, &alice).unwrap()).collect();
        let mut beyond = refuse(Code::PermissionDenied).boxed();
        assert!((&mut beyond).now_or_never().is_none());
        clock.advance(REFUSAL_HELD_FOR);
        assert_eq!(refused_with(&beyond.await.unwrap()), Some(Code::ResourceExhausted));
    }

    #[tokio::test]
    async fn refusals_are_charged_to_their_caller_with_and_without_a_certificate() {
        /// Refusals for which a quiet caller has saved up time.
        const SAVED: u128 = SAVED_USE.as_millis() / REFUSAL_USE.as_millis();
        const LATER: u32 = 20;
        let alice = Some("spiffe://dev.test/user/alice");
        let codes = [Code::InvalidArgument, Code::NotFound, Code::Unauthenticated, Code::PermissionDenied];
        for (id, code) in [alice, None].into_iter().flat_map(|id| codes.map(|code| (id, code))) {
            // tokio has a task wait after some number of polls, and this one polls often.
            tokio::task::yield_now().await;
            let clock = ManualClock::at_unix_ms(0);
            let layer = layer(&clock);
            let refuse = |address: &str, id: Option<&str>| {
                let mut request = Request::post("/comity.v1.RequestService/SubmitRequest").body(()).unwrap();
                request.extensions_mut().insert(peer(address, id));
                let answer = move |_: Request<()>| async move {
                    Ok::<Response<Body>, Infallible>(Status::new(code, "refused").into_http())
                };
                layer.layer(tower::service_fn(answer)).oneshot(request).boxed()
            };
            let mut at_once = 0;
            while refuse("192.0.2.1", id).now_or_never().is_some() {
                at_once += 1;
                assert!(at_once <= SAVED, "{id:?} {code:?}: {at_once} refusals at once");
            }
            assert_eq!(at_once, SAVED, "{id:?} {code:?}");
            assert!(refuse("198.51.100.1", None).now_or_never().is_some(), "another address waits");
            // From now on they come at the caller's pace.
            let mut held: Vec<_> = (0..LATER).map(|_| refuse("192.0.2.1", id)).collect();
            held.retain_mut(|refusal| refusal.now_or_never().is_none());
            assert_eq!(held.len(), LATER as usize);
            clock.advance(REFUSAL_USE * TIME_PER_USE * (LATER / 2));
            held.retain_mut(|refusal| refusal.now_or_never().is_none());
            assert!(held.len() >= LATER as usize / 2, "{id:?} {code:?}: only {} are held back", held.len());
            clock.advance(REFUSAL_USE * TIME_PER_USE * LATER);
            held.retain_mut(|refusal| refusal.now_or_never().is_none());
            assert!(held.is_empty(), "{id:?} {code:?}: {} are held back", held.len());
        }
    }

    #[tokio::test]
    async fn a_refused_command_is_charged_for_what_it_took() {
        let clock = ManualClock::at_unix_ms(0);
        let layer = layer(&clock);
        let call = |code: Code| {
            let clock = clock.clone();
            let answer = move |_: Request<()>| {
                let clock = clock.clone();
                async move {
                    clock.advance(SAVED_USE / 10);
                    Ok::<Response<Body>, Infallible>(Status::new(code, "done").into_http())
                }
            };
            let call = layer.layer(tower::service_fn(answer)).oneshot(from_alice("/comity.v1.RequestService/X"));
            call.now_or_never().is_some()
        };
        assert!((0..100).all(|_| call(Code::Ok)));
        // Each takes a tenth of what is saved, and earns a quarter of that meanwhile.
        let at_once = (0..100).take_while(|_| call(Code::InvalidArgument)).count();
        assert!((9..15).contains(&at_once), "{at_once} refusals at once");
    }

    #[tokio::test]
    async fn a_brokers_own_failure_is_charged_to_nobody() {
        let clock = ManualClock::at_unix_ms(0);
        let layer = layer(&clock);
        let answer = |_: Request<()>| async { Ok::<_, Infallible>(Status::unavailable("no leader").into_http()) };
        for _ in 0..2_000 {
            let call = layer.layer(tower::service_fn(answer)).oneshot(from_alice("/comity.v1.RequestService/X"));
            assert!(call.now_or_never().is_some());
        }
    }

    #[tokio::test]
    async fn answers_outside_of_calls_are_charged_too() {
        let clock = ManualClock::at_unix_ms(0);
        let shares = layer(&clock).shares();
        let (stranger, other) = (peer("192.0.2.1", None), peer("198.51.100.1", None));
        let mut at_once = 0;
        while shares.hold_answer(Some(&stranger)).now_or_never().is_some() {
            at_once += 1;
            assert!(at_once <= 500, "{at_once} answers at once");
        }
        assert!(shares.hold_answer(Some(&other)).now_or_never().is_some());
    }

    #[tokio::test]
    async fn reads_are_paced_and_commands_are_not() {
        let clock = ManualClock::at_unix_ms(0);
        let layer = layer(&clock);
        let call = |path: &str| {
            let clock = clock.clone();
            let answer = move |_: Request<()>| {
                let clock = clock.clone();
                async move {
                    clock.advance(Duration::from_secs(1));
                    Ok::<_, Infallible>(Response::new(Body::empty()))
                }
            };
            layer.layer(tower::service_fn(answer)).oneshot(from_alice(path)).now_or_never().is_some()
        };
        assert!((0..9).all(|_| call("/comity.v1.RequestService/SubmitRequest")));
        assert!((0..9).any(|_| !call("/comity.v1.RequestService/ListRequests")), "reads of a second each never wait");
        assert!(call("/comity.v1.RequestService/SubmitRequest"));
    }
}
