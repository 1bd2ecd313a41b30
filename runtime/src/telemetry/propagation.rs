//! Carries the W3C trace context (<https://www.w3.org/TR/trace-context/>) in gRPC metadata and in messages.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context as TaskContext, Poll};

use http::{HeaderMap, HeaderValue};
use opentelemetry::Context;
use opentelemetry::propagation::{Extractor, Injector, TextMapPropagator};
use opentelemetry::trace::TraceContextExt;
use opentelemetry_sdk::propagation::TraceContextPropagator;
use tonic::metadata::MetadataMap;
use tonic::service::Interceptor;
use tonic::service::interceptor::InterceptedService;
use tonic::transport::Channel;
use tonic::{Request, Status};
use tower::{Layer, Service};
use tracing::field::Empty;
use tracing::{Instrument, Span, info_span};
use tracing_opentelemetry::OpenTelemetrySpanExt;

const TRACEPARENT: &str = "traceparent";

/// The trace id of the current span, in 32 hex digits.
pub fn current_trace_id() -> Option<String> {
    trace_id(&Span::current())
}

/// The current span as a `traceparent`, for messages inside a stream.
pub fn current_traceparent() -> Option<String> {
    let mut carrier = TraceparentCarrier(None);
    TraceContextPropagator::new().inject_context(&Span::current().context(), &mut carrier);
    carrier.0
}

/// Makes the span of a `traceparent` the parent of a new span that was not entered yet. As the standard requires,
/// ignores a malformed one: the span then starts a new trace.
pub fn continue_trace(span: &Span, traceparent: &str) {
    let parent = TraceContextPropagator::new()
        .extract_with_context(&Context::new(), &TraceparentCarrier(Some(traceparent.to_owned())));
    set_parent(span, parent);
}

fn set_parent(span: &Span, parent: Context) {
    if parent.span().span_context().is_valid() {
        // Fails only if tracing is off or the span was entered; the trace then cannot be joined.
        let _ = span.set_parent(parent);
    }
}

fn trace_id(span: &Span) -> Option<String> {
    let context = span.context();
    let span = context.span();
    let id = span.span_context().trace_id();
    span.span_context().is_valid().then(|| id.to_string())
}

/// A carrier of the `traceparent` only.
struct TraceparentCarrier(Option<String>);

impl Injector for TraceparentCarrier {
    fn set(&mut self, key: &str, value: String) {
        if key == TRACEPARENT {
            self.0 = Some(value);
        }
    }
}

impl Extractor for TraceparentCarrier {
    fn get(&self, key: &str) -> Option<&str> {
        self.0.as_deref().filter(|_| key == TRACEPARENT)
    }

    fn keys(&self) -> Vec<&str> {
        vec![TRACEPARENT]
    }
}

/// Writes the current span into the headers of a request.
pub(crate) fn inject_trace(headers: &mut HeaderMap<HeaderValue>) {
    if let Some(value) = current_traceparent().and_then(|text| text.parse().ok()) {
        headers.insert(TRACEPARENT, value);
    }
}

/// A client interceptor that sends the current span over a plain tonic channel. `BrokerChannel` does so by itself.
#[derive(Debug, Clone, Copy, Default)]
pub struct TraceInjector;

impl TraceInjector {
    /// Writes the current span into gRPC metadata.
    pub fn inject(metadata: &mut MetadataMap) {
        if let Some(value) = current_traceparent().and_then(|text| text.parse().ok()) {
            metadata.insert(TRACEPARENT, value);
        }
    }
}

impl Interceptor for TraceInjector {
    fn call(&mut self, mut request: Request<()>) -> Result<Request<()>, Status> {
        Self::inject(request.metadata_mut());
        Ok(request)
    }
}

/// A channel whose calls carry the trace: `XClient::new(traced(channel))`.
pub type TracedChannel = InterceptedService<Channel, TraceInjector>;

/// Makes calls on a channel carry the trace.
pub fn traced(channel: Channel) -> TracedChannel {
    InterceptedService::new(channel, TraceInjector)
}

/// A server layer that runs each call in a span `rpc`, which continues the caller's trace and logs its id:
/// `Server::builder().layer(TraceLayer)`.
#[derive(Debug, Clone, Copy, Default)]
pub struct TraceLayer;

impl<S> Layer<S> for TraceLayer {
    type Service = TraceService<S>;
    fn layer(&self, inner: S) -> TraceService<S> {
        TraceService { inner }
    }
}

/// The service of [`TraceLayer`].
#[derive(Debug, Clone)]
pub struct TraceService<S> {
    inner: S,
}

impl<S, B> Service<http::Request<B>> for TraceService<S>
where
    S: Service<http::Request<B>>,
    S::Future: Send + 'static,
    S::Response: 'static,
    S::Error: 'static,
{
    type Response = S::Response;
    type Error = S::Error;
    type Future = Pin<Box<dyn Future<Output = Result<S::Response, S::Error>> + Send>>;

    fn poll_ready(&mut self, cx: &mut TaskContext<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: http::Request<B>) -> Self::Future {
        let span = info_span!("rpc", method = %request.uri().path(), trace_id = Empty);
        if let Some(traceparent) = traceparent(request.headers()) {
            continue_trace(&span, traceparent);
        }
        if let Some(id) = trace_id(&span) {
            span.record("trace_id", id);
        }
        let call = span.in_scope(|| self.inner.call(request));
        Box::pin(call.instrument(span))
    }
}

