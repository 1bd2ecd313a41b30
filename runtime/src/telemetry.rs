//! Logs and traces of a process. A trace id goes from the CLI through the broker to the agents.
//!
//! Logs always carry trace ids. Spans are exported, by OTLP over gRPC, only if an endpoint is configured.

use std::io::{self, IsTerminal};
use std::time::Duration;

use opentelemetry::trace::TracerProvider;
use opentelemetry_otlp::WithExportConfig;
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::trace::SdkTracerProvider;
use serde::{Deserialize, Serialize};
use thiserror::Error;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{EnvFilter, Layer};

mod log_line;
mod propagation;
mod rate_limit;

use log_line::LogLine;
pub(crate) use propagation::inject_trace;
pub use propagation::{
    TraceInjector, TraceLayer, TraceService, TracedChannel, continue_trace, current_trace_id, current_traceparent,
    traced,
};

/// The environment variable with the OTLP endpoint, if the configuration has none.
pub const OTLP_ENDPOINT_VARIABLE: &str = "OTEL_EXPORTER_OTLP_ENDPOINT";
/// The default log filter. Hides warnings that libraries repeat with each attempt: openraft's for an unanswered
/// message, and kube's for a watch without the right to it. Broker and agent report each once.
pub const DEFAULT_FILTER: &str = "info,openraft=error,kube_runtime::watcher=error";

const FLUSH_LIMIT: Duration = Duration::from_secs(3);

/// The format of log lines. They go to standard error; standard output is for results of the CLI.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LogFormat {
    /// Text for people.
    #[default]
    Text,
    /// One JSON object per line.
    Json,
}

impl std::str::FromStr for LogFormat {
    type Err = TelemetryError;
    fn from_str(text: &str) -> Result<Self, TelemetryError> {
        match text {
            "text" => Ok(Self::Text),
            "json" => Ok(Self::Json),
            _ => Err(TelemetryError::Format(text.chars().take(40).collect())),
        }
    }
}

/// Configuration of logs and traces.
#[derive(Debug, Clone)]
pub struct TelemetryConfig {
    /// Name of the service, such as `comity-broker`.
    pub service: String,
    /// Format of log lines.
    pub log_format: LogFormat,
    /// Log filter in the syntax of tracing, such as `info,comity_broker=debug`.
    pub filter: String,
    /// OTLP/gRPC collector, such as `http://collector:4317`; `None` exports no spans.
    pub otlp_endpoint: Option<String>,
}

impl TelemetryConfig {
    /// Text logs with [`DEFAULT_FILTER`]; exports to the endpoint in [`OTLP_ENDPOINT_VARIABLE`], if set.
    pub fn from_environment(service: impl Into<String>) -> Self {
        let otlp_endpoint = std::env::var(OTLP_ENDPOINT_VARIABLE).ok().filter(|v| !v.is_empty());
        Self { service: service.into(), log_format: LogFormat::Text, filter: DEFAULT_FILTER.to_owned(), otlp_endpoint }
    }
}

/// Why telemetry could not start.
#[derive(Debug, Error)]
pub enum TelemetryError {
    /// The log format is unknown.
    #[error("log format '{0}' is unknown: want text or json")]
    Format(String),
    /// The log filter is invalid.
    #[error("log filter '{filter}' is not valid: {reason}; want e.g. 'info,comity_broker=debug'")]
    Filter {
        /// The invalid text.
        filter: String,
        /// The error.
        reason: String,
    },
    /// The OTLP endpoint is invalid.
    #[error("OTLP endpoint '{endpoint}' cannot be used: {reason}; want e.g. 'http://collector:4317'")]
    Endpoint {
        /// The invalid text.
        endpoint: String,
        /// The error.
        reason: String,
    },
    /// Another subscriber is installed.
    #[error("telemetry was already started in this process")]
    AlreadyStarted,
}

/// Exports the remaining spans when dropped: keep it until the end of `main`.
#[derive(Debug)]
#[must_use = "dropping it ends the export of traces"]
pub struct TelemetryGuard {
    provider: SdkTracerProvider,
}

impl Drop for TelemetryGuard {
    fn drop(&mut self) {
        // Ignores an unreachable collector, so that the process can end.
        let _ = self.provider.shutdown_with_timeout(FLUSH_LIMIT);
    }
}

/// Starts logs and traces of the process. Each warning or error is logged at most three times per 30 s. Exporting
/// traces needs a tokio runtime.
///
/// # Errors
/// [`TelemetryError`] if the configuration is invalid, or telemetry was started before.
pub fn init(config: &TelemetryConfig) -> Result<TelemetryGuard, TelemetryError> {
    let filter = parse_filter(&config.filter)?;
    let provider = tracer_provider(config)?;
    let coloured = io::stderr().is_terminal();
    let lines = log_lines(config.log_format, coloured, io::stderr);
    tracing_subscriber::registry()
        .with(trace_layer(&provider))
        .with(lines.with_filter(rate_limit::RateLimitFilter::new(filter)))
        .try_init()
        .map_err(|_| TelemetryError::AlreadyStarted)?;
    Ok(TelemetryGuard { provider })
}

/// Writes each event as one line of `format`.
fn log_lines<S, W>(
    format: LogFormat,
    coloured: bool,
    writer: impl Fn() -> W + Send + Sync + 'static,
) -> Box<dyn Layer<S> + Send + Sync>
where
    S: tracing::Subscriber + for<'a> tracing_subscriber::registry::LookupSpan<'a>,
    W: io::Write + 'static,
{
    let lines = tracing_subscriber::fmt::layer().with_ansi(coloured);
    match format {
        LogFormat::Text => lines.with_writer(move || LogLine::text(writer(), coloured)).boxed(),
        LogFormat::Json => lines.json().flatten_event(true).with_writer(move || LogLine::json(writer())).boxed(),
    }
}

