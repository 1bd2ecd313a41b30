//! A server with TLS for tests.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::Bytes;
use http::{Request, Response, StatusCode};
use http_body_util::{BodyExt as _, Full, StreamBody, combinators::BoxBody};
use hyper::body::{Frame, Incoming};
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use rustls_pki_types::PrivateKeyDer;
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;

pub(crate) type TlsAnswer = Response<BoxBody<Bytes, Infallible>>;

/// A running server. Ends with its owner.
pub(crate) struct TlsServer {
    pub(crate) address: SocketAddr,
    /// The file with its authority.
    pub(crate) authority: PathBuf,
    task: tokio::task::JoinHandle<()>,
}

impl Drop for TlsServer {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl TlsServer {
    /// Answers each call as `answer` does; writes its authority to `home`.
    pub(crate) async fn start<A>(
        home: &Path,
        authority: &str,
        answer: impl Fn(Request<Incoming>) -> A + Clone + Send + Sync + 'static,
    ) -> Self
    where
        A: Future<Output = TlsAnswer> + Send + 'static,
    {
        let key = rcgen::KeyPair::generate().expect("a key");
        let certificate = rcgen::CertificateParams::new(vec!["localhost".to_owned()])
            .and_then(|params| params.self_signed(&key))
            .expect("a certificate");
        let authority = home.join(authority);
        std::fs::write(&authority, certificate.pem()).expect("the file is written");
        let key = PrivateKeyDer::try_from(key.serialize_der()).expect("a key");
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = rustls::ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .expect("versions")
            .with_no_client_auth()
            .with_single_cert(vec![certificate.der().clone()], key)
            .expect("a configuration");
        let acceptor = TlsAcceptor::from(Arc::new(config));
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("an address");
        let task = tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let (acceptor, answer) = (acceptor.clone(), answer.clone());
                tokio::spawn(async move {
                    let Ok(stream) = acceptor.accept(stream).await else { return };
                    let serve = service_fn(move |request| {
                        let answered = answer(request);
                        async move { Ok::<_, Infallible>(answered.await) }
                    });
                    let _ =
                        hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(stream), serve).await;
                });
            }
        });
        Self { address, authority, task }
    }
}

/// An answer in one piece.
pub(crate) fn whole(status: StatusCode, headers: &[(&str, String)], body: impl Into<Bytes>) -> TlsAnswer {
    let mut response = Response::builder().status(status);
    for (name, value) in headers {
        response = response.header(*name, value);
    }
    response.body(Full::new(body.into()).boxed()).expect("a response")
}

/// An answer without end.
pub(crate) fn endless() -> TlsAnswer {
    let chunk = Bytes::from(vec![b'0'; 1 << 20]);
    let frames = futures::stream::repeat_with(move || Ok(Frame::data(chunk.clone())));
    Response::new(StreamBody::new(frames).boxed())
}
