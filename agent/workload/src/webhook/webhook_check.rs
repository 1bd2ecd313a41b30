//! Whether the API server can call the webhooks: the Secret, the registrations, and whether they belong together.

use std::time::{Duration, SystemTime};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use comity_agent_kubernetes::api::within_limit;
use k8s_openapi::api::admissionregistration::v1::MutatingWebhookConfiguration;
use kube::Api;
use serde_json::Value;

use super::serving_secret::{self, ServingSecret};
use super::{INSTALL, Registration, WebhookSettings};

/// The owner is told this long before the certificate ends.
const WARN_BEFORE: Duration = Duration::from_secs(60 * 86_400);
/// The owner is told this long before a certificate of cert-manager ends, which renews it days before.
const NOT_RENEWED_BEFORE: Duration = Duration::from_secs(86_400);

/// Checks everything that the owner installs; returns for how many days the certificate is valid, if that is known.
///
/// # Errors
/// A sentence that ends with the remedy.
pub async fn check_webhooks(
    client: &kube::Client,
    settings: &WebhookSettings,
    registrations: &[Registration],
    now: SystemTime,
) -> Result<Option<u64>, String> {
    let secret = serving_secret::load(client, settings).await?;
    check_registered(client, settings, registrations, &secret, now).await?;
    check_end(settings, &secret, now)?;
    Ok(secret.days_left(now))
}

/// Checks the registrations against the Secret.
pub(super) async fn check_registered(
    client: &kube::Client,
    settings: &WebhookSettings,
    registrations: &[Registration],
    secret: &ServingSecret,
    now: SystemTime,
) -> Result<(), String> {
    let api = Api::<MutatingWebhookConfiguration>::all(client.clone());
    for registration in registrations {
        let name = format!("MutatingWebhookConfiguration {}", registration.name);
        let found = within_limit(api.get_opt(registration.name))
            .await
            .map_err(|error| format!("{name} cannot be read: {error}; apply deploy/agent/webhook.yaml"))?
            .ok_or_else(|| format!("{name} does not exist; {INSTALL}"))?;
        let found = serde_json::to_value(&found).map_err(|error| error.to_string())?;
        if let Some(field) = registration.difference(&found, settings, secret) {
            return Err(format!("{name} is not as this agent needs it ({field}); {INSTALL}"));
        }
        for bundle in bundles(&found) {
            let trusted = secret.verify(&bundle, settings, now);
            trusted.map_err(|reason| format!("{name} does not trust the agent's certificate: {reason}; {INSTALL}"))?;
        }
    }
    Ok(())
}

/// Checks that the certificate does not end soon.
pub(super) fn check_end(settings: &WebhookSettings, secret: &ServingSecret, now: SystemTime) -> Result<(), String> {
    let (before, remedy) = match &secret.cert_manager {
        Some(name) => {
            let namespace = &settings.secret_namespace;
            let describe = format!("`kubectl -n {namespace} describe certificate {name}` says why it is not renewed");
            (NOT_RENEWED_BEFORE, describe)
        }
        None => (WARN_BEFORE, INSTALL.to_owned()),
    };
    secret.verify(&secret.certificates.ca_pem, settings, now + before).map_err(|_| {
        let days = secret.days_left(now).map_or_else(|| "60 days".to_owned(), |days| format!("{} days", days + 1));
        format!("the webhooks' certificate ends within {days}; {remedy}")
    })
}

/// The CA certificates, PEM, of each entry of a registered object.
fn bundles(registered: &Value) -> Vec<String> {
    let entries = registered["webhooks"].as_array().into_iter().flatten();
    let of = |entry: &Value| {
        let text = entry["clientConfig"]["caBundle"].as_str().unwrap_or_default();
        let pem = STANDARD.decode(text).unwrap_or_default();
        String::from_utf8(pem).unwrap_or_default()
    };
    entries.map(of).collect()
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    #[test]
    fn the_owner_is_told_before_a_certificate_ends_and_of_cert_managers_only_if_it_is_not_renewed() {
        const DAY: Duration = Duration::from_secs(86_400);
        let settings = WebhookSettings { url: Some("https://10.0.0.1:7483".to_owned()), ..WebhookSettings::default() };
        let now = SystemTime::now();
        let own = ServingSecret::make("10.0.0.1", None, now).unwrap();
        let end = now + 5 * 365 * DAY;
        assert_eq!(check_end(&settings, &own, end - 70 * DAY), Ok(()));
        let told = check_end(&settings, &own, end - 30 * DAY - DAY / 2).unwrap_err();
        assert!(told.contains("within 31 days") && told.contains(INSTALL), "{told}");
        let theirs = ServingSecret { cert_manager: Some("webhook".to_owned()), ..own };
        assert_eq!(check_end(&settings, &theirs, end - 30 * DAY), Ok(()));
        let told = check_end(&settings, &theirs, end - DAY / 2).unwrap_err();
        assert!(told.contains("-n comity-system describe certificate webhook"), "{told}");
    }
}
