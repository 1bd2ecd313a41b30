//! A registry for tests: the real registry of the distribution project, and before it a server with TLS that has the faults
//! of servers, and asks for the credentials that hosted registries ask for.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use comity_testkit::OciRegistry;
use http::{Method, Request, Response, StatusCode};
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use hyper_util::rt::TokioIo;
use sha2::{Digest as _, Sha256};
use tokio::net::TcpStream;

use super::tls_server::{TlsAnswer, TlsServer, endless, whole};

/// Method and path of each call, and the value of `Authorization`.
type RegistryCalls = Arc<Mutex<Vec<(String, Option<String>)>>>;

const IMAGE_MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";
const TOKEN: &str = "token-of-the-registry";

/// How the server behaves.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum RegistryMood {
    /// As the registry.
    Good,
    /// Accepts calls and never answers.
    Hangs,
    /// Answers without end.
    Endless,
    /// Asks for `Basic` with these credentials.
    Basic(&'static str),
    /// Asks for a token, which it gives to whoever has these credentials.
    Bearer(&'static str),
    /// Asks for a token of this address.
    TokensOf(String),
    /// Sends callers of layers to this address, and there is the path.
    LayersAt(String),
    /// Sends another layer of the same length.
    OtherLayers,
    /// Sends another manifest than its header says.
    OtherManifests,
}

/// A running registry. Ends with its owner.
pub(crate) struct RegistryServer {
    /// The server with TLS.
    pub(crate) address: SocketAddr,
    /// The registry itself, without TLS and without credentials.
    pub(crate) plain: SocketAddr,
    /// The file with the authority of the server with TLS.
    pub(crate) authority: PathBuf,
    mood: Arc<Mutex<RegistryMood>>,
    pub(crate) calls: RegistryCalls,
    _server: TlsServer,
    _registry: OciRegistry,
}

pub(crate) fn digest(content: &[u8]) -> String {
    format!("sha256:{}", hex::encode(Sha256::digest(content)))
}

/// Files in the archive that `tar` makes of a folder, as `oras push` does.
pub(crate) fn archive<'f>(files: impl IntoIterator<Item = (&'f str, &'f str)>) -> Vec<u8> {
    let folder = tempfile::tempdir().expect("a folder");
    for (name, text) in files {
        let path = folder.path().join(name);
        std::fs::create_dir_all(path.parent().expect("in the folder")).expect("a folder");
        std::fs::write(path, text).expect("the file is written");
    }
    let output = Command::new("tar").arg("-C").arg(folder.path()).args(["-czf", "-", "."]).output().expect("tar runs");
    assert!(output.status.success());
    output.stdout
}

impl RegistryServer {
    /// Keeps everything in `home`.
    pub(crate) async fn start(home: &Path) -> Self {
        let registry = OciRegistry::start(home).expect("the registry starts");
        let plain = registry.address;
        let mood = Arc::new(Mutex::new(RegistryMood::Good));
        let calls = Arc::new(Mutex::new(Vec::new()));
        let front = Front { plain, mood: Arc::clone(&mood), calls: Arc::clone(&calls) };
        let answer = move |request| {
            let front = front.clone();
            async move { front.answer(request).await }
        };
        let server = TlsServer::start(home, "registry.pem", answer).await;
        let (address, authority) = (server.address, server.authority.clone());
        Self { address, plain, authority, mood, calls, _server: server, _registry: registry }
    }

    /// The address of an artifact over TLS; `rest` as in `policy:main`.
    pub(crate) fn url(&self, rest: &str) -> String {
        format!("oci://localhost:{}/{rest}", self.address.port())
    }

    /// The same without TLS.
    pub(crate) fn plain_url(&self, rest: &str) -> String {
        format!("oci+http://{}/{rest}", self.plain)
    }

    pub(crate) fn set_mood(&self, mood: RegistryMood) {
        *self.mood.lock().expect("not poisoned") = mood;
    }

    /// The calls since the last look.
    pub(crate) fn take_calls(&self) -> Vec<(String, Option<String>)> {
        std::mem::take(&mut *self.calls.lock().expect("not poisoned"))
    }

    /// Uploads a content, and returns its descriptor.
    pub(crate) async fn upload(&self, name: &str, media_type: &str, content: &[u8]) -> serde_json::Value {
        let begun = exchange(self.plain, Method::POST, &format!("/v2/{name}/blobs/uploads/"), None, Bytes::new()).await;
        assert_eq!(begun.status(), StatusCode::ACCEPTED);
        let location: http::Uri = begun.headers()["location"].to_str().expect("text").parse().expect("an address");
        let path = format!("{}&digest={}", location.path_and_query().expect("a path"), digest(content));
        let body = Bytes::copy_from_slice(content);
        let done = exchange(self.plain, Method::PUT, &path, Some("application/octet-stream"), body).await;
        assert_eq!(done.status(), StatusCode::CREATED);
        serde_json::json!({"mediaType": media_type, "digest": digest(content), "size": content.len()})
    }

    /// Puts a manifest, as it is, under a tag. Returns its digest.
    pub(crate) async fn put_manifest(&self, name: &str, tag: &str, manifest: &serde_json::Value) -> String {
        let body = Bytes::from(serde_json::to_vec(manifest).expect("JSON"));
        let path = format!("/v2/{name}/manifests/{tag}");
        let media_type = manifest["mediaType"].as_str().expect("a media type");
        let done = exchange(self.plain, Method::PUT, &path, Some(media_type), body.clone()).await;
        assert_eq!(done.status(), StatusCode::CREATED, "{manifest}");
        digest(&body)
    }

