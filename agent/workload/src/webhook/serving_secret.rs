//! The certificate and key with which the webhooks are served, and the token in their paths: a Secret that the owner
//! writes and the agent reads.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use comity_agent_kubernetes::api::within_limit;
use comity_agent_kubernetes::https_server::{
    Certificates, end_of_certificates, make_certificates, verify_certificates,
};
use comity_runtime::SecretString;
use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::Secret;
use kube::Api;
use serde_json::{Value, json};

use super::path_token::token_of;
use super::{INSTALL, MANAGED_BY, WebhookSettings};

/// Name of the Secret.
pub(super) const SECRET: &str = "comity-agent-webhook";
/// Life of certificates that the owner makes.
const OWNERS_LIFE: Duration = Duration::from_secs(5 * 365 * 86_400);
/// Annotation of Secrets that cert-manager writes: the name of its Certificate.
const CERT_MANAGER: &str = "cert-manager.io/certificate-name";
/// Key of the token in the Secret. It stays when the certificate is renewed, so the registrations stay right.
const TOKEN: &str = "path-token";

/// The content of the Secret.
pub(super) struct ServingSecret {
    pub(super) certificates: Certificates,
    /// The token in the paths of reviews.
    pub(super) token: SecretString,
    /// Name of the Certificate from which cert-manager keeps the Secret.
    pub(super) cert_manager: Option<String>,
}

impl ServingSecret {
    /// A new certificate of a new CA. With an `old` Secret its CA is trusted too, and the paths stay.
    pub(super) fn make(host: &str, old: Option<&Self>, now: SystemTime) -> Result<Self, String> {
        let old_ca = old.map_or("", |old| old.certificates.ca_pem.as_str());
        let certificates = make_certificates(host, old_ca, now, OWNERS_LIFE)
            .map_err(|error| format!("a certificate for {host} cannot be made: {error}"))?;
        let token = old.map_or_else(|| token_of(&certificates.key_pem), |old| old.token.clone());
        Ok(Self { certificates, token, cert_manager: None })
    }

    /// `None` if a part is missing.
    pub(super) fn read(secret: &Secret) -> Option<Self> {
        let text = |key: &str| {
            let ByteString(bytes) = secret.data.as_ref()?.get(key)?;
            String::from_utf8(bytes.clone()).ok()
        };
        let key_pem = SecretString::new(text("tls.key")?);
        let token = text(TOKEN).map_or_else(|| token_of(&key_pem), SecretString::new);
        Some(Self {
            certificates: Certificates { ca_pem: text("ca.crt")?, chain_pem: text("tls.crt")?, key_pem },
            token,
            cert_manager: secret.metadata.annotations.as_ref().and_then(|all| all.get(CERT_MANAGER).cloned()),
        })
    }

    /// The object that the owner writes.
    pub(super) fn object(&self, settings: &WebhookSettings) -> Value {
        let Certificates { ca_pem, chain_pem, key_pem } = &self.certificates;
        let (label, value) = MANAGED_BY;
        json!({
            "apiVersion": "v1", "kind": "Secret", "type": "kubernetes.io/tls",
            "metadata": { "name": SECRET, "namespace": settings.secret_namespace, "labels": { label: value } },
            "data": {
                "ca.crt": STANDARD.encode(ca_pem), "tls.crt": STANDARD.encode(chain_pem),
                "tls.key": STANDARD.encode(key_pem.expose()), TOKEN: STANDARD.encode(self.token.expose()),
            },
        })
    }

    /// Whether an API server that trusts `ca_pem` accepts the certificate at a time.
    pub(super) fn verify(&self, ca_pem: &str, settings: &WebhookSettings, at: SystemTime) -> Result<(), String> {
        verify_certificates(&self.certificates.chain_pem, ca_pem, &host(settings)?, at)
    }

    /// When the certificate ends, in seconds since 1970.
    pub(super) fn end(&self) -> Option<u64> {
        end_of_certificates(&self.certificates.chain_pem)
    }

    /// Days until the certificate ends.
    pub(super) fn days_left(&self, now: SystemTime) -> Option<u64> {
        let now = now.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
        self.end().map(|end| end.saturating_sub(now) / 86_400)
    }
}

/// Whether cert-manager keeps a Secret.
pub(super) fn is_cert_managers(secret: &Secret) -> bool {
    secret.metadata.annotations.as_ref().is_some_and(|annotations| annotations.contains_key(CERT_MANAGER))
}

/// The Secret as it is in the cluster.
pub(super) async fn find(client: &kube::Client, settings: &WebhookSettings) -> Result<Option<Secret>, String> {
    let api = Api::<Secret>::namespaced(client.clone(), &settings.secret_namespace);
    within_limit(api.get_opt(SECRET)).await.map_err(|error| {
        format!(
            "Secret {}/{SECRET} cannot be read: {error}; apply deploy/agent/webhook.yaml",
            settings.secret_namespace
        )
    })
}

/// The Secret, to serve with it.
pub(super) async fn load(client: &kube::Client, settings: &WebhookSettings) -> Result<ServingSecret, String> {
    let name = format!("Secret {}/{SECRET}", settings.secret_namespace);
    let found = find(client, settings).await?.ok_or_else(|| format!("{name} does not exist; {INSTALL}"))?;
    ServingSecret::read(&found).ok_or_else(|| format!("{name} lacks ca.crt, tls.crt or tls.key; {INSTALL}"))
}

/// The name that the API server connects to.
pub(super) fn host(settings: &WebhookSettings) -> Result<String, String> {
    if let Some(service) = &settings.service {
        return Ok(format!("{}.{}.svc", service.name, service.namespace));
    }
    let url = settings.url.as_deref().unwrap_or_default();
    let uri = url.parse::<http::Uri>().ok();
    let host = uri.as_ref().and_then(http::Uri::host).map(|host| host.trim_matches(['[', ']']).to_owned());
    host.ok_or_else(|| format!("webhook.url {url:?} names no host"))
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    #[test]
    fn the_host_is_what_the_api_server_connects_to() {
        let of = |url: &str| host(&WebhookSettings { url: Some(url.to_owned()), ..WebhookSettings::default() });
        assert_eq!(of("https://10.0.0.1:7483").unwrap(), "10.0.0.1");
        assert_eq!(of("https://[::1]:7483").unwrap(), "::1");
        assert!(of("nonsense path").is_err());
    }

    #[test]
    fn a_renewed_certificate_has_the_old_paths_and_the_old_ca_is_trusted_too() {
        let now = SystemTime::now();
        let settings = WebhookSettings { url: Some("https://10.0.0.1:7483".to_owned()), ..WebhookSettings::default() };
        let first = ServingSecret::make("10.0.0.1", None, now).unwrap();
        let stored: Secret = serde_json::from_value(first.object(&settings)).unwrap();
        let stored = ServingSecret::read(&stored).unwrap();
        assert_eq!((stored.token.expose(), stored.days_left(now)), (first.token.expose(), Some(5 * 365)));
        let second = ServingSecret::make("10.0.0.1", Some(&stored), now).unwrap();
        assert_eq!(second.token.expose(), first.token.expose());
        assert_eq!(first.verify(&second.certificates.ca_pem, &settings, now), Ok(()));
        let fresh = ServingSecret::make("10.0.0.1", None, now).unwrap();
        assert_ne!(fresh.token.expose(), first.token.expose());
        assert!(first.verify(&fresh.certificates.ca_pem, &settings, now).is_err());
    }
}
