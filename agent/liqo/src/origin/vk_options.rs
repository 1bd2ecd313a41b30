//! How Liqo starts virtual-kubelets, set before the first slice: afterwards it is frozen into each virtual node.
//!
//! - `--enable-apiserver-support=false`: otherwise tokens of this cluster's ServiceAccounts lie on the donor.
//! - `--local-podcidr`: without Liqo's own network, Services reach pods of this cluster only with it. Before Liqo 1.2
//!   there can be only one. With Liqo's own network it would keep addresses from being remapped, so there is none.
//! - `--secret-reflection-type=AllowList`, and the same for ConfigMaps: otherwise every Secret of an offloaded namespace
//!   lies on the donor. Those annotated `liqo.io/allow-reflection: "true"` still do.
//! - whether a node waits for Liqo's network: without that there is nothing to wait for; with it, Liqo's chart decides.
//! - short leases and pings: a virtual-kubelet that was replaced takes over within seconds.

use comity_agent_kubernetes::call::{call, call_opt, patching};
use comity_agent_model::delivery_error::DeliveryError;
use k8s_openapi::api::apps::v1::Deployment;
use kube::Api;
use kube::api::Patch;
use serde_json::json;

use super::LiqoOrigin;
use crate::version::Version;
use crate::vk_options_template;

/// The Deployment of Liqo's webhook, whose argument names the template.
const WEBHOOK: &str = "liqo-webhook";
const TEMPLATE_ARGUMENT: &str = "--vk-options-default-template=";
const DEFAULT_TEMPLATE: &str = "virtual-kubelet-default";
const POD_CIDR: &str = "--local-podcidr";
/// Always set.
const DEMANDED: [(&str, &str); 3] = [
    ("--enable-apiserver-support", "false"),
    ("--secret-reflection-type", "AllowList"),
    ("--configmap-reflection-type", "AllowList"),
];
/// Set unless the operator chose otherwise.
const PREFERRED: [(&str, &str); 4] = [
    ("--vk-lease-duration", "4s"),
    ("--vk-lease-renew-interval", "3s"),
    ("--vk-lease-retry-period", "1s"),
    ("--node-ping-interval", "3s"),
];

impl LiqoOrigin {
    /// Sets the virtual-kubelet's options that matter, if they are not set.
    ///
    /// # Errors
    /// [`DeliveryError`]; permanent with code `liqo-pod-cidrs` if this version of Liqo cannot serve this cluster's pod
    /// networks.
    pub async fn ensure_virtual_kubelet_options(&self) -> Result<(), DeliveryError> {
        let ((namespace, name), network) = tokio::try_join!(self.template_name(), self.own_network())?;
        let templates = self.namespaced(&namespace, &vk_options_template());
        let operation = format!("read VkOptionsTemplate {namespace}/{name}");
        let template = call(&operation, templates.get(&name)).await?;
        let spec = &template.data["spec"];
        let now: Vec<String> = spec["extraArgs"]
            .as_array()
            .into_iter()
            .flatten()
            .filter_map(|argument| argument.as_str().map(str::to_owned))
            .collect();
        let version = Version::parse(&network.liqo_version);
        let takes_several = version.is_none_or(Version::takes_several_pod_networks);
        if !takes_several && network.pod_cidrs.len() > 1 {
            let text = format!(
                "Liqo {} passes one pod network on, and this cluster has {}; set liqo.podCidrs to one network that \
                 holds them all, or install Liqo 1.2",
                network.liqo_version,
                network.pod_cidrs.join(", ")
            );
            return Err(DeliveryError::permanent("liqo-pod-cidrs", text));
        }
        let liqo_network = self.settings.liqo_network;
        let kept = if liqo_network { without_pod_networks(&now) } else { now.clone() };
        // If addresses were passed on unchanged until now, the check was left out as well.
        let unchecked = if !liqo_network { true } else { spec["disableNetworkCheck"] == true && kept == now };
        let foreign = if takes_several { ForeignNetworks::Keep } else { ForeignNetworks::Remove };
        let wanted = arguments(&kept, &network.pod_cidrs, foreign);
        if wanted == now && spec["disableNetworkCheck"].as_bool().unwrap_or_default() == unchecked {
            return Ok(());
        }
        tracing::info!(namespace, name, arguments = ?wanted, "the virtual-kubelet's options are set");
        let patch = json!({
            "metadata": { "resourceVersion": template.metadata.resource_version },
            "spec": { "extraArgs": wanted, "disableNetworkCheck": unchecked },
        });
        let parameters = patching();
        let operation = format!("set the options in VkOptionsTemplate {namespace}/{name}");
        call(&operation, templates.patch(&name, &parameters, &Patch::Merge(&patch))).await.map(drop)
    }

