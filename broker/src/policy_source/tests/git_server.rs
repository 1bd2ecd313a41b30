//! A Git server for tests: the real `git http-backend` behind TLS, with the faults of servers.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::{Arc, Mutex};

use http::{Request, StatusCode};
use http_body_util::BodyExt as _;
use hyper::body::Incoming;
use tokio::io::AsyncWriteExt as _;

use super::tls_server::{TlsAnswer, TlsServer, endless, whole};

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
    _server: TlsServer,
}

impl GitServer {
    /// Serves the repositories below `root`; writes its authority to `home`.
    pub(crate) async fn start(root: &Path, home: &Path) -> Self {
        let mood = Arc::new(Mutex::new(Mood::Good));
        let authorizations = Arc::new(Mutex::new(Vec::new()));
        let state = (root.to_owned(), Arc::clone(&mood), Arc::clone(&authorizations));
        let server = TlsServer::start(home, "git-server.pem", move |request| answer(state.clone(), request)).await;
        Self { address: server.address, authority: server.authority.clone(), mood, authorizations, _server: server }
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

async fn answer((root, mood, authorizations): ServerState, request: Request<Incoming>) -> TlsAnswer {
    let mood = *mood.lock().expect("not poisoned");
    let given = request.headers().get("authorization").and_then(|value| value.to_str().ok()).map(str::to_owned);
    authorizations.lock().expect("not poisoned").extend(given.clone());
    match mood {
        Mood::Hangs => std::future::pending().await,
        Mood::Redirects => {
            let to = [("location", "https://elsewhere.example/policy.git".to_owned())];
            return whole(StatusCode::MOVED_PERMANENTLY, &to, "");
        }
        Mood::Private(wanted) if given.as_deref() != Some(wanted) => {
            return whole(StatusCode::UNAUTHORIZED, &[], "");
        }
        Mood::Endless => return endless(),
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
    let text = String::from_utf8_lossy(&output[..end]);
    let mut status = StatusCode::OK;
    let mut headers = Vec::new();
    for line in text.lines() {
        let Some((name, value)) = line.split_once(": ") else { continue };
        if name.eq_ignore_ascii_case("status") {
            status = value.split(' ').next().and_then(|code| code.parse().ok()).expect("a status");
        } else {
            headers.push((name, value.to_owned()));
        }
    }
    whole(status, &headers, output[end + 4..].to_vec())
}
