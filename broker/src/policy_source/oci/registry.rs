//! Calls of a registry, as the OCI distribution specification 1.1 has them.

use std::path::Path;

use bytes::Bytes;
use comity_runtime::Secret;
use comity_runtime::secret::SecretString;
use http::header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE, HeaderMap, LOCATION, USER_AGENT};
use http::{HeaderValue, Method, Request, StatusCode, Uri};
use http_body_util::Full;
use serde::Deserialize;

use crate::policy_source::address_text::{HTTP_PORT, HTTPS_PORT};
use crate::policy_source::http_host::{HttpAnswer, HttpHost, tls};
use crate::policy_source::oci::address::{ArtifactAddress, ArtifactDigest, ArtifactVersion, is_this_machine};
use crate::policy_source::oci::manifest::{Descriptor, MANIFEST_TYPE};
use crate::policy_source::oci::registry_login::{LOGIN_REMEDY, registry_login};
use crate::policy_source::oci::token_challenge::TokenChallenge;
use crate::policy_source::pull_error::PullError;

const REGISTRY_AGENT: &str = concat!("comity/", env!("CARGO_PKG_VERSION"));
/// Bytes of a manifest. One of a policy has a few hundred, and one of signatures a few thousand each.
const MAX_MANIFEST_BYTES: usize = 256 * 1024;
/// Bytes of an answer with a token.
const MAX_TOKEN_ANSWER_BYTES: usize = 64 * 1024;
/// Servers from which a layer may come: registries send callers to their storage.
const MAX_REDIRECTS: usize = 3;
const ADDRESS: &str = "check the address: `oras manifest fetch` or `skopeo inspect` show what is there";
pub(super) const LIES: &str = "ask who runs the registry, or pin the artifact: oci://HOST/NAME@sha256:DIGEST";
const OTHER_SERVER: &str =
    "ask who runs the registry: other servers that it names need an https:// address without a user";

/// A repository of a registry.
pub(super) struct Registry {
    server: HttpHost,
    name: String,
    /// What a token is for: `pull`, or `pull,push`.
    actions: &'static str,
    /// Sent to the registry, or where it gives tokens, once it asks.
    login: Option<SecretString>,
    /// Sent with each call, after the registry asked.
    authorization: Option<SecretString>,
}

/// One call.
pub(super) struct RegistryCall<'c> {
    pub(super) method: Method,
    /// Path and query.
    pub(super) path: &'c str,
    /// The media type of the body, or that is accepted if there is no body.
    pub(super) media_type: &'c str,
    pub(super) body: Bytes,
    /// Bytes of the answer.
    pub(super) limit: usize,
}

/// A manifest as it came.
pub(super) struct RawManifest {
    pub(super) digest: ArtifactDigest,
    pub(super) bytes: Bytes,
}

/// The answer of a server of tokens.
#[derive(Deserialize)]
struct TokenAnswer {
    token: Option<SecretString>,
    access_token: Option<SecretString>,
}

impl Registry {
    /// The repository of an artifact. The files have further authorities, and credentials.
    pub(super) fn of(
        artifact: &ArtifactAddress,
        authorities: Option<&Path>,
        config: Option<&Path>,
        actions: &'static str,
    ) -> Result<Self, PullError> {
        let login = config.map(|file| registry_login(file, artifact)).transpose()?.flatten();
        let tls = if artifact.is_plain { None } else { Some(tls(authorities)?) };
        let server = HttpHost { host: artifact.host.clone(), port: artifact.port, tls };
        Ok(Self { server, name: artifact.name.clone(), actions, login, authorization: None })
    }

    /// A path of the repository.
    pub(super) fn path(&self, rest: &str) -> String {
        format!("/v2/{}/{rest}", self.name)
    }

    pub(super) fn host(&self) -> &str {
        &self.server.host
    }

    /// The manifest with a tag or digest; `None` if there is none.
    pub(super) async fn manifest(&mut self, version: &ArtifactVersion) -> Result<Option<RawManifest>, PullError> {
        let path = self.path(&format!("manifests/{version}"));
        let answer = self.get(&path, MANIFEST_TYPE, MAX_MANIFEST_BYTES).await?;
        if answer.status == StatusCode::NOT_FOUND {
            return Ok(None);
        }
        self.check_status(answer.status)?;
        let digest = ArtifactDigest::of(&answer.body);
        let wanted = match version {
            ArtifactVersion::Digest(wanted) => Some(wanted.to_string()),
            ArtifactVersion::Tag(_) => {
                let named = answer.headers.get("docker-content-digest").and_then(|value| value.to_str().ok());
                named.map(str::to_owned)
            }
        };
        match wanted {
            Some(wanted) if wanted != digest.to_string() => {
                let reason = format!("{} sent the manifest {digest}, expected", self.server.host);
                Err(PullError::saying(&reason, &wanted, LIES))
            }
            _ => Ok(Some(RawManifest { digest, bytes: answer.body })),
        }
    }

