//! HTTPS calls of one server: no proxy, no redirect, no compression, and a bound on every answer.

use std::path::Path;
use std::sync::Arc;

use bytes::Bytes;
use comity_runtime::secret::SecretString;
use http::header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE, HOST, LOCATION, USER_AGENT};
use http::{HeaderValue, Method, Request, StatusCode};
use http_body_util::{BodyExt as _, Full};
use hyper_util::rt::TokioIo;
use rustls::{ClientConfig, RootCertStore};
use rustls_pki_types::pem::PemObject as _;
use rustls_pki_types::{CertificateDer, ServerName};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

use crate::policy_source::pull_error::PullError;

/// Servers of Git answer programs that call themselves git.
const AGENT: &str = concat!("git/comity-", env!("CARGO_PKG_VERSION"));
const REACH: &str = "check the address, and whether the leader's machine reaches the server";
const TRUST: &str = "give the server's authority with --policy-ca on each broker";
const ANSWER: &str = "check the address: a browser shows what is there";
const SMALLER: &str = "keep the policy in a repository of its own";

/// A server and what it takes to be answered.
pub(super) struct GitHost {
    pub(super) host: String,
    pub(super) port: u16,
    pub(super) tls: Arc<ClientConfig>,
    pub(super) authorization: Option<SecretString>,
}

/// One call.
pub(super) struct Call<'c> {
    pub(super) method: Method,
    pub(super) path: &'c str,
    /// The media type of the body, or that is accepted if there is no body.
    pub(super) media_type: &'static str,
    pub(super) body: Vec<u8>,
    /// Bytes of the answer.
    pub(super) limit: usize,
}

/// The authorities of this machine, and those of a file.
pub(super) fn tls(authorities: Option<&Path>) -> Result<Arc<ClientConfig>, PullError> {
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    if let Some(path) = authorities {
        let failed = |error: &dyn std::fmt::Display| PullError::saying("cannot read --policy-ca", error, TRUST);
        for certificate in CertificateDer::pem_file_iter(path).map_err(|error| failed(&error))? {
            let certificate = certificate.map_err(|error| failed(&error))?;
            roots.add(certificate).map_err(|error| failed(&error))?;
        }
    }
    let mut config = ClientConfig::builder().with_root_certificates(roots).with_no_client_auth();
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(Arc::new(config))
}

impl GitHost {
    /// Calls the server over a connection of its own. Ends when the caller's deadline drops it.
    pub(super) async fn call(&self, call: Call<'_>) -> Result<Bytes, PullError> {
        let name = self.host.trim_start_matches('[').trim_end_matches(']');
        let reach = |error: &dyn std::fmt::Display| {
            PullError::saying(&format!("cannot reach {}:{}", self.host, self.port), error, REACH)
        };
        let stream = TcpStream::connect((name, self.port)).await.map_err(|error| reach(&error))?;
        let server = ServerName::try_from(name.to_owned()).map_err(|error| reach(&error))?;
        let stream = TlsConnector::from(Arc::clone(&self.tls))
            .connect(server, stream)
            .await
            .map_err(|error| PullError::saying(&format!("cannot trust {}:{}", self.host, self.port), &error, TRUST))?;
        let (mut sender, connection) =
            hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.map_err(|error| reach(&error))?;
        // Ends with the answer, or with the deadline, which drops the sender.
        let connection = AbortOnDrop(tokio::spawn(async move { drop(connection.await) }));
        let request = self.request(&call)?;
        let answer = sender.send_request(request).await.map_err(|error| reach(&error))?;
        self.check_status(answer.status(), answer.headers().get(LOCATION))?;
        let mut body = answer.into_body();
        let mut whole = Vec::new();
        while let Some(frame) = body.frame().await {
            let frame = frame.map_err(|error| reach(&error))?;
            if let Some(data) = frame.data_ref() {
                if whole.len() + data.len() > call.limit {
                    let reason = format!("the answer of {} has more than {} bytes", self.host, call.limit);
                    return Err(PullError::new(reason, SMALLER));
                }
                whole.extend_from_slice(data);
            }
        }
        drop(connection);
        Ok(Bytes::from(whole))
    }

    fn request(&self, call: &Call<'_>) -> Result<Request<Full<Bytes>>, PullError> {
        let host = if self.port == 443 { self.host.clone() } else { format!("{}:{}", self.host, self.port) };
        let mut request = Request::builder()
            .method(call.method.clone())
            .uri(call.path)
            .header(HOST, host)
            .header(USER_AGENT, AGENT)
            .header("git-protocol", "version=2");
        request = if call.body.is_empty() {
            request.header(ACCEPT, call.media_type)
        } else {
            request.header(CONTENT_TYPE, call.media_type)
        };
        if let Some(secret) = &self.authorization {
            let mut value = HeaderValue::from_str(secret.expose())
                .map_err(|_| PullError::new("the credentials cannot be sent", ANSWER))?;
            value.set_sensitive(true);
            request = request.header(AUTHORIZATION, value);
        }
        request
            .body(Full::new(Bytes::from(call.body.clone())))
            .map_err(|error| PullError::saying("the repository cannot be asked for", &error, ANSWER))
    }

    fn check_status(&self, status: StatusCode, location: Option<&HeaderValue>) -> Result<(), PullError> {
        let host = &self.host;
        if status.is_success() {
            return Ok(());
        }
        if status.is_redirection() {
            let to = location.and_then(|to| to.to_str().ok()).unwrap_or("nowhere");
            // A redirect may lead to a server for which nobody set the source.
            let remedy = "set the source to the address that the server names";
            return Err(PullError::saying(&format!("{host} redirects"), &to, remedy));
        }
        Err(match status {
            StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => PullError::new(
                format!("{host} refuses access ({status})"),
                "give each broker a token that reads the repository, with --policy-credentials",
            ),
            StatusCode::NOT_FOUND => PullError::new(
                format!("{host} has no such repository, or it needs credentials ({status})"),
                "check the address, and give each broker a token with --policy-credentials",
            ),
            _ => PullError::new(format!("{host} answers {status}"), "try again later, or ask who runs the server"),
        })
    }
}

/// A task that ends with its owner.
struct AbortOnDrop(tokio::task::JoinHandle<()>);

impl Drop for AbortOnDrop {
    fn drop(&mut self) {
        self.0.abort();
    }
}
