//! The webhooks' certificates, kept in a Secret.

use std::collections::BTreeMap;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use comity_agent_kubernetes::api::within_limit;
use comity_agent_kubernetes::https_server::{Certificates, LIFE, make_certificates};
use comity_runtime::SecretString;
use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::Secret;
use kube::Api;
use kube::api::{Patch, PatchParams};
use serde_json::json;

use super::WebhookSettings;

/// Name of the Secret.
pub(super) const SECRET: &str = "comity-agent-webhook";
/// Annotations: when the certificate ends, in seconds since 1970, and its host.
const ENDS: &str = "comity.dev/certificate-ends";
const HOST: &str = "comity.dev/certificate-host";
const RENEW_BEFORE: Duration = Duration::from_secs(30 * 86_400);
/// The certificates of the Secret; made again if they are missing, end soon or are for another host.
pub(super) async fn ensure(
    client: &kube::Client,
    settings: &WebhookSettings,
    now: SystemTime,
) -> Result<Certificates, String> {
    let host = host(settings)?;
    let api = Api::<Secret>::namespaced(client.clone(), &settings.secret_namespace);
    let name = format!("Secret {}/{SECRET}", settings.secret_namespace);
    let found = within_limit(api.get_opt(SECRET)).await.map_err(|error| format!("{name} cannot be read: {error}"))?;
    let old = found.as_ref().map(|secret| read(secret, &host));
    if let Some((Some(good), ends)) = &old
        && now + RENEW_BEFORE < UNIX_EPOCH + Duration::from_secs(*ends)
    {
        return Ok(Certificates {
            ca_pem: good.ca_pem.clone(),
            chain_pem: good.chain_pem.clone(),
            key_pem: good.key_pem.clone(),
        });
    }
    let old_ca = old.and_then(|(old, _)| old).map(|old| old.ca_pem).unwrap_or_default();
    let fresh = make_certificates(&host, &old_ca, now)
        .map_err(|error| format!("a certificate for {host} cannot be made: {error}"))?;
    let ends = (now + LIFE).duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
    let secret = json!({
        "apiVersion": "v1", "kind": "Secret", "type": "kubernetes.io/tls",
        "metadata": {
            "name": SECRET,
            "labels": { "app.kubernetes.io/managed-by": "comity-agent" },
            "annotations": { ENDS: ends.to_string(), HOST: host },
        },
        "stringData": { "ca.crt": fresh.ca_pem, "tls.crt": fresh.chain_pem, "tls.key": fresh.key_pem.expose() },
    });
    let apply = PatchParams::apply("comity-agent").force();
    within_limit(api.patch(SECRET, &apply, &Patch::Apply(&secret)))
        .await
        .map_err(|error| format!("{name} cannot be written: {error}; apply deploy/agent/webhook.yaml"))?;
    tracing::info!(host, "made a certificate for the admission webhooks");
    Ok(fresh)
}

fn read(secret: &Secret, host: &str) -> (Option<Certificates>, u64) {
    let none = BTreeMap::new();
    let annotations = secret.metadata.annotations.as_ref().unwrap_or(&none);
    let text = |key: &str| {
        let ByteString(bytes) = secret.data.as_ref()?.get(key)?;
        String::from_utf8(bytes.clone()).ok()
    };
    let is_ours = annotations.get(HOST).map(String::as_str) == Some(host);
    let ends = annotations.get(ENDS).and_then(|text| text.parse().ok()).unwrap_or(0);
    let all = || {
        Some(Certificates {
            ca_pem: text("ca.crt")?,
            chain_pem: text("tls.crt")?,
            key_pem: SecretString::new(text("tls.key")?),
        })
    };
    (all().filter(|_| is_ours), ends)
}

/// The name that the API server connects to.
fn host(settings: &WebhookSettings) -> Result<String, String> {
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
    fn a_certificate_for_another_host_is_refused() {
        let fresh = make_certificates("10.0.0.1", "", SystemTime::now()).unwrap();
        let data = |text: &str| ByteString(text.as_bytes().to_vec());
        let files = BTreeMap::from([
            ("ca.crt".to_owned(), data(&fresh.ca_pem)),
            ("tls.crt".to_owned(), data(&fresh.chain_pem)),
            ("tls.key".to_owned(), data(fresh.key_pem.expose())),
        ]);
        let mut secret = Secret { data: Some(files), ..Secret::default() };
        let marks = [(HOST, "10.0.0.1"), (ENDS, "77")].map(|(key, value)| (key.to_owned(), value.to_owned()));
        secret.metadata.annotations = Some(marks.into());
        assert!(read(&secret, "10.0.0.1").0.is_some() && read(&secret, "10.0.0.1").1 == 77);
        assert!(read(&secret, "10.0.0.2").0.is_none());
    }
}