    /// A layer, from wherever the registry keeps it.
    pub(super) async fn layer(&mut self, layer: &Descriptor, limit: usize) -> Result<Bytes, PullError> {
        let size = usize::try_from(layer.size).ok().filter(|size| *size <= limit);
        let size = size.ok_or_else(|| PullError::too_long(&self.server.host, limit))?;
        let path = self.path(&format!("blobs/{}", layer.digest));
        let mut answer = self.get(&path, &layer.media_type, size).await?;
        let mut from = self.server.clone();
        for _ in 0..MAX_REDIRECTS {
            if !answer.status.is_redirection() {
                break;
            }
            let (server, path) = self.storage(from, &answer.headers)?;
            // Without credentials: they are for the registry.
            answer = server.exchange(get(&path, &layer.media_type, None)?, size).await?;
            from = server;
        }
        self.check_status(answer.status)?;
        let digest = ArtifactDigest::of(&answer.body);
        if answer.body.len() != size || digest != layer.digest {
            let (got, host, expected) = (answer.body.len(), &self.server.host, layer.digest);
            let reason = format!("{host} sent a layer of {got} bytes, {digest}; expected {size} bytes, {expected}");
            return Err(PullError::new(reason, LIES));
        }
        Ok(answer.body)
    }

    /// Where a redirect leads.
    fn storage(&self, from: HttpHost, headers: &HeaderMap) -> Result<(HttpHost, String), PullError> {
        let to = headers.get(LOCATION).and_then(|to| to.to_str().ok()).unwrap_or_default();
        let to: Uri = to.parse().map_err(|_| self.refused("redirects and names no address"))?;
        let path = to.path_and_query().map_or("/", |path| path.as_str()).to_owned();
        let server = if to.authority().is_none() { from } else { self.server_at("redirects to", &to)? };
        Ok((server, path))
    }

    /// The server of an address that the registry names: over TLS, unless both are on this machine.
    fn server_at(&self, what: &str, to: &Uri) -> Result<HttpHost, PullError> {
        let authority = to.authority().ok_or_else(|| self.refused(&format!("{what} an address without a host")))?;
        if authority.as_str().contains('@') {
            return Err(self.refused(&format!("{what} an address with a user")));
        }
        let is_plain = to.scheme_str() != Some("https");
        if is_plain && (self.server.tls.is_some() || !is_this_machine(authority.host())) {
            return Err(self.refused(&format!("{what} an address without TLS")));
        }
        // A registry without TLS is on this machine, and there is no reason for it to send brokers away from there.
        if !is_plain && self.server.tls.is_none() {
            let reason = format!("{} has no TLS, and {what} an address with TLS", self.server.host);
            return Err(PullError::new(reason, "give the registry TLS, and write its address with oci://"));
        }
        let port = authority.port_u16().unwrap_or(if is_plain { HTTP_PORT } else { HTTPS_PORT });
        Ok(HttpHost { host: authority.host().to_owned(), port, tls: self.server.tls.clone() })
    }

    fn refused(&self, why: &str) -> PullError {
        PullError::new(format!("{} {why}", self.server.host), OTHER_SERVER)
    }

    pub(super) async fn get(&mut self, path: &str, accept: &str, limit: usize) -> Result<HttpAnswer, PullError> {
        let call = RegistryCall { method: Method::GET, path, media_type: accept, body: Bytes::new(), limit };
        self.call(call).await
    }

    /// Calls the registry, and a second time if it asks for credentials.
    pub(super) async fn call(&mut self, call: RegistryCall<'_>) -> Result<HttpAnswer, PullError> {
        let answer = self.server.exchange(self.request(&call)?, call.limit).await?;
        if answer.status != StatusCode::UNAUTHORIZED || self.authorization.is_some() {
            return Ok(answer);
        }
        self.authorization = match TokenChallenge::of(&answer.headers) {
            Some(TokenChallenge::Basic) => self.login.as_ref().map(|login| Secret::new(login.expose().clone())),
            Some(TokenChallenge::Bearer { realm, service }) => Some(self.token(&realm, service.as_deref()).await?),
            None => None,
        };
        if self.authorization.is_none() {
            return Ok(answer);
        }
        self.server.exchange(self.request(&call)?, call.limit).await
    }

