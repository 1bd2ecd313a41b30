//! Checks whether Liqo's networking module is installed.

use comity_agent_kubernetes::call::call_opt;
use comity_agent_model::delivery_error::DeliveryError;
use k8s_openapi::api::apps::v1::Deployment;
use kube::Api;
use kube::core::ApiResource;

use super::{LiqoNetwork, NetworkSettings, rights};
use crate::{CONTROLLER_MANAGER, gateway_client_template, gateway_server_template};

/// The argument with which the chart enables the module.
const ENABLED: &str = "--networking-enabled=";

impl NetworkSettings {
    /// Namespace of the gateways' templates.
    pub(super) fn template_namespace(&self) -> &str {
        self.gateway.template_namespace.as_ref().unwrap_or(&self.liqo_namespace)
    }
}

impl LiqoNetwork {
    /// Checks whether this cluster's Liqo can connect its network to others'.
    ///
    /// # Errors
    /// [`DeliveryError`]; permanent with code `liqo-network-absent` and the remedy if it cannot.
    pub async fn check_installed(&self) -> Result<(), DeliveryError> {
        let namespace = &self.settings.liqo_namespace;
        let absent = |text: String| Err(DeliveryError::permanent("liqo-network-absent", text));
        let deployments = Api::<Deployment>::namespaced(self.client.clone(), namespace);
        let operation = format!("read Deployment {namespace}/{CONTROLLER_MANAGER}");
        let manager = rights(call_opt(&operation, deployments.get(CONTROLLER_MANAGER)).await)?;
        if !manager.as_ref().is_some_and(is_enabled) {
            return absent(format!(
                "{CONTROLLER_MANAGER} in namespace {namespace} runs without {ENABLED}true; install Liqo with \
                 networking.enabled: true, or set liqo.network: comity"
            ));
        }
        let gateway = &self.settings.gateway;
        self.check_template(&gateway_server_template(), &gateway.server_template, "serverTemplate").await?;
        self.check_template(&gateway_client_template(), &gateway.client_template, "clientTemplate").await?;
        self.own_ranges().await.map(drop)
    }

    async fn check_template(&self, kind: &ApiResource, name: &str, field: &str) -> Result<(), DeliveryError> {
        let namespace = self.settings.template_namespace();
        let operation = format!("read {} {namespace}/{name}", kind.kind);
        if rights(call_opt(&operation, self.objects(kind, namespace).get_metadata(name)).await)?.is_some() {
            return Ok(());
        }
        let text = format!(
            "there is no {} {name} in namespace {namespace}; install Liqo with networking.enabled: true, or name the \
             template in liqo.gateway.{field} and templateNamespace",
            kind.kind
        );
        Err(DeliveryError::permanent("liqo-network-absent", text))
    }
}

fn is_enabled(manager: &Deployment) -> bool {
    let pod = manager.spec.as_ref().and_then(|spec| spec.template.spec.as_ref());
    let arguments =
        pod.into_iter().flat_map(|pod| &pod.containers).flat_map(|container| container.args.iter().flatten());
    // As with Go's flags, the last one counts.
    let value = arguments.filter_map(|argument| argument.strip_prefix(ENABLED)).next_back();
    value.is_some_and(|value| value.eq_ignore_ascii_case("true"))
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_module_is_on_where_the_chart_says_so() {
        let manager = |args: &[&str]| {
            let containers = json!([{ "name": "c", "args": args }]);
            let object = json!({ "spec": { "selector": {}, "template": { "spec": { "containers": containers } } } });
            is_enabled(&serde_json::from_value(object).unwrap())
        };
        assert!(manager(&["--v=4", "--networking-enabled=true"]));
        assert!(!manager(&["--networking-enabled=true", "--networking-enabled=false"]));
        assert!(!manager(&["--v=4"]));
    }
}
