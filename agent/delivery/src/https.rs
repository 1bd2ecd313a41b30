//! HTTPS requests to a server that is identified by its CA and name, whatever address the connection uses.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use comity_runtime::secret::SecretString;
use http_body_util::{BodyExt as _, Empty, Limited};
use hyper_util::rt::TokioIo;
use rustls_pki_types::pem::PemObject as _;
use rustls_pki_types::{CertificateDer, ServerName};
use tokio::net::TcpStream;

/// Time limit of one request.
const TIMEOUT: Duration = Duration::from_secs(10);
/// Largest answer that is read.
const MAX_ANSWER: usize = 1 << 20;

/// A server behind a loopback port.
pub(crate) struct HttpsServer {
    address: SocketAddr,
    name: String,
    tls: Arc<rustls::ClientConfig>,
}

/// Its answer.
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) body: Bytes,
}

impl HttpsServer {
    /// A server at `address` whose certificate carries `name` and chains to `ca_pem`.
    ///
    /// # Errors
    /// A sentence, if the CA or the name cannot be used.
    pub(crate) fn new(address: SocketAddr, name: &str, ca_pem: &str) -> Result<Self, String> {
        let mut roots = rustls::RootCertStore::empty();
        for certificate in CertificateDer::pem_slice_iter(ca_pem.as_bytes()) {
            let certificate =
                certificate.map_err(|error| format!("the CA in the credential cannot be read: {error}"))?;
            roots.add(certificate).map_err(|error| format!("the CA in the credential cannot be used: {error}"))?;
        }
        if roots.is_empty() {
            return Err("the credential holds no CA".to_owned());
        }
        let tls = rustls::ClientConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
            .with_safe_default_protocol_versions()
            .map_err(|error| error.to_string())?
            .with_root_certificates(roots)
            .with_no_client_auth();
        Ok(Self { address, name: name.to_owned(), tls: Arc::new(tls) })
    }

    /// GETs `path` with a bearer token.
    ///
    /// # Errors
    /// A sentence that never quotes the token.
    pub(crate) async fn get(&self, path: &str, token: &SecretString) -> Result<Answer, String> {
        tokio::time::timeout(TIMEOUT, self.exchange(path, token))
            .await
            .unwrap_or_else(|_| Err(format!("no answer from {} within {} s", self.address, TIMEOUT.as_secs())))
    }

    async fn exchange(&self, path: &str, token: &SecretString) -> Result<Answer, String> {
        let name =
            ServerName::try_from(self.name.clone()).map_err(|_| format!("{:?} is not a host name", self.name))?;
        let stream = TcpStream::connect(self.address)
            .await
            .map_err(|error| format!("cannot connect to {}: {error}", self.address))?;
        let connector = tokio_rustls::TlsConnector::from(Arc::clone(&self.tls));
        let stream = connector
            .connect(name, stream)
            .await
            .map_err(|error| format!("TLS with {} as {:?} failed: {error}", self.address, self.name))?;
        let (mut sender, connection) = hyper::client::conn::http1::handshake::<_, Empty<Bytes>>(TokioIo::new(stream))
            .await
            .map_err(|error| error.to_string())?;
        let mut bearer = http::HeaderValue::try_from(format!("Bearer {}", token.expose()))
            .map_err(|_| "the token cannot be sent in a header".to_owned())?;
        bearer.set_sensitive(true);
        let request = http::Request::get(path)
            .header(http::header::HOST, &self.name)
            .header(http::header::AUTHORIZATION, bearer)
            .header(http::header::ACCEPT, "application/json")
            .body(Empty::new())
            .map_err(|error| error.to_string())?;
        let answered = async {
            let response = sender.send_request(request).await.map_err(|error| error.to_string())?;
            let status = response.status().as_u16();
            let body = Limited::new(response.into_body(), MAX_ANSWER)
                .collect()
                .await
                .map_err(|error| error.to_string())?
                .to_bytes();
            Ok(Answer { status, body })
        };
        // The connection must be driven while the answer is read; it ends with this call.
        let mut connection = std::pin::pin!(connection);
        let mut answered = std::pin::pin!(answered);
        tokio::select! {
            answer = &mut answered => answer,
            ended = &mut connection => match ended {
                // The answer may have arrived whole before the connection ended.
                Ok(()) => answered.await,
                Err(error) => Err(error.to_string()),
            },
        }
    }
}
