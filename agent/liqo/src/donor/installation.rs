//! Checks Liqo's installation on this cluster, and refuses unsafe settings. Reads the chart's Deployments and template,
//! and changes nothing.

use comity_agent_kubernetes::call::call_opt;
use comity_agent_model::delivery_error::DeliveryError;
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::{Api, Client};
use serde_json::Value;

use super::rights::rights;
use crate::version::{SUPPORTED, Version, version_of};
use crate::{CONTROLLER_MANAGER, dynamic, vk_options_template};

/// Where Liqo is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InstallationSettings {
    /// Namespace that it is installed in.
    pub namespace: String,
    /// Its version, if the image's tag does not contain it: "1.2.0".
    pub version: Option<String>,
}

impl Default for InstallationSettings {
    fn default() -> Self {
        Self { namespace: "liqo".to_owned(), version: None }
    }
}

/// The installed Liqo.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Installation {
    /// This cluster's Liqo id.
    pub liqo_cluster_id: String,
    /// As in "1.2.0".
    pub version: String,
    /// "https://HOST:PORT", as Liqo gives it to others; none if Liqo finds it itself.
    pub api_server: Option<String>,
    /// Pod networks of this cluster that virtual kubelets pass on unchanged (`--local-podcidr`).
    pub local_pod_cidrs: Vec<String>,
}

/// Reads the installation and refuses a dangerous one.
///
/// # Errors
/// [`DeliveryError`]; permanent with code `liqo-absent`, `liqo-version` or `liqo-settings`, with the remedy.
pub async fn check_installation(
    client: &Client,
    settings: &InstallationSettings,
) -> Result<Installation, DeliveryError> {
    let namespace = &settings.namespace;
    let deployments = Api::<Deployment>::namespaced(client.clone(), namespace);
    let read = |what: &str| format!("read {what} in namespace {namespace}");
    let absent = |what: &str| {
        let text = format!("there is no {what} in namespace {namespace}; install Liqo there, or name its namespace");
        DeliveryError::permanent("liqo-absent", text)
    };
    let manager = rights(call_opt(&read(CONTROLLER_MANAGER), deployments.get(CONTROLLER_MANAGER)).await)?
        .ok_or_else(|| absent("Deployment liqo-controller-manager"))?;
    let webhook = rights(call_opt(&read("liqo-webhook"), deployments.get("liqo-webhook")).await)?
        .ok_or_else(|| absent("Deployment liqo-webhook"))?;
    let ids = Api::<ConfigMap>::namespaced(client.clone(), namespace);
    let id = rights(call_opt(&read("liqo-clusterid-configmap"), ids.get("liqo-clusterid-configmap")).await)?
        .and_then(|map| map.data.and_then(|mut data| data.remove("CLUSTER_ID")))
        .ok_or_else(|| absent("ConfigMap liqo-clusterid-configmap with a CLUSTER_ID"))?;
    let templates = dynamic::namespaced(client, &vk_options_template(), namespace);
    let template = rights(call_opt(&read("virtual-kubelet-default"), templates.get("virtual-kubelet-default")).await)?
        .ok_or_else(|| absent("VkOptionsTemplate virtual-kubelet-default"))?;
    let kubelet = Options(strings(template.data.pointer("/spec/extraArgs")));
    Parts { manager: &manager, webhook: &webhook, kubelet }.judge(id, settings)
}

fn strings(value: Option<&Value>) -> Vec<String> {
    let items = value.and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
    items.iter().filter_map(Value::as_str).map(str::to_owned).collect()
}

struct Parts<'a> {
    manager: &'a Deployment,
    webhook: &'a Deployment,
    kubelet: Options,
}

impl Parts<'_> {
    fn judge(&self, liqo_cluster_id: String, settings: &InstallationSettings) -> Result<Installation, DeliveryError> {
        let version = match &settings.version {
            Some(version) => version.clone(),
            None => version_of(self.manager).ok_or_else(|| {
                let text = "neither the image's tag nor label app.kubernetes.io/version of liqo-controller-manager \
                    says Liqo's version; install a released one";
                DeliveryError::permanent("liqo-version", text)
            })?,
        };
        if !Version::parse(&version).is_some_and(Version::is_supported) {
            let text = format!("Liqo {version} is not supported; {SUPPORTED} are: install one of those");
            return Err(DeliveryError::permanent("liqo-version", text));
        }
        let manager = Options(args_of(self.manager));
        let enforcement = manager.value("default-limits-enforcement").unwrap_or("none");
        if !["None", "Soft", "Hard"].contains(&enforcement) {
            return Err(dangerous(&format!(
                "liqo-controller-manager runs with --default-limits-enforcement={enforcement}, which makes quotas that \
                 the API server refuses; set controllerManager.config.defaultLimitsEnforcement to None, Soft or Hard"
            )));
        }
        if !Options(args_of(self.webhook)).is_on("enable-resource-enforcement") {
            return Err(dangerous(
                "liqo-webhook runs without --enable-resource-enforcement: nobody would count what is lent; set \
                 controllerManager.config.enableResourceEnforcement to true",
            ));
        }
        if self.kubelet.is_on("enable-apiserver-support") {
            return Err(dangerous(
                "VkOptionsTemplate virtual-kubelet-default has --enable-apiserver-support=true, which gives tokens of \
                 this cluster to others; add --enable-apiserver-support=false to virtualKubelet.extra.args",
            ));
        }
        Ok(Installation {
            liqo_cluster_id,
            version,
            api_server: manager.value("api-server-address-override").map(str::to_owned),
            local_pod_cidrs: self.kubelet.values("local-podcidr"),
        })
    }
}