/// Log target of calls to brokers, at level debug: the broker reached, and each call's duration and result.
pub const CALLS_TARGET: &str = "comity::calls";

/// Validates a log filter.
///
/// # Errors
/// [`TelemetryError::Filter`].
pub fn check_filter(text: &str) -> Result<(), TelemetryError> {
    parse_filter(text).map(drop)
}

fn parse_filter(text: &str) -> Result<EnvFilter, TelemetryError> {
    EnvFilter::try_new(text)
        .map_err(|error| TelemetryError::Filter { filter: text.to_owned(), reason: error.to_string() })
}

/// Gives every span of level `info` and above a trace id, whatever the log filter.
fn trace_layer<S>(provider: &SdkTracerProvider) -> impl Layer<S> + use<S>
where
    S: tracing::Subscriber + for<'a> tracing_subscriber::registry::LookupSpan<'a>,
{
    // Spans of these libraries are noise in a trace: h2 creates one per frame.
    let spans = tracing_subscriber::filter::Targets::new()
        .with_default(tracing::Level::INFO)
        .with_target("h2", tracing::Level::ERROR)
        .with_target("hyper", tracing::Level::ERROR);
    tracing_opentelemetry::layer().with_tracer(provider.tracer("comity")).with_filter(spans)
}

fn tracer_provider(config: &TelemetryConfig) -> Result<SdkTracerProvider, TelemetryError> {
    let resource = Resource::builder().with_service_name(config.service.clone()).build();
    let builder = SdkTracerProvider::builder().with_resource(resource);
    let Some(endpoint) = &config.otlp_endpoint else {
        return Ok(builder.build());
    };
    let fail = |reason: String| TelemetryError::Endpoint { endpoint: endpoint.clone(), reason };
    let uri: http::Uri = endpoint.parse().map_err(|error: http::uri::InvalidUri| fail(error.to_string()))?;
    if uri.scheme_str() != Some("http") {
        return Err(fail("only http:// is supported; run a local collector that forwards to a remote one".to_owned()));
    }
    let exporter = opentelemetry_otlp::SpanExporter::builder()
        .with_tonic()
        .with_endpoint(endpoint)
        .with_timeout(FLUSH_LIMIT)
        .build()
        .map_err(|error| fail(error.to_string()))?;
    Ok(builder.with_batch_exporter(exporter).build())
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    fn config() -> TelemetryConfig {
        TelemetryConfig {
            service: "test".into(),
            log_format: LogFormat::Json,
            filter: DEFAULT_FILTER.into(),
            otlp_endpoint: None,
        }
    }

    #[test]
    fn wrong_configuration_is_one_sentence_with_a_remedy() {
        let filter = TelemetryConfig { filter: "comity=loud".into(), ..config() };
        assert!(init(&filter).unwrap_err().to_string().contains("'comity=loud'"));
        for endpoint in ["nonsense endpoint", "https://collector:4317", "collector:4317"] {
            let config = TelemetryConfig { otlp_endpoint: Some(endpoint.into()), ..config() };
            let error = init(&config).unwrap_err().to_string();
            assert!(error.contains(endpoint) && error.contains("http://collector:4317"), "{error}");
        }
        assert!("xml".parse::<LogFormat>().unwrap_err().to_string().contains("text or json"));
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn spans_reach_an_otlp_collector_when_the_guard_drops() {
        // A fake collector that records the paths of its calls.
        let (called, mut calls) = tokio::sync::mpsc::channel::<String>(4);
        let service = tower::service_fn(move |request: http::Request<hyper::body::Incoming>| {
            let called = called.clone();
            async move {
                called.send(request.uri().path().to_owned()).await.unwrap();
                let mut response = http::Response::new(axum::body::Body::empty());
                response.headers_mut().insert("grpc-status", "0".parse().unwrap());
                response.headers_mut().insert("content-type", "application/grpc".parse().unwrap());
                Ok::<_, std::convert::Infallible>(response)
            }
        });
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let endpoint = format!("http://{}", listener.local_addr().unwrap());
        let server = tokio::spawn(async move {
            let (stream, _) = listener.accept().await.unwrap();
            let service = hyper_util::service::TowerToHyperService::new(service);
            let _ = hyper_util::server::conn::auto::Builder::new(hyper_util::rt::TokioExecutor::new())
                .serve_connection(hyper_util::rt::TokioIo::new(stream), service)
                .await;
        });

        let config = TelemetryConfig { otlp_endpoint: Some(endpoint), ..config() };
        let guard = TelemetryGuard { provider: tracer_provider(&config).unwrap() };
        let subscriber = tracing_subscriber::registry().with(trace_layer(&guard.provider));
        tracing::subscriber::with_default(subscriber, || {
            tracing::info_span!("exported").in_scope(|| assert!(current_trace_id().is_some()));
        });
        tokio::task::spawn_blocking(|| drop(guard)).await.unwrap();
        let path = tokio::time::timeout(Duration::from_secs(5), calls.recv()).await.unwrap().unwrap();
        assert_eq!(path, "/opentelemetry.proto.collector.trace.v1.TraceService/Export");
        server.abort();
    }
}
