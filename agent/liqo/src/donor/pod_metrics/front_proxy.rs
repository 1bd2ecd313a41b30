//! How this cluster's API server authenticates itself when it forwards a call, and names the user.

use std::sync::Arc;

use comity_agent_kubernetes::api::within_limit;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::{Api, Client};
use rustls::server::WebPkiClientVerifier;
use rustls::server::danger::ClientCertVerifier;
use rustls_pki_types::CertificateDer;
use rustls_pki_types::pem::PemObject as _;

const NAMESPACE: &str = "kube-system";
const CONFIG_MAP: &str = "extension-apiserver-authentication";

/// The settings for forwarded calls that the API server publishes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct FrontProxy {
    ca_pem: String,
    /// Names that its certificate may carry; empty: any that the authority signed.
    names: Vec<String>,
    /// Headers with the user's name; the first one present counts.
    pub(super) user_headers: Vec<String>,
}

impl FrontProxy {
    pub(super) async fn read(client: &Client) -> Result<Self, String> {
        let what = format!("ConfigMap {NAMESPACE}/{CONFIG_MAP}");
        let api = Api::<ConfigMap>::namespaced(client.clone(), NAMESPACE);
        let map = within_limit(api.get(CONFIG_MAP))
            .await
            .map_err(|error| format!("{what} cannot be read: {error}; apply deploy/liqo/pod-metrics"))?;
        let data = map.data.unwrap_or_default();
        let list = |key: &str| -> Vec<String> {
            data.get(key).and_then(|text| serde_json::from_str(text).ok()).unwrap_or_default()
        };
        let ca_pem = data.get("requestheader-client-ca-file").cloned().unwrap_or_default();
        let user_headers = list("requestheader-username-headers");
        if ca_pem.is_empty() || user_headers.is_empty() {
            return Err(format!(
                "{what} names no requestheader-client-ca-file: the API server's aggregation layer is not configured"
            ));
        }
        Ok(Self { ca_pem, names: list("requestheader-allowed-names"), user_headers })
    }

    /// Accepts only client certificates that its authority signed.
    pub(super) fn verifier(&self) -> Result<Arc<dyn ClientCertVerifier>, String> {
        let mut roots = rustls::RootCertStore::empty();
        for certificate in CertificateDer::pem_slice_iter(self.ca_pem.as_bytes()) {
            let certificate =
                certificate.map_err(|_| "the API server's requestheader-client-ca-file is no PEM".to_owned())?;
            roots
                .add(certificate)
                .map_err(|error| format!("the API server's requestheader-client-ca-file: {error}"))?;
        }
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let builder = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider);
        builder.build().map_err(|error| error.to_string())
    }

    /// Whether a certificate that the authority signed is the API server's.
    pub(super) fn is_api_server(&self, certificate: &CertificateDer<'_>) -> bool {
        if self.names.is_empty() {
            return true;
        }
        let Ok((_, parsed)) = x509_parser::parse_x509_certificate(certificate) else { return false };
        parsed
            .subject()
            .iter_common_name()
            .filter_map(|name| name.as_str().ok())
            .any(|name| self.names.iter().any(|allowed| allowed == name))
    }
}
