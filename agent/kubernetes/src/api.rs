//! The agent's connection to its cluster's API server, and the address, CA and name that others need to reach it.
//!
//! Connecting proves that the server answers, so that a wrong kubeconfig is one clear error at the start. Every call
//! has a time limit.

mod donor_api;
mod lanes;

use std::future::Future;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use comity_agent_model::forward_target::ForwardTarget;
use kube::config::{KubeConfigOptions, Kubeconfig};
use rustls_pki_types::{CertificateDer, ServerName};
use tokio::net::TcpStream;

pub use donor_api::{connect_to_donor, donor_client};

/// Time limit of connecting, and of the TLS handshake.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// Time limit of one call.
pub const CALL_TIMEOUT: Duration = Duration::from_secs(15);
/// Name in the certificate of nearly every API server.
const CLUSTER_NAME: &str = "kubernetes.default.svc";

/// Source of the API server's address and credentials.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KubernetesSource {
    /// A kubeconfig file.
    Kubeconfig {
        /// The file.
        path: PathBuf,
        /// Context to use; `None` takes the current one.
        context: Option<String>,
    },
    /// The ServiceAccount of the pod that the agent runs in.
    InCluster,
}

impl std::fmt::Display for KubernetesSource {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Kubeconfig { path, .. } => write!(f, "kubeconfig {}", path.display()),
            Self::InCluster => f.write_str("the pod's ServiceAccount"),
        }
    }
}

/// Why the API server cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum KubernetesApiError {
    /// The source is missing, invalid or incomplete.
    #[error("{origin} cannot be used: {reason}; give the agent a kubeconfig that kubectl works with")]
    Unusable {
        /// Where the source is configured.
        origin: String,
        /// The problem.
        reason: String,
    },
    /// The server does not answer.
    #[error(
        "no Kubernetes API server answers at {server}, the server named in {origin}: {reason}; check that the address \
         is right and the server runs, as with kubectl get --raw /version"
    )]
    Unreachable {
        /// Where the source is configured.
        origin: String,
        /// Its address.
        server: String,
        /// The error.
        reason: String,
    },
    /// The server refuses the agent.
    #[error(
        "the Kubernetes API server {server}, named in {origin}, refuses this agent: {reason}; check the user in it, or \
         apply deploy/agent/rbac.yaml"
    )]
    Refused {
        /// Where the source is configured.
        origin: String,
        /// Its address.
        server: String,
        /// The server's reason.
        reason: String,
    },
}

/// A checked connection. Cheap to clone.
#[derive(Clone)]
pub struct KubernetesApi {
    client: kube::Client,
    server: Arc<Server>,
}

struct Server {
    url: String,
    target: ForwardTarget,
    ca_pem: String,
    tls_server_name: String,
}

impl KubernetesApi {
    /// Reads the source, connects, and reads the server's version. Ends within half a minute.
    ///
    /// # Errors
    /// [`KubernetesApiError`], naming the file, the server and the remedy.
    pub async fn connect(source: &KubernetesSource) -> Result<Self, KubernetesApiError> {
        let origin = source.to_string();
        let unusable = |reason: String| KubernetesApiError::Unusable { origin: origin.clone(), reason };
        let config = config(source).await.map_err(unusable)?;
        let url = config.cluster_url.to_string().trim_end_matches('/').to_owned();
        let unreachable =
            |reason: String| KubernetesApiError::Unreachable { origin: origin.clone(), server: url.clone(), reason };

        let host = config.cluster_url.host().unwrap_or_default().trim_matches(['[', ']']).to_owned();
        if config.cluster_url.scheme_str() != Some("https") || host.is_empty() {
            return Err(unusable(format!("server {url:?} is not an https address")));
        }
        let port = config.cluster_url.port_u16().unwrap_or(443);
        let roots = config.root_cert.clone().unwrap_or_default();
        if roots.is_empty() || config.accept_invalid_certs {
            // The origin must be able to check the server through the tunnel, so the agent must know the CA.
            return Err(unusable("it has no certificate-authority, or skips the check of certificates".to_owned()));
        }
        let named = config.tls_server_name.clone().unwrap_or_else(|| host.clone());
        let tls_server_name = tls_server_name((&host, port), &roots, &named).await.map_err(unreachable)?;
        let client = lanes::client(config).map_err(|error| unusable(error.to_string()))?;
        match tokio::time::timeout(CALL_TIMEOUT, client.apiserver_version()).await {
            Err(_) => return Err(unreachable(format!("no answer within {} s", CALL_TIMEOUT.as_secs()))),
            Ok(Err(kube::Error::Api(status))) => {
                return Err(KubernetesApiError::Refused { origin, server: url, reason: status.message.clone() });
            }
            Ok(Err(error)) => return Err(unreachable(error.to_string())),
            Ok(Ok(version)) => {
                tracing::info!(server = url, version = version.git_version, tls_server_name, "connected to Kubernetes")
            }
        }
        let server = Server { target: ForwardTarget::new(host, port), ca_pem: pem(&roots), url, tls_server_name };
        Ok(Self { client, server: Arc::new(server) })
    }

