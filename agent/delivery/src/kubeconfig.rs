//! The kubeconfig that a tenant gets: the donor's API at a port of the origin's agent.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use comity_runtime::secret::SecretString;
use comity_types::LeaseId;

use crate::ApiCredential;

/// A kubeconfig: YAML in which every value is quoted as JSON, so that no value can change the structure.
#[must_use]
pub fn render(lease_id: LeaseId, credential: &ApiCredential, server: &str) -> SecretString {
    let quoted = |text: &str| serde_json::Value::from(text).to_string();
    let lease = quoted(&lease_id.to_string());
    SecretString::new(format!(
        "apiVersion: v1
kind: Config
clusters:
- name: {lease}
  cluster:
    server: {server}
    tls-server-name: {name}
    certificate-authority-data: {ca}
users:
- name: {lease}
  user:
    token: {token}
contexts:
- name: {lease}
  context:
    cluster: {lease}
    user: {lease}
    namespace: {namespace}
current-context: {lease}
",
        server = quoted(&format!("https://{server}")),
        name = quoted(&credential.tls_server_name),
        ca = quoted(&STANDARD.encode(&credential.ca_pem)),
        token = quoted(credential.token.expose()),
        namespace = quoted(&credential.namespace),
    ))
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;
    use crate::CredentialKind;

    #[test]
    fn kube_reads_it_and_values_stay_values() {
        let credential = ApiCredential {
            kind: CredentialKind::Kubernetes,
            ca_pem: "ca".into(),
            tls_server_name: "kubernetes.default.svc\"\nevil: true".into(),
            token: SecretString::new("secret".into()),
            namespace: "comity-lease-7".into(),
            expires_at_ms: 0,
            server_port: 6443,
        };
        let text = render(LeaseId(7), &credential, "127.0.0.1:4321");
        let config = kube::config::Kubeconfig::from_yaml(text.expose()).unwrap();
        assert_eq!(config.current_context.as_deref(), Some("lease-7"));
        let cluster = config.clusters[0].cluster.as_ref().unwrap();
        assert_eq!(cluster.server.as_deref(), Some("https://127.0.0.1:4321"));
        assert_eq!(cluster.tls_server_name.as_deref(), Some(credential.tls_server_name.as_str()));
        assert_eq!(cluster.certificate_authority_data.as_deref(), Some("Y2E="));
        assert_eq!(config.contexts[0].context.as_ref().unwrap().namespace.as_deref(), Some("comity-lease-7"));
    }
}
