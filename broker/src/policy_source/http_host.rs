//! One exchange with a server: no proxy, no redirect, no compression, and a bound on every answer.

use std::path::Path;
use std::sync::Arc;

use bytes::Bytes;
use http::header::{HOST, HeaderMap};
use http::{HeaderValue, Request, StatusCode};
use http_body_util::{BodyExt as _, Full};
use hyper_util::rt::TokioIo;
use rustls::{ClientConfig, RootCertStore};
use rustls_pki_types::pem::PemObject as _;
use rustls_pki_types::{CertificateDer, ServerName};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

use crate::policy_source::address_text::{HTTP_PORT, HTTPS_PORT, host_name};
use crate::policy_source::pull_error::{PullError, REACH};

pub(super) const TRUST: &str = "give --policy-ca on each broker the authority that issued the server's certificate; a certificate of an \
     authority cannot be the server's own";

const LOOPBACK: &str = "write 127.0.0.1 or [::1] in the address, or use a registry with TLS: oci://HOST/NAME:TAG";

/// A server.
#[derive(Clone)]
pub(super) struct HttpHost {
    pub(super) host: String,
    pub(super) port: u16,
    /// Without it, calls go in plain text, and only to this machine.
    pub(super) tls: Option<Arc<ClientConfig>>,
}

/// What a server answers.
pub(super) struct HttpAnswer {
    pub(super) status: StatusCode,
    pub(super) headers: HeaderMap,
    /// Empty if the status is no success: what servers say about errors is not needed.
    pub(super) body: Bytes,
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

impl HttpHost {
    /// Calls the server over a connection of its own. `limit` are the bytes of the answer. Ends when the caller's
    /// deadline drops it.
    pub(super) async fn exchange(
        &self,
        mut request: Request<Full<Bytes>>,
        limit: usize,
    ) -> Result<HttpAnswer, PullError> {
        let name = host_name(&self.host);
        let value = HeaderValue::from_str(&self.authority()).map_err(|error| self.unreachable(&error))?;
        request.headers_mut().insert(HOST, value);
        let stream = TcpStream::connect((name, self.port)).await.map_err(|error| self.unreachable(&error))?;
        let Some(tls) = &self.tls else {
            // `localhost` is what the resolver says, and the credentials are in plain text.
            let peer = stream.peer_addr().map_err(|error| self.unreachable(&error))?;
            if !peer.ip().is_loopback() {
                return Err(PullError::new(
                    format!("{} is {}, which is not this machine", self.host, peer.ip()),
                    LOOPBACK,
                ));
            }
            return self.converse(stream, request, limit).await;
        };
        let server = ServerName::try_from(name.to_owned()).map_err(|error| self.unreachable(&error))?;
        let stream = TlsConnector::from(Arc::clone(tls))
            .connect(server, stream)
            .await
            .map_err(|error| PullError::saying(&format!("cannot trust {}:{}", self.host, self.port), &error, TRUST))?;
        self.converse(stream, request, limit).await
    }

    async fn converse<S: AsyncRead + AsyncWrite + Unpin + Send + 'static>(
        &self,
        stream: S,
        request: Request<Full<Bytes>>,
        limit: usize,
    ) -> Result<HttpAnswer, PullError> {
        let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream))
            .await
            .map_err(|error| self.unreachable(&error))?;
        // Ends with the answer, or with the deadline, which drops the sender.
        let connection = AbortOnDrop(tokio::spawn(async move { drop(connection.await) }));
        let answer = sender.send_request(request).await.map_err(|error| self.unreachable(&error))?;
        let (parts, mut body) = answer.into_parts();
        let mut whole = Vec::new();
        if parts.status.is_success() {
            while let Some(frame) = body.frame().await {
                let frame = frame.map_err(|error| self.unreachable(&error))?;
                if let Some(data) = frame.data_ref() {
                    if whole.len() + data.len() > limit {
                        return Err(PullError::too_long(&self.host, limit));
                    }
                    whole.extend_from_slice(data);
                }
            }
        }
        drop(connection);
        Ok(HttpAnswer { status: parts.status, headers: parts.headers, body: Bytes::from(whole) })
    }

    /// Host and port, as a header has them.
    fn authority(&self) -> String {
        let usual = if self.tls.is_some() { HTTPS_PORT } else { HTTP_PORT };
        if self.port == usual { self.host.clone() } else { format!("{}:{}", self.host, self.port) }
    }

    fn unreachable(&self, error: &dyn std::fmt::Display) -> PullError {
        PullError::saying(&format!("cannot reach {}:{}", self.host, self.port), error, REACH)
    }
}

/// A task that ends with its owner.
struct AbortOnDrop(tokio::task::JoinHandle<()>);

impl Drop for AbortOnDrop {
    fn drop(&mut self) {
        self.0.abort();
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use tokio::io::AsyncReadExt as _;
    use tokio::net::TcpListener;

    use super::*;

    /// A name stands for whatever address a resolver gives. This form of 127.0.0.1 is none of the loopback addresses.
    #[tokio::test]
    async fn plain_text_goes_to_loopback_addresses_only() {
        for (host, is_refused) in [("127.0.0.1", false), ("::ffff:127.0.0.1", true)] {
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let port = listener.local_addr().unwrap().port();
            let server = HttpHost { host: host.to_owned(), port, tls: None };
            let serve = tokio::spawn(async move {
                let (mut stream, _) = listener.accept().await.unwrap();
                let mut first = [0; 1];
                stream.read(&mut first).await.unwrap_or_default()
            });
            let request = Request::get("/").body(Full::default()).unwrap();
            let error = server.exchange(request, 10).await.err().unwrap();
            assert_eq!(error.reason.contains("is not this machine"), is_refused, "{host}: {error}");
            assert_eq!(serve.await.unwrap() == 0, is_refused, "{host}");
        }
    }
}