    /// A client for calls.
    #[must_use]
    pub fn client(&self) -> kube::Client {
        self.client.clone()
    }

    /// Address as written, without a slash at the end.
    #[must_use]
    pub fn url(&self) -> &str {
        &self.server.url
    }

    /// Its TCP address.
    #[must_use]
    pub fn target(&self) -> ForwardTarget {
        self.server.target.clone()
    }

    /// The CA that its certificate chains to, PEM.
    #[must_use]
    pub fn ca_pem(&self) -> &str {
        &self.server.ca_pem
    }

    /// A name in its certificate, as verified in a handshake.
    #[must_use]
    pub fn tls_server_name(&self) -> &str {
        &self.server.tls_server_name
    }
}

impl std::fmt::Debug for KubernetesApi {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("KubernetesApi").field("url", &self.server.url).finish_non_exhaustive()
    }
}

async fn config(source: &KubernetesSource) -> Result<kube::Config, String> {
    let mut config = match source {
        // The token's file is read again every minute: the kubelet replaces it long before it ends.
        KubernetesSource::InCluster => kube::Config::incluster().map_err(|error| chain(&error))?,
        KubernetesSource::Kubeconfig { path, context } => {
            let options = KubeConfigOptions { context: context.clone(), ..KubeConfigOptions::default() };
            kube::Config::from_custom_kubeconfig(read(path)?, &options).await.map_err(|error| error.to_string())?
        }
    };
    config.connect_timeout = Some(CONNECT_TIMEOUT);
    config.write_timeout = Some(CALL_TIMEOUT);
    Ok(config)
}

fn read(path: &Path) -> Result<Kubeconfig, String> {
    Kubeconfig::read_from(path).map_err(|error| chain(&error))
}

/// The name to verify the server's certificate by: [`CLUSTER_NAME`] if the certificate has it, else `named`.
async fn tls_server_name(address: (&str, u16), roots: &[Vec<u8>], named: &str) -> Result<String, String> {
    let mut store = rustls::RootCertStore::empty();
    let (added, _) = store.add_parsable_certificates(roots.iter().map(|der| CertificateDer::from(der.as_slice())));
    if added == 0 {
        return Err("no certificate in certificate-authority can be read".to_owned());
    }
    let config = rustls::ClientConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(|error| error.to_string())?
        .with_root_certificates(store)
        .with_no_client_auth();
    let connector = tokio_rustls::TlsConnector::from(Arc::new(config));
    match handshake(&connector, address, CLUSTER_NAME).await {
        Ok(()) => Ok(CLUSTER_NAME.to_owned()),
        Err(_) => handshake(&connector, address, named).await.map(|()| named.to_owned()),
    }
}

async fn handshake(connector: &tokio_rustls::TlsConnector, address: (&str, u16), name: &str) -> Result<(), String> {
    let name = ServerName::try_from(name.to_owned()).map_err(|_| format!("{name:?} is not a host name"))?;
    let attempt = async {
        let stream = TcpStream::connect(address).await?;
        connector.connect(name, stream).await
    };
    match tokio::time::timeout(CONNECT_TIMEOUT, attempt).await {
        Err(_) => Err(format!("no answer within {} s", CONNECT_TIMEOUT.as_secs())),
        Ok(result) => result.map(drop).map_err(|error| error.to_string()),
    }
}

