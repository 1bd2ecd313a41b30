//! The webhooks' registrations at the API server. Only the cluster's owner writes them: no admission policy applies to
//! them, so whoever writes one may rewrite every object that anybody creates.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};

use super::path_token::path_of;
use super::serving_secret::ServingSecret;
use super::{MANAGED_BY, WebhookSettings};

/// Which objects the API server sends to a webhook.
#[derive(Clone, Debug, PartialEq)]
pub struct Registration {
    /// Name of the MutatingWebhookConfiguration.
    pub name: &'static str,
    /// Path at which the API server posts reviews, before the token.
    pub path: &'static str,
    /// Its entries in `webhooks`, without `clientConfig`.
    pub webhooks: Vec<Value>,
}

impl Registration {
    /// The whole object. With a certificate of cert-manager, its cainjector writes `caBundle`.
    pub(super) fn object(&self, settings: &WebhookSettings, secret: &ServingSecret) -> Value {
        let (label, value) = MANAGED_BY;
        let mut metadata = json!({ "name": self.name, "labels": { label: value } });
        if let Some(certificate) = &secret.cert_manager {
            let from = format!("{}/{certificate}", settings.secret_namespace);
            metadata["annotations"] = json!({ "cert-manager.io/inject-ca-from": from });
        }
        json!({
            "apiVersion": "admissionregistration.k8s.io/v1", "kind": "MutatingWebhookConfiguration",
            "metadata": metadata, "webhooks": self.entries(settings, secret),
        })
    }

    fn entries(&self, settings: &WebhookSettings, secret: &ServingSecret) -> Vec<Value> {
        let path = path_of(self.path, &secret.token);
        let mut to = match &settings.service {
            Some(service) => json!({ "service": {
                "namespace": service.namespace, "name": service.name, "port": service.port, "path": path,
            }}),
            None => {
                let base = settings.url.as_deref().unwrap_or_default().trim_end_matches('/');
                json!({ "url": format!("{base}{path}") })
            }
        };
        if secret.cert_manager.is_none() {
            to["caBundle"] = json!(STANDARD.encode(&secret.certificates.ca_pem));
        }
        let completed = |webhook: &Value| {
            let mut webhook = webhook.clone();
            webhook["clientConfig"] = to.clone();
            webhook["admissionReviewVersions"] = json!(["v1"]);
            webhook["sideEffects"] = json!("None");
            webhook["matchPolicy"] = json!("Equivalent");
            webhook
        };
        self.webhooks.iter().map(completed).collect()
    }

    /// The first field of a registered object that is not as it should be. `caBundle` is verified elsewhere, and more
    /// fields and entries are the owner's.
    pub(super) fn difference(
        &self,
        registered: &Value,
        settings: &WebhookSettings,
        secret: &ServingSecret,
    ) -> Option<String> {
        let none = Vec::new();
        let found = registered["webhooks"].as_array().unwrap_or(&none);
        self.entries(settings, secret).into_iter().find_map(|mut wanted| {
            if let Some(to) = wanted["clientConfig"].as_object_mut() {
                to.remove("caBundle");
            }
            let name = wanted["name"].as_str().unwrap_or_default();
            match found.iter().find(|found| found["name"] == wanted["name"]) {
                Some(found) => first_difference(&wanted, found, name),
                None => Some(name.to_owned()),
            }
        })
    }
}

/// The path of the first wanted value that is missing or another one.
fn first_difference(wanted: &Value, found: &Value, at: &str) -> Option<String> {
    match (wanted, found) {
        (Value::Object(wanted), Value::Object(found)) => wanted.iter().find_map(|(key, wanted)| {
            first_difference(wanted, found.get(key).unwrap_or(&Value::Null), &format!("{at}.{key}"))
        }),
        (Value::Array(wanted), Value::Array(found)) if wanted.len() == found.len() => {
            let mut pairs = wanted.iter().zip(found).enumerate();
            pairs.find_map(|(index, (wanted, found))| first_difference(wanted, found, &format!("{at}[{index}]")))
        }
        (Value::Array(wanted), Value::Null) if wanted.is_empty() => None,
        _ => (wanted != found).then(|| at.to_owned()),
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use std::time::SystemTime;

    use super::*;
    use crate::burst::gate_registration;

    #[test]
    fn a_registration_that_the_owner_narrowed_is_right_and_another_one_is_not() {
        let settings = WebhookSettings { url: Some("https://10.0.0.1:7483".to_owned()), ..WebhookSettings::default() };
        let secret = ServingSecret::make("10.0.0.1", None, SystemTime::now()).unwrap();
        let gate = gate_registration();
        let right = gate.object(&settings, &secret);
        assert_eq!(gate.difference(&right, &settings, &secret), None);
        let changed = |change: &dyn Fn(&mut Value)| {
            let mut object = right.clone();
            change(&mut object["webhooks"][0]);
            gate.difference(&object, &settings, &secret)
        };
        assert_eq!(changed(&|it| it["objectSelector"] = json!({ "matchLabels": { "a": "b" } })), None);
        assert_eq!(changed(&|it| it["failurePolicy"] = json!("Fail")).unwrap(), "burst.comity.dev.failurePolicy");
        let widened = changed(&|it| it["rules"][0]["resources"] = json!(["*/*"]));
        assert_eq!(widened.unwrap(), "burst.comity.dev.rules[0].resources[0]");
        let elsewhere = changed(&|it| it["clientConfig"]["url"] = json!("https://10.0.0.2:7483"));
        assert_eq!(elsewhere.unwrap(), "burst.comity.dev.clientConfig.url");
        assert_eq!(gate.difference(&json!({}), &settings, &secret).unwrap(), "burst.comity.dev");
    }

    #[test]
    fn cert_manager_writes_the_ca_of_its_own_certificate() {
        let settings = WebhookSettings::default();
        let secret = ServingSecret::make("10.0.0.1", None, SystemTime::now()).unwrap();
        let own = gate_registration().object(&settings, &secret);
        assert!(own["webhooks"][0]["clientConfig"]["caBundle"].is_string() && own["metadata"]["annotations"].is_null());
        let theirs = ServingSecret { cert_manager: Some("webhook".to_owned()), ..secret };
        let object = gate_registration().object(&settings, &theirs);
        assert!(object["webhooks"][0]["clientConfig"]["caBundle"].is_null());
        let from = &object["metadata"]["annotations"]["cert-manager.io/inject-ca-from"];
        assert_eq!(from, "comity-system/webhook");
    }
}
