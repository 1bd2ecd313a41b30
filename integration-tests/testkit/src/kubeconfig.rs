//! Kubeconfig files.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

use crate::pki::Identity;

/// A kubeconfig for one cluster and one client certificate.
pub(crate) fn render(cluster: &str, server_url: &str, ca_pem: &str, identity: &Identity) -> String {
    let ca = STANDARD.encode(ca_pem);
    let certificate = STANDARD.encode(&identity.certificate_pem);
    let key = STANDARD.encode(&identity.key_pem);
    format!(
        "apiVersion: v1
kind: Config
clusters:
- name: {cluster}
  cluster:
    server: {server_url}
    certificate-authority-data: {ca}
users:
- name: {cluster}
  user:
    client-certificate-data: {certificate}
    client-key-data: {key}
contexts:
- name: {cluster}
  context:
    cluster: {cluster}
    user: {cluster}
current-context: {cluster}
"
    )
}
