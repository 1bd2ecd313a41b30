//! Reads the pages of exporters.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use bytes::Bytes;
use comity_runtime::SecretString;
use futures::StreamExt as _;
use http::header::{AUTHORIZATION, HOST, HeaderValue};
use http::{Request, StatusCode};
use http_body_util::{BodyExt as _, Empty};
use hyper::body::Incoming;
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;

use super::exporter_endpoint::ExporterEndpoint;
use super::kept_lines::KeptLines;

/// How long one exporter may take.
const TIMEOUT: Duration = Duration::from_secs(10);
/// Concurrent calls.
const CONCURRENT_SCRAPES: usize = 16;
/// Exporters of one cluster: one for each node.
const MAX_EXPORTERS: usize = 10_000;
/// Letters of a refusal's reason in the log.
const MAX_REASON: usize = 200;

/// Why exporters could not be read in a round, by address; the key may also be their name.
pub(crate) type Failures = BTreeMap<String, String>;

/// Reads all exporters behind one name.
#[derive(Debug)]
pub(crate) struct ExporterReader {
    client: Client<HttpConnector, Empty<Bytes>>,
    endpoint: ExporterEndpoint,
    /// The file with the token that the exporters ask for.
    token_file: Option<PathBuf>,
    /// Exporters that failed in the last round.
    failed: BTreeSet<String>,
}

impl ExporterReader {
    pub(crate) fn new(endpoint: ExporterEndpoint) -> Self {
        let client = Client::builder(TokioExecutor::new()).build_http();
        Self { client, endpoint, token_file: None, failed: BTreeSet::new() }
    }

    /// Shows the token in this file to the exporters. The file is read in each round: the kubelet replaces tokens.
    pub(crate) fn with_token_file(self, file: PathBuf) -> Self {
        Self { token_file: Some(file), ..self }
    }

    /// Reads all exporters once, and hands the lines of the named metrics to `take`, one page at a time.
    pub(crate) async fn read(
        &self,
        names: &[&str],
        mut take: impl FnMut(SocketAddr, &str) -> Result<(), String>,
    ) -> Failures {
        let mut failures = Failures::new();
        let found = async { Ok::<_, String>((self.token()?, self.addresses().await?)) };
        let (token, mut addresses) = match found.await {
            Ok(found) => found,
            Err(error) => return Failures::from([(self.endpoint.host.clone(), error)]),
        };
        if addresses.len() > MAX_EXPORTERS {
            addresses = addresses.into_iter().take(MAX_EXPORTERS).collect();
            failures.insert(self.endpoint.host.clone(), format!("only {MAX_EXPORTERS} of its addresses are read"));
        }
        let token = token.as_ref();
        let calls =
            addresses.into_iter().map(|address| async move { (address, self.page(address, names, token).await) });
        let mut answers = futures::stream::iter(calls).buffer_unordered(CONCURRENT_SCRAPES);
        while let Some((address, answer)) = answers.next().await {
            if let Err(error) = answer.and_then(|page| take(address, &page)) {
                failures.insert(address.to_string(), error);
            }
        }
        failures
    }

    fn token(&self) -> Result<Option<HeaderValue>, String> {
        let Some(file) = &self.token_file else { return Ok(None) };
        let fail = |reason: String| format!("the token file {} cannot be used: {reason}", file.display());
        let token = std::fs::read_to_string(file).map(SecretString::new).map_err(|error| fail(error.to_string()))?;
        let mut header = HeaderValue::try_from(format!("Bearer {}", token.expose().trim()))
            .map_err(|_| fail("it has characters that no token has".to_owned()))?;
        header.set_sensitive(true);
        Ok(Some(header))
    }

    async fn addresses(&self) -> Result<BTreeSet<SocketAddr>, String> {
        let host = self.endpoint.host.trim_matches(['[', ']']);
        let found = tokio::time::timeout(TIMEOUT, tokio::net::lookup_host((host, self.endpoint.port))).await;
        let found = found.map_err(|_| "the name is not resolved in time".to_owned())?;
        Ok(found.map_err(|error| error.to_string())?.take(MAX_EXPORTERS + 1).collect())
    }

