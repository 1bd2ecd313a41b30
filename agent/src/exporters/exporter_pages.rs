//! Reads the pages of exporters.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::time::Duration;

use bytes::Bytes;
use futures::StreamExt as _;
use http::{Request, StatusCode};
use http_body_util::{BodyExt as _, Empty, Limited};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;

use super::exporter_endpoint::ExporterEndpoint;

/// How long one exporter may take.
const TIMEOUT: Duration = Duration::from_secs(10);
/// Bytes of one exporter's metrics: 128 devices with 100 metrics of 500 bytes.
const MAX_BYTES: usize = 8 << 20;
/// Concurrent calls.
const CONCURRENT_SCRAPES: usize = 16;
/// Exporters of one cluster: one for each node.
const MAX_EXPORTERS: usize = 10_000;

/// Reads all exporters behind one name.
#[derive(Debug)]
pub(crate) struct ExporterReader {
    client: Client<HttpConnector, Empty<Bytes>>,
    endpoint: ExporterEndpoint,
    /// Exporters that failed in the last round.
    failed: BTreeSet<String>,
}

/// The exporters' answers of one round, by address; the key of a failure may also be the name.
#[derive(Debug, Default)]
pub(crate) struct Pages {
    pub(crate) texts: BTreeMap<SocketAddr, String>,
    pub(crate) failures: BTreeMap<String, String>,
}

impl ExporterReader {
    pub(crate) fn new(endpoint: ExporterEndpoint) -> Self {
        let client = Client::builder(TokioExecutor::new()).build_http();
        Self { client, endpoint, failed: BTreeSet::new() }
    }

    /// Reads all exporters once.
    pub(crate) async fn read(&self) -> Pages {
        let mut pages = Pages::default();
        let host = self.endpoint.host.trim_matches(['[', ']']);
        let found = tokio::time::timeout(TIMEOUT, tokio::net::lookup_host((host, self.endpoint.port))).await;
        let failure = match found {
            Ok(Ok(found)) => {
                let addresses: BTreeSet<SocketAddr> = found.take(MAX_EXPORTERS).collect();
                let calls = addresses.into_iter().map(|address| async move { (address, self.page(address).await) });
                let mut answers = futures::stream::iter(calls).buffer_unordered(CONCURRENT_SCRAPES);
                while let Some((address, answer)) = answers.next().await {
                    match answer {
                        Ok(text) => drop(pages.texts.insert(address, text)),
                        Err(error) => drop(pages.failures.insert(address.to_string(), error)),
                    }
                }
                return pages;
            }
            Ok(Err(error)) => error.to_string(),
            Err(_) => "the name is not resolved in time".to_owned(),
        };
        pages.failures.insert(self.endpoint.host.clone(), failure);
        pages
    }

    /// Logs failures that are new, with what follows from them.
    pub(crate) fn log(&mut self, failures: BTreeMap<String, String>, consequence: &str) {
        for (exporter, error) in failures.iter().filter(|(exporter, _)| !self.failed.contains(*exporter)) {
            tracing::warn!(exporter, error, "{consequence}");
        }
        self.failed = failures.into_keys().collect();
    }

    async fn page(&self, address: SocketAddr) -> Result<String, String> {
        let ExporterEndpoint { host, port, path } = &self.endpoint;
        let request = Request::get(format!("http://{address}{path}"))
            .header(http::header::HOST, format!("{host}:{port}"))
            .body(Empty::new())
            .map_err(|error| error.to_string())?;
        let call = async {
            let response = self.client.request(request).await.map_err(|error| error.to_string())?;
            if response.status() != StatusCode::OK {
                return Err(format!("it answers {}", response.status()));
            }
            let body =
                Limited::new(response.into_body(), MAX_BYTES).collect().await.map_err(|error| error.to_string())?;
            String::from_utf8(body.to_bytes().into()).map_err(|_| "its answer is not UTF-8 text".to_owned())
        };
        tokio::time::timeout(TIMEOUT, call).await.map_err(|_| "it does not answer in time".to_owned())?
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use axum::Router;
    use axum::routing::get;

    use super::*;

    #[tokio::test]
    async fn exporters_are_read_and_failures_are_told() {
        let long = "x".repeat(MAX_BYTES + 1);
        let app = Router::new().route("/metrics", get(|| async { "up 1\n" })).route("/long", get(|| async { long }));
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let server = tokio::spawn(async move { axum::serve(listener, app).await });
        let at = |path: &str| ExporterReader::new(format!("http://{address}{path}").parse().unwrap());
        let good = at("/metrics").read().await;
        assert_eq!(good.texts, BTreeMap::from([(address, "up 1\n".to_owned())]));
        assert!(good.failures.is_empty(), "{:?}", good.failures);
        for path in ["/absent", "/long"] {
            let bad = at(path).read().await;
            assert_eq!((bad.texts.len(), bad.failures.len()), (0, 1), "{path}");
        }
        server.abort();
    }
}
