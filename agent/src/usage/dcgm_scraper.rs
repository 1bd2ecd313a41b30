//! Reads the metrics of NVIDIA's DCGM exporters: one on each node with GPUs, all behind one name.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use comity_runtime::Clock;
use futures::StreamExt as _;
use http::uri::PathAndQuery;
use http::{Request, StatusCode, Uri};
use http_body_util::{BodyExt as _, Empty, Limited};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use serde::{Deserialize, Serialize};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::gpu_load::GpuLoad;

/// Pause between two rounds: the exporter's own interval.
const INTERVAL: Duration = Duration::from_secs(30);
/// How long one exporter may take.
const TIMEOUT: Duration = Duration::from_secs(10);
/// Bytes of one exporter's metrics: 128 devices with 100 metrics of 500 bytes.
const MAX_BYTES: usize = 8 << 20;
/// Concurrent calls.
const CONCURRENT_SCRAPES: usize = 16;
/// Exporters of one cluster: one for each node.
const MAX_EXPORTERS: usize = 10_000;
/// The exporter's port.
const DEFAULT_PORT: u16 = 9400;

/// Where the exporters are: "http://host:port/path".
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct DcgmEndpoint {
    host: String,
    port: u16,
    path: PathAndQuery,
}

/// Why a URL is refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{0:?} is no address of DCGM exporters: write http://host:port/metrics, as in http://dcgm.gpu-operator:9400/metrics"
)]
pub struct InvalidEndpoint(String);

impl FromStr for DcgmEndpoint {
    type Err = InvalidEndpoint;

    fn from_str(text: &str) -> Result<Self, InvalidEndpoint> {
        // Whatever stands before an "@" may be a password.
        let refused = || InvalidEndpoint(text.rsplit_once('@').map_or(text, |(_, host)| host).to_owned());
        let uri: Uri = text.parse().map_err(|_| refused())?;
        let authority = uri.authority().filter(|authority| !authority.as_str().contains('@')).ok_or_else(refused)?;
        if uri.scheme_str() != Some("http") || authority.host().is_empty() {
            return Err(refused());
        }
        let path = uri.path_and_query().filter(|path| path.as_str() != "/").cloned();
        Ok(Self {
            host: authority.host().to_owned(),
            port: authority.port_u16().unwrap_or(DEFAULT_PORT),
            path: path.unwrap_or_else(|| PathAndQuery::from_static("/metrics")),
        })
    }
}

impl TryFrom<String> for DcgmEndpoint {
    type Error = InvalidEndpoint;

    fn try_from(text: String) -> Result<Self, InvalidEndpoint> {
        text.parse()
    }
}

impl From<DcgmEndpoint> for String {
    fn from(DcgmEndpoint { host, port, path }: DcgmEndpoint) -> Self {
        format!("http://{host}:{port}{path}")
    }
}

/// Reads all exporters, again and again, until stopped. An exporter that does not answer leaves its pods without
/// figures.
pub(crate) async fn scrape(
    endpoint: DcgmEndpoint,
    load: watch::Sender<GpuLoad>,
    clock: Arc<dyn Clock>,
    stop: CancellationToken,
) {
    let client = Client::builder(TokioExecutor::new()).build_http();
    let mut failed = BTreeSet::new();
    loop {
        let round = round(&client, &endpoint).await;
        for (exporter, error) in round.failures.iter().filter(|(exporter, _)| !failed.contains(exporter)) {
            tracing::warn!(exporter, error, "the load of GPUs is not known; their leases count as in use");
        }
        failed = round.failures.into_iter().map(|(exporter, _)| exporter).collect();
        load.send_replace(round.load);
        tokio::select! {
            () = stop.cancelled() => return,
            () = clock.sleep(INTERVAL) => {}
        }
    }
}

#[derive(Default)]
struct Round {
    load: GpuLoad,
    failures: Vec<(String, String)>,
}