    async fn template_name(&self) -> Result<(String, String), DeliveryError> {
        let namespace = &self.settings.liqo_namespace;
        let deployments = Api::<Deployment>::namespaced(self.client.clone(), namespace);
        let webhook = call_opt(&format!("read Deployment {namespace}/{WEBHOOK}"), deployments.get(WEBHOOK)).await?;
        let containers = webhook.and_then(|webhook| webhook.spec?.template.spec).map(|pod| pod.containers);
        let arguments = containers.into_iter().flatten().filter_map(|container| container.args).flatten();
        let mut named = arguments.filter_map(|argument| {
            let (namespace, name) = argument.strip_prefix(TEMPLATE_ARGUMENT)?.split_once('/')?;
            Some((namespace.to_owned(), name.to_owned()))
        });
        Ok(named.next().unwrap_or_else(|| (namespace.clone(), DEFAULT_TEMPLATE.to_owned())))
    }
}

/// Removes the arguments for networks that are passed on unchanged.
fn without_pod_networks(now: &[String]) -> Vec<String> {
    let is_network = |argument: &&String| {
        argument.strip_prefix(POD_CIDR).is_some_and(|rest| rest.is_empty() || rest.starts_with('='))
    };
    now.iter().filter(|argument| !is_network(argument)).cloned().collect()
}

/// Treatment of pod networks in the arguments that are not this cluster's.
#[derive(Clone, Copy, PartialEq, Eq)]
enum ForeignNetworks {
    /// They stay.
    Keep,
    /// They are removed: the virtual-kubelet takes one network.
    Remove,
}

/// The wanted arguments: existing ones stay unless they are wrong.
fn arguments(now: &[String], pod_cidrs: &[String], foreign_networks: ForeignNetworks) -> Vec<String> {
    let is = |argument: &str, flag: &str| {
        argument == flag || argument.strip_prefix(flag).is_some_and(|rest| rest.starts_with('='))
    };
    let demanded = |argument: &String| DEMANDED.iter().any(|(flag, _)| is(argument, flag));
    let foreign = |argument: &String| {
        foreign_networks == ForeignNetworks::Remove
            && is(argument, POD_CIDR)
            && !pod_cidrs.iter().any(|cidr| *argument == format!("{POD_CIDR}={cidr}"))
    };
    let mut wanted: Vec<String> =
        now.iter().filter(|argument| !demanded(argument) && !foreign(argument)).cloned().collect();
    wanted.extend(DEMANDED.iter().map(|(flag, value)| format!("{flag}={value}")));
    for (flag, value) in PREFERRED {
        if !wanted.iter().any(|argument| is(argument, flag)) {
            wanted.push(format!("{flag}={value}"));
        }
    }
    // Several may be given in one argument, with commas.
    let given: Vec<&str> = wanted
        .iter()
        .filter_map(|argument| argument.strip_prefix(POD_CIDR)?.strip_prefix('='))
        .flat_map(|list| list.split(','))
        .collect();
    let missing: Vec<String> = pod_cidrs
        .iter()
        .filter(|cidr| !given.contains(&cidr.as_str()))
        .map(|cidr| format!("{POD_CIDR}={cidr}"))
        .collect();
    wanted.extend(missing);
    if same_set(&wanted, now) { now.to_vec() } else { wanted }
}