fn pem(certificates: &[Vec<u8>]) -> String {
    let mut text = String::new();
    for der in certificates {
        text.push_str("-----BEGIN CERTIFICATE-----\n");
        let encoded = STANDARD.encode(der);
        for line in encoded.as_bytes().chunks(64) {
            text.extend(line.iter().map(|byte| char::from(*byte)));
            text.push('\n');
        }
        text.push_str("-----END CERTIFICATE-----\n");
    }
    text
}

fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        let cause_text = cause.to_string();
        if !text.contains(&cause_text) {
            text.push_str(": ");
            text.push_str(&cause_text);
        }
        source = cause.source();
    }
    text
}

/// Limits a call to [`CALL_TIMEOUT`].
pub async fn within_limit<T>(call: impl Future<Output = Result<T, kube::Error>>) -> Result<T, CallError> {
    match tokio::time::timeout(CALL_TIMEOUT, call).await {
        Err(_) => Err(CallError::Timeout),
        Ok(result) => result.map_err(CallError::from),
    }
}

/// Why a call failed.
#[derive(Debug, thiserror::Error)]
pub enum CallError {
    /// The API server returned an error.
    #[error("the API server says: {}", .0.message)]
    Status(Box<kube::core::Status>),
    /// No answer.
    #[error("no answer within {} s", CALL_TIMEOUT.as_secs())]
    Timeout,
    /// The connection failed.
    #[error("{0}")]
    Connection(String),
}

impl From<kube::Error> for CallError {
    fn from(error: kube::Error) -> Self {
        match error {
            kube::Error::Api(status) => Self::Status(status),
            other => Self::Connection(chain(&other)),
        }
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    fn kubeconfig(server: &str) -> String {
        let ca = rcgen::generate_simple_self_signed(vec!["kubernetes".to_owned()]).unwrap();
        let data = STANDARD.encode(ca.cert.pem());
        format!(
            "{{apiVersion: v1, kind: Config, current-context: c, clusters: [{{name: c, cluster: {{server: '{server}', certificate-authority-data: {data}}}}}], \
             users: [{{name: u, user: {{token: very-secret}}}}], contexts: [{{name: c, context: {{cluster: c, user: u}}}}]}}"
        )
    }

    async fn error_for(text: &str) -> String {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("kubeconfig");
        std::fs::write(&path, text).unwrap();
        let error = KubernetesApi::connect(&KubernetesSource::Kubeconfig { path, context: None })
            .await
            .unwrap_err()
            .to_string();
        assert!(error.contains(&dir.path().display().to_string()), "{error}");
        assert!(!error.contains("very-secret"), "{error}");
        error
    }

    #[tokio::test]
    async fn a_kubeconfig_that_points_nowhere_is_one_clear_sentence() {
        // Bound and dropped: nothing listens there.
        let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let error = error_for(&kubeconfig(&format!("https://{free}"))).await;
        assert!(
            error.contains(&format!("https://{free}")) && error.contains("refused") && error.contains("check that"),
            "{error}"
        );
    }

    #[tokio::test]
    async fn a_server_that_never_answers_does_not_hang_the_agent() {
        let silent = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let began = std::time::Instant::now();
        let error = error_for(&kubeconfig(&format!("https://{}", silent.local_addr().unwrap()))).await;
        assert!(error.contains("no answer within 5 s"), "{error}");
        assert!(began.elapsed() < Duration::from_secs(30));
    }

    #[tokio::test]
    async fn broken_files_are_named() {
        assert!(error_for("a: [").await.contains("cannot be used"));
        assert!(error_for(&kubeconfig("http://127.0.0.1:1")).await.contains("not an https address"));
        let path = PathBuf::from("/nonexistent/kubeconfig");
        let error = KubernetesApi::connect(&KubernetesSource::Kubeconfig { path, context: None })
            .await
            .unwrap_err()
            .to_string();
        assert!(error.contains("/nonexistent/kubeconfig") && error.contains("No such file"), "{error}");
    }
}