    /// Logs failures that are new, with what follows from them.
    pub(crate) fn log(&mut self, failures: Failures, consequence: &str) {
        for (exporter, error) in failures.iter().filter(|(exporter, _)| !self.failed.contains(*exporter)) {
            tracing::warn!(exporter, error, "{consequence}");
        }
        self.failed = failures.into_keys().collect();
    }

    async fn page(&self, address: SocketAddr, names: &[&str], token: Option<&HeaderValue>) -> Result<String, String> {
        let ExporterEndpoint { host, port, path } = &self.endpoint;
        let mut request = Request::get(format!("http://{address}{path}")).header(HOST, format!("{host}:{port}"));
        if let Some(token) = token {
            request = request.header(AUTHORIZATION, token);
        }
        let request = request.body(Empty::new()).map_err(|error| error.to_string())?;
        let call = async {
            let response = self.client.request(request).await.map_err(|error| error.to_string())?;
            let status = response.status();
            if status != StatusCode::OK {
                return Err(format!("it answers {status}: {}", reason(response.into_body()).await));
            }
            let (mut body, mut lines) = (response.into_body(), KeptLines::of(names));
            while let Some(frame) = body.frame().await {
                if let Some(part) = frame.map_err(|error| error.to_string())?.data_ref() {
                    lines.take(part)?;
                }
            }
            lines.end()
        };
        tokio::time::timeout(TIMEOUT, call).await.map_err(|_| "it does not answer in time".to_owned())?
    }
}

/// The beginning of a refusal's text.
async fn reason(mut body: Incoming) -> String {
    let part = match body.frame().await {
        Some(Ok(frame)) => frame.into_data().unwrap_or_default(),
        _ => Bytes::new(),
    };
    String::from_utf8_lossy(&part).lines().next().unwrap_or_default().chars().take(MAX_REASON).collect()
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use axum::Router;
    use axum::http::HeaderMap;
    use axum::routing::get;

    use super::super::kept_lines::MAX_PAGE_BYTES;
    use super::*;

    /// The pages that a round hands over, and its failures.
    async fn read(reader: &ExporterReader) -> (Vec<String>, Failures) {
        let mut pages = Vec::new();
        let failures = reader
            .read(&["up"], |_, page| {
                pages.push(page.to_owned());
                if page == "up 2\n" { Err("not wanted".to_owned()) } else { Ok(()) }
            })
            .await;
        (pages, failures)
    }

    #[tokio::test]
    async fn exporters_are_read_and_failures_are_told() {
        let long = "other 1\n".repeat(MAX_PAGE_BYTES / 8 + 1);
        let secret = |headers: HeaderMap| async move {
            let shown = headers.get(AUTHORIZATION).is_some_and(|value| value == "Bearer secret");
            if shown { (StatusCode::OK, "up 3\n") } else { (StatusCode::UNAUTHORIZED, "show a token\nsecond line") }
        };
        let app = Router::new()
            .route("/metrics", get(|| async { "# TYPE up gauge\nup 1\nother 1\n" }))
            .route("/unwanted", get(|| async { "up 2\n" }))
            .route("/secret", get(secret))
            .route("/long", get(|| async { long }));
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let server = tokio::spawn(async move { axum::serve(listener, app).await });
        let at = |path: &str| ExporterReader::new(format!("http://{address}{path}").parse().unwrap());
        assert_eq!(read(&at("/metrics")).await, (vec!["up 1\n".to_owned()], Failures::new()));
        for (path, reason) in
            [("/absent", "404"), ("/long", "page is longer"), ("/unwanted", "not wanted"), ("/secret", "show a token")]
        {
            let failures = read(&at(path)).await.1;
            assert!(failures.len() == 1 && failures[&address.to_string()].contains(reason), "{path}: {failures:?}");
            assert!(!failures[&address.to_string()].contains("second line"), "{failures:?}");
        }

        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("token");
        let reader = at("/secret").with_token_file(file.clone());
        let missing = read(&reader).await.1;
        assert!(missing["127.0.0.1"].contains(&*file.to_string_lossy()), "{missing:?}");
        std::fs::write(&file, "secret\n").unwrap();
        assert_eq!(read(&reader).await, (vec!["up 3\n".to_owned()], Failures::new()));
        server.abort();
    }
}