async fn round(client: &Client<HttpConnector, Empty<Bytes>>, endpoint: &DcgmEndpoint) -> Round {
    let mut round = Round::default();
    let host = endpoint.host.trim_matches(['[', ']']);
    let found = tokio::time::timeout(TIMEOUT, tokio::net::lookup_host((host, endpoint.port))).await;
    let addresses: BTreeSet<SocketAddr> = match found {
        Ok(Ok(found)) => found.take(MAX_EXPORTERS).collect(),
        Ok(Err(error)) => {
            round.failures.push((endpoint.host.clone(), error.to_string()));
            return round;
        }
        Err(_) => {
            round.failures.push((endpoint.host.clone(), "the name is not resolved in time".to_owned()));
            return round;
        }
    };
    let calls = addresses.into_iter().map(|address| async move { (address, read(client, endpoint, address).await) });
    let mut answers = futures::stream::iter(calls).buffer_unordered(CONCURRENT_SCRAPES);
    while let Some((address, answer)) = answers.next().await {
        match answer {
            Ok(text) => round.load.add(&text),
            Err(error) => round.failures.push((address.to_string(), error)),
        }
    }
    round
}

async fn read(
    client: &Client<HttpConnector, Empty<Bytes>>,
    endpoint: &DcgmEndpoint,
    address: SocketAddr,
) -> Result<String, String> {
    let uri = format!("http://{address}{}", endpoint.path);
    let request = Request::get(uri)
        .header(http::header::HOST, format!("{}:{}", endpoint.host, endpoint.port))
        .body(Empty::new())
        .map_err(|error| error.to_string())?;
    let call = async {
        let response = client.request(request).await.map_err(|error| error.to_string())?;
        if response.status() != StatusCode::OK {
            return Err(format!("it answers {}", response.status()));
        }
        let body = Limited::new(response.into_body(), MAX_BYTES).collect().await.map_err(|error| error.to_string())?;
        String::from_utf8(body.to_bytes().into()).map_err(|_| "its answer is not UTF-8 text".to_owned())
    };
    tokio::time::timeout(TIMEOUT, call).await.map_err(|_| "it does not answer in time".to_owned())?
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use axum::Router;
    use axum::routing::get;

    use super::super::gpu_load::Load;
    use super::*;

    #[test]
    fn endpoints_are_http_urls() {
        for (text, full) in [
            ("http://dcgm.gpu-operator:9400/metrics", "http://dcgm.gpu-operator:9400/metrics"),
            ("http://dcgm", "http://dcgm:9400/metrics"),
            ("http://[fd00::1]:80/m?x=1", "http://[fd00::1]:80/m?x=1"),
        ] {
            assert_eq!(String::from(text.parse::<DcgmEndpoint>().unwrap()), full);
        }
        for text in ["", "dcgm:9400", "https://dcgm/metrics", "http://user:secret@dcgm/metrics", "http:///metrics"] {
            let error = text.parse::<DcgmEndpoint>().unwrap_err().to_string();
            assert!(error.contains("http://host:port") && !error.contains("secret"), "{error}");
        }
    }

    #[tokio::test]
    async fn exporters_are_read_and_a_missing_one_leaves_no_figures() {
        let text = "DCGM_FI_DEV_GPU_UTIL{gpu=\"0\",namespace=\"comity-lease-7\",pod=\"p\"} 0\n";
        let long = "x".repeat(MAX_BYTES + 1);
        let app =
            Router::new().route("/metrics", get(move || async move { text })).route("/long", get(|| async { long }));
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let server = tokio::spawn(async move { axum::serve(listener, app).await });
        let client = Client::builder(TokioExecutor::new()).build_http();
        let at = |path: &str| format!("http://{address}{path}").parse::<DcgmEndpoint>().unwrap();
        let good = round(&client, &at("/metrics")).await;
        assert_eq!((good.load.of("comity-lease-7", "p"), good.failures.len()), (Load::Idle, 0));
        for path in ["/absent", "/long"] {
            let bad = round(&client, &at(path)).await;
            assert_eq!((bad.load, bad.failures.len()), (GpuLoad::default(), 1), "{path}");
        }
        server.abort();
    }
}