fn traceparent(headers: &HeaderMap<HeaderValue>) -> Option<&str> {
    headers.get(TRACEPARENT).and_then(|value| value.to_str().ok())
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use comity_fuzz::fuzz;
    use opentelemetry_sdk::trace::SdkTracerProvider;
    use tracing_subscriber::layer::SubscriberExt;

    use super::*;
    use crate::telemetry::trace_layer;

    fn traced_subscriber() -> (SdkTracerProvider, tracing::subscriber::DefaultGuard) {
        let provider = SdkTracerProvider::builder().build();
        let subscriber = tracing_subscriber::registry().with(trace_layer(&provider));
        (provider, tracing::subscriber::set_default(subscriber))
    }

    #[tokio::test]
    async fn the_trace_id_goes_from_client_to_server() {
        let (_provider, _guard) = traced_subscriber();
        let mut server = TraceLayer.layer(tower::service_fn(|_: http::Request<()>| async {
            tokio::task::yield_now().await;
            Ok::<_, Status>(current_trace_id())
        }));
        let client = info_span!("client");
        let (sent, expected) = client.in_scope(|| {
            let sent = TraceInjector.call(Request::new(())).unwrap();
            (sent.metadata().clone().into_headers(), current_trace_id().unwrap())
        });
        let mut request = http::Request::new(());
        *request.headers_mut() = sent;
        assert_eq!(server.call(request).await.unwrap(), Some(expected.clone()));
        let alone = server.call(http::Request::new(())).await.unwrap();
        assert!(alone.is_some_and(|id| id != expected && id.len() == 32));
    }

    #[test]
    fn traces_of_callers() {
        let (provider, guard) = traced_subscriber();
        let valid = b"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01".to_vec();
        fuzz!("traceparent", vec![valid], move |bytes: &[u8]| {
            let _subscriber = (&provider, &guard);
            let Ok(value) = HeaderValue::from_bytes(bytes) else { return false };
            let headers = HeaderMap::from_iter([(http::HeaderName::from_static(TRACEPARENT), value)]);
            let Some(text) = traceparent(&headers) else { return false };
            let span = info_span!("receiver");
            continue_trace(&span, text);
            let id = trace_id(&span).expect("each span has a trace");
            assert!(id.len() == 32 && id.bytes().all(|byte| byte.is_ascii_hexdigit()), "{id:?} goes into the log");
            text.contains(&id)
        });
    }

    /// The subscriber is thread-local, so everything runs on one thread.
    #[tokio::test(flavor = "current_thread")]
    async fn one_trace_id_over_real_grpc() {
        let (_provider, _guard) = traced_subscriber();
        let (seen, mut ids) = tokio::sync::mpsc::channel(4);
        let (_reporter, health) = tonic_health::server::health_reporter();
        let note = move |request: Request<()>| {
            seen.try_send(current_trace_id()).unwrap();
            Ok::<_, Status>(request)
        };
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = format!("http://{}", listener.local_addr().unwrap());
        let server = tonic::transport::Server::builder()
            .layer(TraceLayer)
            .add_service(InterceptedService::new(health, note))
            .serve_with_incoming(tokio_stream::wrappers::TcpListenerStream::new(listener));
        let server = tokio::spawn(server);

        let endpoint = tonic::transport::Endpoint::from_shared(address).unwrap();
        let channel = endpoint.connect().await.unwrap();
        let mut client = tonic_health::pb::health_client::HealthClient::new(traced(channel));
        let span = info_span!("command");
        let call = async {
            client.check(tonic_health::pb::HealthCheckRequest::default()).await.unwrap();
            current_trace_id()
        };
        let sent = call.instrument(span).await;
        assert!(sent.is_some());
        assert_eq!(ids.recv().await, Some(sent));
        server.abort();
    }

    #[test]
    fn the_trace_id_goes_through_a_message_and_garbage_begins_again() {
        let (_provider, _guard) = traced_subscriber();
        let traceparent = info_span!("sender").in_scope(|| current_traceparent().unwrap());
        let receiver = info_span!("receiver");
        continue_trace(&receiver, &traceparent);
        let id = receiver.in_scope(|| current_trace_id().unwrap());
        assert_eq!(traceparent.split('-').nth(1), Some(id.as_str()));
        for garbage in ["", "00-zz-yy-01", &"0".repeat(10_000)] {
            let span = info_span!("receiver");
            continue_trace(&span, garbage);
            let own = span.in_scope(|| current_trace_id().unwrap());
            assert_ne!(own, id);
        }
    }

    #[test]
    fn without_telemetry_nothing_is_sent() {
        let sent = TraceInjector.call(Request::new(())).unwrap();
        assert!(sent.metadata().is_empty());
        assert_eq!(current_trace_id(), None);
    }
}