    /// Pushes an artifact with these layers: media type, content, annotations. Returns its digest.
    pub(crate) async fn push(
        &self,
        name: &str,
        tag: &str,
        layers: &[(&str, &[u8], BTreeMap<String, String>)],
    ) -> String {
        let config = self.upload(name, "application/vnd.oci.empty.v1+json", b"{}").await;
        let mut descriptors = Vec::new();
        for (media_type, content, annotations) in layers {
            let mut layer = self.upload(name, media_type, content).await;
            layer["annotations"] = serde_json::to_value(annotations).expect("JSON");
            descriptors.push(layer);
        }
        let manifest = serde_json::json!({
            "schemaVersion": 2, "mediaType": IMAGE_MANIFEST, "config": config, "layers": descriptors,
        });
        self.put_manifest(name, tag, &manifest).await
    }
}

async fn exchange(
    server: SocketAddr,
    method: Method,
    path: &str,
    media_type: Option<&str>,
    body: Bytes,
) -> Response<Incoming> {
    let mut request = Request::builder().method(method).uri(path).header("host", server.to_string());
    if let Some(media_type) = media_type {
        request = request.header("content-type", media_type);
    }
    send(server, request.body(Full::new(body)).expect("a request")).await
}

async fn send(server: SocketAddr, request: Request<Full<Bytes>>) -> Response<Incoming> {
    let stream = TcpStream::connect(server).await.expect("the registry listens");
    let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.expect("HTTP");
    tokio::spawn(connection);
    sender.send_request(request).await.expect("an answer")
}

/// The server with TLS.
#[derive(Clone)]
struct Front {
    plain: SocketAddr,
    mood: Arc<Mutex<RegistryMood>>,
    calls: RegistryCalls,
}

impl Front {
    async fn answer(&self, request: Request<Incoming>) -> TlsAnswer {
        let mood = self.mood.lock().expect("not poisoned").clone();
        let given = request.headers().get("authorization").and_then(|value| value.to_str().ok()).map(str::to_owned);
        let host = request.headers().get("host").and_then(|value| value.to_str().ok()).unwrap_or_default().to_owned();
        let path = request.uri().path().to_owned();
        let call = format!("{} {}", request.method(), request.uri());
        self.calls.lock().expect("not poisoned").push((call, given.clone()));
        let is_layer = request.method() == Method::GET && path.contains("/blobs/");
        let bearer = |realm: &str| {
            let challenge = format!("Bearer realm=\"{realm}\",service=\"registry\",scope=\"repository:x:pull\"");
            whole(StatusCode::UNAUTHORIZED, &[("www-authenticate", challenge)], "")
        };
        match &mood {
            RegistryMood::Hangs => std::future::pending().await,
            RegistryMood::Endless => return endless(),
            RegistryMood::Basic(wanted) if given.as_deref() != Some(wanted) => {
                let challenge = "Basic realm=\"registry\"".to_owned();
                return whole(StatusCode::UNAUTHORIZED, &[("www-authenticate", challenge)], "");
            }
            RegistryMood::Bearer(wanted) if path == "/token" => {
                if given.as_deref() != Some(wanted) {
                    return whole(StatusCode::UNAUTHORIZED, &[], "");
                }
                let body = serde_json::json!({"token": TOKEN}).to_string();
                return whole(StatusCode::OK, &[("content-type", "application/json".to_owned())], body);
            }
            RegistryMood::Bearer(_) if given != Some(format!("Bearer {TOKEN}")) => {
                return bearer(&format!("https://{host}/token"));
            }
            RegistryMood::TokensOf(realm) if given.is_none() => return bearer(realm),
            RegistryMood::LayersAt(storage) if is_layer && !path.starts_with("/storage") => {
                let to = if storage.starts_with('/') { storage.clone() } else { format!("{storage}{path}") };
                return whole(StatusCode::TEMPORARY_REDIRECT, &[("location", to)], "");
            }
            _ => {}
        }
        let (status, headers, mut body) = self.forward(request).await;
        if is_layer && mood == RegistryMood::OtherLayers {
            body = vec![b'x'; body.len()];
        }
        if path.contains("/manifests/") && mood == RegistryMood::OtherManifests {
            body.push(b' ');
        }
        let headers: Vec<(&str, String)> = headers.iter().map(|(name, value)| (name.as_str(), value.clone())).collect();
        whole(status, &headers, body)
    }

    /// Asks the registry. What it keeps elsewhere, for redirects, has the same paths below `/storage`.
    async fn forward(&self, request: Request<Incoming>) -> (StatusCode, Vec<(String, String)>, Vec<u8>) {
        let (mut parts, body) = request.into_parts();
        let body = body.collect().await.map(http_body_util::Collected::to_bytes).unwrap_or_default();
        let path = parts.uri.to_string();
        parts.uri = path.strip_prefix("/storage").unwrap_or(&path).parse().expect("a path");
        parts.headers.remove("authorization");
        let answer = send(self.plain, Request::from_parts(parts, Full::new(body))).await;
        let (answered, body) = answer.into_parts();
        let kept = ["content-type", "docker-content-digest", "location"];
        let headers = answered.headers.iter().filter(|(name, _)| kept.contains(&name.as_str()));
        let headers = headers.map(|(name, value)| (name.to_string(), value.to_str().expect("text").to_owned()));
        let headers = headers.collect();
        let body = body.collect().await.map(http_body_util::Collected::to_bytes).unwrap_or_default();
        (answered.status, headers, body.to_vec())
    }
}