    /// A token for this repository. The registry decides where tokens come from; whoever may set that could ask for the
    /// password itself.
    async fn token(&self, realm: &str, service: Option<&str>) -> Result<SecretString, PullError> {
        let uri: Uri = realm.parse().map_err(|_| self.refused("names no address for tokens"))?;
        let server = self.server_at("takes tokens from", &uri)?;
        let path = self.token_path(&uri, service);
        let request = get(&path, "application/json", self.login.as_ref())?;
        let answer = server.exchange(request, MAX_TOKEN_ANSWER_BYTES).await?;
        if !answer.status.is_success() {
            let reason = format!("{} gives no token for {} ({})", server.host, self.name, answer.status);
            return Err(PullError::new(reason, LOGIN_REMEDY));
        }
        let body = Secret::new(answer.body.to_vec());
        // Errors of the parser could show the token.
        let parsed: Option<TokenAnswer> = serde_json::from_slice(body.expose()).ok();
        let token = parsed.and_then(|parsed| parsed.token.or(parsed.access_token));
        let token = token.ok_or_else(|| PullError::new(format!("{} answers with no token", server.host), LIES))?;
        Ok(Secret::new(format!("Bearer {}", token.expose())))
    }

    fn token_path(&self, realm: &Uri, service: Option<&str>) -> String {
        let mut query = form_urlencoded::Serializer::new(String::new());
        if let Some(service) = service {
            query.append_pair("service", service);
        }
        query.append_pair("scope", &format!("repository:{}:{}", self.name, self.actions));
        let separator = if realm.query().is_some() { '&' } else { '?' };
        let given = realm.path_and_query().map_or("/", |path| path.as_str());
        format!("{given}{separator}{}", query.finish())
    }

    fn request(&self, call: &RegistryCall<'_>) -> Result<Request<Full<Bytes>>, PullError> {
        if call.method == Method::GET {
            return get(call.path, call.media_type, self.authorization.as_ref());
        }
        let request = Request::builder()
            .method(call.method.clone())
            .uri(call.path)
            .header(USER_AGENT, REGISTRY_AGENT)
            .header(CONTENT_TYPE, call.media_type)
            .body(Full::new(call.body.clone()));
        authorized(request.map_err(|error| unsendable(&error))?, self.authorization.as_ref())
    }

    pub(super) fn check_status(&self, status: StatusCode) -> Result<(), PullError> {
        let host = &self.server.host;
        if status.is_success() {
            return Ok(());
        }
        Err(match status {
            StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => {
                PullError::new(format!("{host} refuses access to {} ({status})", self.name), LOGIN_REMEDY)
            }
            StatusCode::NOT_FOUND => PullError::new(format!("{host} has no such content of {}", self.name), ADDRESS),
            status if status.is_redirection() => PullError::new(format!("{host} redirects ({status})"), ADDRESS),
            _ => PullError::new(format!("{host} answers {status}"), "try again later, or ask who runs the registry"),
        })
    }
}

fn get(path: &str, accept: &str, authorization: Option<&SecretString>) -> Result<Request<Full<Bytes>>, PullError> {
    let request = Request::builder().uri(path).header(USER_AGENT, REGISTRY_AGENT).header(ACCEPT, accept);
    authorized(request.body(Full::default()).map_err(|error| unsendable(&error))?, authorization)
}

fn authorized(
    mut request: Request<Full<Bytes>>,
    authorization: Option<&SecretString>,
) -> Result<Request<Full<Bytes>>, PullError> {
    if let Some(secret) = authorization {
        let value = HeaderValue::from_str(secret.expose());
        let mut value = value.map_err(|_| PullError::new("the credentials cannot be sent", LOGIN_REMEDY))?;
        value.set_sensitive(true);
        request.headers_mut().insert(AUTHORIZATION, value);
    }
    Ok(request)
}

fn unsendable(error: &dyn std::fmt::Display) -> PullError {
    PullError::saying("the registry cannot be asked", error, ADDRESS)
}