fn dangerous(text: &str) -> DeliveryError {
    DeliveryError::permanent("liqo-settings", text)
}

fn args_of(deployment: &Deployment) -> Vec<String> {
    let pod = deployment.spec.as_ref().and_then(|spec| spec.template.spec.as_ref());
    pod.and_then(|pod| pod.containers.first()).and_then(|container| container.args.clone()).unwrap_or_default()
}

/// Command-line options, as Go reads them: `--name=value`, or `--name` alone for true.
struct Options(Vec<String>);

impl Options {
    fn values(&self, name: &str) -> Vec<String> {
        let of_name = |argument: &String| {
            let rest = argument.trim_start_matches('-').strip_prefix(name)?;
            if rest.is_empty() { Some("true".to_owned()) } else { rest.strip_prefix('=').map(str::to_owned) }
        };
        self.0.iter().filter_map(of_name).collect()
    }

    /// The value of an option; the last one counts.
    fn value(&self, name: &str) -> Option<&str> {
        let of_name = |argument: &String| {
            argument
                .trim_start_matches('-')
                .strip_prefix(name)
                .is_some_and(|rest| rest.is_empty() || rest.starts_with('='))
        };
        let argument = self.0.iter().rfind(|argument| of_name(argument))?;
        Some(argument.split_once('=').map_or("true", |(_, value)| value))
    }

    fn is_on(&self, name: &str) -> bool {
        self.value(name).is_some_and(|value| ["true", "t", "1"].contains(&value.to_ascii_lowercase().as_str()))
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use serde_json::json;

    use super::*;

    fn deployment(image: &str, args: &[&str]) -> Deployment {
        serde_json::from_value(json!({
            "metadata": { "labels": { "app.kubernetes.io/version": "v1.1.2" } },
            "spec": { "selector": {}, "template": { "spec": { "containers": [{ "name": "c", "image": image, "args": args }] } } },
        }))
        .unwrap()
    }

    fn judged(image: &str, manager: &[&str], webhook: &[&str], kubelet: &[&str]) -> Result<Installation, String> {
        let (manager, webhook) = (deployment(image, manager), deployment(image, webhook));
        let kubelet = Options(kubelet.iter().map(|argument| (*argument).to_owned()).collect());
        let parts = Parts { manager: &manager, webhook: &webhook, kubelet };
        parts.judge("donor".into(), &InstallationSettings::default()).map_err(|error| error.to_string())
    }

    const IMAGE: &str = "ghcr.io/liqotech/liqo-controller-manager:v1.2.0";
    const MANAGER: [&str; 2] = ["--default-limits-enforcement=None", "--api-server-address-override=https://a:6443"];
    const WEBHOOK: [&str; 1] = ["--enable-resource-enforcement"];
    const KUBELET: [&str; 2] = ["--enable-apiserver-support=false", "--local-podcidr=10.0.0.0/16"];

    #[test]
    fn a_good_installation_is_described() {
        let installation = judged(IMAGE, &MANAGER, &WEBHOOK, &KUBELET).unwrap();
        assert_eq!(
            (installation.version.as_str(), installation.api_server.as_deref()),
            ("1.2.0", Some("https://a:6443"))
        );
        assert_eq!(installation.local_pod_cidrs, ["10.0.0.0/16"]);
        let digest = format!("localhost:5000/liqo@sha256:{}", "0".repeat(64));
        assert_eq!(judged(&digest, &MANAGER, &WEBHOOK, &KUBELET).unwrap().version, "1.1.2");
    }

    #[test]
    fn dangerous_ones_are_refused_with_the_remedy() {
        for (manager, webhook, kubelet, part) in [
            (
                &["--default-limits-enforcement=none"][..],
                &WEBHOOK[..],
                &KUBELET[..],
                "defaultLimitsEnforcement to None",
            ),
            (&[], &WEBHOOK, &KUBELET, "defaultLimitsEnforcement to None"),
            (&MANAGER, &[], &KUBELET, "enableResourceEnforcement to true"),
            (&MANAGER, &["--enable-resource-enforcement=false"], &KUBELET, "enableResourceEnforcement to true"),
            (&MANAGER, &WEBHOOK, &["--enable-apiserver-support=true"], "--enable-apiserver-support=false"),
            (
                &MANAGER,
                &WEBHOOK,
                &["--enable-apiserver-support=false", "--enable-apiserver-support"],
                "tokens of this cluster",
            ),
        ] {
            let error = judged(IMAGE, manager, webhook, kubelet).unwrap_err();
            assert!(error.contains(part), "{error}");
        }
        for image in ["liqo:v1.0.2", "liqo:v1.3.0", "liqo:v0.10.3", "liqo:v2.0.0"] {
            assert!(judged(image, &MANAGER, &WEBHOOK, &KUBELET).unwrap_err().contains("1.0.3 to 1.2.x"), "{image}");
        }
    }
}
