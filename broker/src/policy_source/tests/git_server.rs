//! A Git server for tests: the real `git http-backend` behind TLS, with the faults of servers.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use http::{Request, Response, StatusCode};
use http_body_util::{BodyExt as _, StreamBody, combinators::BoxBody};
use hyper::body::{Frame, Incoming};
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use rustls_pki_types::PrivateKeyDer;
use tokio::io::AsyncWriteExt as _;
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;

/// How the server behaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mood {
    /// As git.
    Good,
    /// Accepts calls and never answers.
    Hangs,
    /// Answers without end.
    Endless,
    /// Asks for `Basic` with these credentials.
    Private(&'static str),
    /// Sends callers elsewhere.
    Redirects,
}

/// A running server. Ends with its owner.
pub(crate) struct GitServer {
    pub(crate) address: SocketAddr,
    /// The file with its authority.
    pub(crate) authority: PathBuf,
    mood: Arc<Mutex<Mood>>,
    /// The values of `Authorization` that callers sent.
    pub(crate) authorizations: Arc<Mutex<Vec<String>>>,
    task: tokio::task::JoinHandle<()>,
}

impl Drop for GitServer {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl GitServer {
    /// Serves the repositories below `root`; writes its authority to `home`.
    pub(crate) async fn start(root: &Path, home: &Path) -> Self {
        let key = rcgen::KeyPair::generate().expect("a key");
        let certificate = rcgen::CertificateParams::new(vec!["localhost".to_owned()])
            .and_then(|params| params.self_signed(&key))
            .expect("a certificate");
        let authority = home.join("git-server.pem");
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
        let mood = Arc::new(Mutex::new(Mood::Good));
        let authorizations = Arc::new(Mutex::new(Vec::new()));
        let state = (root.to_owned(), Arc::clone(&mood), Arc::clone(&authorizations));
        let task = tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let (acceptor, state) = (acceptor.clone(), state.clone());
                tokio::spawn(async move {
                    let Ok(stream) = acceptor.accept(stream).await else { return };
                    let serve = service_fn(move |request| answer(state.clone(), request));
                    let _ =
                        hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(stream), serve).await;
                });
            }
        });
        Self { address, authority, mood, authorizations, task }
    }

    /// The address of a repository.
    pub(crate) fn url(&self, repository: &str) -> String {
        format!("https://localhost:{}/{repository}", self.address.port())
    }

    pub(crate) fn set_mood(&self, mood: Mood) {
        *self.mood.lock().expect("not poisoned") = mood;
    }
}

type ServerState = (PathBuf, Arc<Mutex<Mood>>, Arc<Mutex<Vec<String>>>);
type ServerAnswer = Response<BoxBody<Bytes, Infallible>>;

fn whole(status: StatusCode, headers: &[(String, String)], body: Bytes) -> ServerAnswer {
    let mut response = Response::builder().status(status);
    for (name, value) in headers {
        response = response.header(name, value);
    }
    response.body(http_body_util::Full::new(body).boxed()).expect("a response")
}

async fn answer(
    (root, mood, authorizations): ServerState,
    request: Request<Incoming>,
) -> Result<ServerAnswer, Infallible> {
    let mood = *mood.lock().expect("not poisoned");
    let given = request.headers().get("authorization").and_then(|value| value.to_str().ok()).map(str::to_owned);
    authorizations.lock().expect("not poisoned").extend(given.clone());
    match mood {
        Mood::Hangs => std::future::pending().await,
        Mood::Redirects => {
            let to = [("location".to_owned(), "https://elsewhere.example/policy.git".to_owned())];
            return Ok(whole(StatusCode::MOVED_PERMANENTLY, &to, Bytes::new()));
        }
        Mood::Private(wanted) if given.as_deref() != Some(wanted) => {
            return Ok(whole(StatusCode::UNAUTHORIZED, &[], Bytes::new()));
        }
        Mood::Endless => {
            let chunk = Bytes::from(vec![b'0'; 1 << 20]);
            let frames = futures::stream::repeat_with(move || Ok(Frame::data(chunk.clone())));
            return Ok(Response::new(StreamBody::new(frames).boxed()));
        }
        Mood::Good | Mood::Private(_) => {}
    }
    let (parts, body) = request.into_parts();
    let body = body.collect().await.map(http_body_util::Collected::to_bytes).unwrap_or_default();
    let header = |name: &str| parts.headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let mut backend = tokio::process::Command::new("git")
        .arg("http-backend")
        .env("GIT_PROJECT_ROOT", &root)
        .env("GIT_HTTP_EXPORT_ALL", "1")
        .env("GIT_CONFIG_NOSYSTEM", "1")
        .env("HOME", &root)
        .env("PATH_INFO", parts.uri.path())
        .env("QUERY_STRING", parts.uri.query().unwrap_or_default())
        .env("REQUEST_METHOD", parts.method.as_str())
        .env("CONTENT_TYPE", header("content-type"))
        .env("CONTENT_LENGTH", body.len().to_string())
        .env("GIT_PROTOCOL", header("git-protocol"))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("git runs");
    let mut input = backend.stdin.take().expect("piped");
    let feed = tokio::spawn(async move {
        let _ = input.write_all(&body).await;
    });
    let output = backend.wait_with_output().await.expect("git ends").stdout;
    let _ = feed.await;
    let end = output.windows(4).position(|four| four == b"\r\n\r\n").expect("headers");
    let mut status = StatusCode::OK;
    let mut headers = Vec::new();
    for line in String::from_utf8_lossy(&output[..end]).lines() {
        let Some((name, value)) = line.split_once(": ") else { continue };
        if name.eq_ignore_ascii_case("status") {
            status = value.split(' ').next().and_then(|code| code.parse().ok()).expect("a status");
        } else {
            headers.push((name.to_owned(), value.to_owned()));
        }
    }
    Ok(whole(status, &headers, Bytes::copy_from_slice(&output[end + 4..])))
}