/// The order of flags does not matter: nothing is written for it.
fn same_set(one: &[String], other: &[String]) -> bool {
    let sorted = |list: &[String]| {
        let mut list = list.to_vec();
        list.sort_unstable();
        list
    };
    sorted(one) == sorted(other)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list(arguments: &[&str]) -> Vec<String> {
        arguments.iter().map(|argument| (*argument).to_owned()).collect()
    }

    #[test]
    fn values_of_the_chart_are_corrected_and_the_operators_choices_stay() {
        let cidrs = list(&["10.1.0.0/24", "10.1.1.0/24"]);
        let first = arguments(
            &list(&["--enable-apiserver-support=true", "--v=4", "--node-ping-interval=7s"]),
            &cidrs,
            ForeignNetworks::Keep,
        );
        assert_eq!(
            first,
            list(&[
                "--v=4",
                "--node-ping-interval=7s",
                "--enable-apiserver-support=false",
                "--secret-reflection-type=AllowList",
                "--configmap-reflection-type=AllowList",
                "--vk-lease-duration=4s",
                "--vk-lease-renew-interval=3s",
                "--vk-lease-retry-period=1s",
                "--local-podcidr=10.1.0.0/24",
                "--local-podcidr=10.1.1.0/24",
            ])
        );
        assert_eq!(arguments(&first, &cidrs, ForeignNetworks::Keep), first);
        let mut reordered = first.clone();
        reordered.reverse();
        assert_eq!(arguments(&reordered, &cidrs, ForeignNetworks::Keep), reordered);
    }

    #[test]
    fn secrets_are_reflected_by_allow_list_whatever_the_chart_says() {
        let now = list(&["--secret-reflection-type=DenyList", "--configmap-reflection-type=DenyList"]);
        let then = arguments(&now, &[], ForeignNetworks::Keep);
        for kind in ["secret", "configmap"] {
            let of_kind = format!("--{kind}-reflection-type");
            let found: Vec<&String> = then.iter().filter(|argument| argument.starts_with(&of_kind)).collect();
            assert_eq!(found, [&format!("{of_kind}=AllowList")]);
        }
    }

    #[test]
    fn cidrs_of_others_stay_and_a_bare_flag_counts() {
        let now = list(&["--local-podcidr=10.9.0.0/16,10.1.0.0/24", "--enable-apiserver-support"]);
        let then = arguments(&now, &list(&["10.1.0.0/24"]), ForeignNetworks::Keep);
        assert!(then.contains(&"--local-podcidr=10.9.0.0/16,10.1.0.0/24".to_owned()));
        assert_eq!(then.iter().filter(|argument| argument.starts_with(POD_CIDR)).count(), 1);
        assert!(!then.contains(&"--enable-apiserver-support".to_owned()), "{then:?}");
        assert!(then.contains(&"--enable-apiserver-support=false".to_owned()));
    }

    #[test]
    fn with_liqos_network_no_address_is_passed_on_unchanged() {
        let now = list(&["--v=4", "--local-podcidr=10.9.0.0/16,10.1.0.0/24", "--local-podcidr=10.2.0.0/16"]);
        let then = arguments(&without_pod_networks(&now), &[], ForeignNetworks::Keep);
        assert!(then.contains(&"--v=4".to_owned()) && !then.iter().any(|argument| argument.starts_with(POD_CIDR)));
        assert_eq!(without_pod_networks(&then), then);
    }

    #[test]
    fn before_1_2_there_is_one_pod_network_and_it_is_this_clusters() {
        let cidrs = list(&["10.1.0.0/16"]);
        let then =
            arguments(&list(&["--local-podcidr=10.9.0.0/16,10.1.0.0/16", "--v=4"]), &cidrs, ForeignNetworks::Remove);
        let networks: Vec<&String> = then.iter().filter(|argument| argument.starts_with(POD_CIDR)).collect();
        assert_eq!(networks, ["--local-podcidr=10.1.0.0/16"]);
        assert!(then.contains(&"--v=4".to_owned()));
        assert_eq!(arguments(&then, &cidrs, ForeignNetworks::Remove), then);
    }
}
