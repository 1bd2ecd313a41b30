//! The section `webhook` of the agent's configuration.

use std::net::{Ipv4Addr, SocketAddr};

use comity_agent_kubernetes::service_name::ServiceName;
use comity_agent_model::settings::SettingChecks;
use comity_types::is_dns_label;
use serde::{Deserialize, Serialize};

/// Not the fabric's port for APIs, which a gateway opens on addresses of the same node.
const DEFAULT_PORT: u16 = 7483;

/// Where the API server finds the admission webhooks.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct WebhookSettings {
    /// Where HTTPS is served.
    pub listen: SocketAddr,
    /// `https://HOST:PORT`, for an agent that is no pod. Either this or `service`.
    pub url: Option<String>,
    /// The Service in front of the agent's pod. Either this or `url`.
    pub service: Option<ServiceName>,
    /// Namespace of the Secret `comity-agent-webhook` with the webhooks' certificate, which the owner writes.
    pub secret_namespace: String,
}

impl Default for WebhookSettings {
    fn default() -> Self {
        Self {
            listen: SocketAddr::from((Ipv4Addr::UNSPECIFIED, DEFAULT_PORT)),
            url: None,
            service: None,
            secret_namespace: "comity-system".to_owned(),
        }
    }
}

impl WebhookSettings {
    /// Collects the invalid values.
    pub fn gather(&self, checks: &mut SettingChecks) {
        match (&self.url, &self.service) {
            (Some(url), None) => {
                let parsed = url.parse::<http::Uri>().ok();
                let is_base = |uri: &http::Uri| uri.scheme_str() == Some("https") && uri.path() == "/";
                if parsed.as_ref().filter(|uri| is_base(uri)).and_then(http::Uri::host).is_none() {
                    checks.refuse("webhook.url", url, "write https://HOST:PORT");
                }
            }
            (None, Some(service))
                if is_dns_label(&service.namespace) && is_dns_label(&service.name) && service.port > 0 => {}
            (None, Some(service)) => {
                let text = format!("{}/{}:{}", service.namespace, service.name, service.port);
                checks.refuse("webhook.service", text, "write DNS labels and a port from 1 to 65535");
            }
            _ => {
                let reason =
                    "write either url, where the API server reaches this host, or service, in front of this pod";
                checks.refuse("webhook", "", reason);
            }
        }
        if !is_dns_label(&self.secret_namespace) {
            checks.refuse("webhook.secretNamespace", &self.secret_namespace, "write a namespace");
        }
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use comity_agent_model::settings::InvalidSettings;

    use super::*;

    fn refused(settings: &WebhookSettings) -> String {
        let mut checks = SettingChecks::default();
        settings.gather(&mut checks);
        checks.finish().map_err(|error: InvalidSettings| error.to_string()).unwrap_err()
    }

    #[test]
    fn mistakes_are_named() {
        let none = WebhookSettings::default();
        assert!(refused(&none).contains("either url"));
        for url in ["http://agent:7483", "https://agent:7483/gate", "agent"] {
            let settings = WebhookSettings { url: Some(url.to_owned()), ..none.clone() };
            assert!(refused(&settings).contains("https://HOST:PORT"), "{url}");
        }
        assert_ne!(none.listen.port(), comity_agent_model::api_port::API_PORT, "a gateway has both on its node");
    }

    #[test]
    fn a_section_of_the_configuration_is_read() {
        let text = r#"{"service": {"namespace": "comity-system", "name": "agent"}}"#;
        let settings: WebhookSettings = serde_json::from_str(text).unwrap();
        let mut checks = SettingChecks::default();
        settings.gather(&mut checks);
        checks.finish().unwrap();
        assert_eq!(settings.service.unwrap().port, 443);
    }
}
