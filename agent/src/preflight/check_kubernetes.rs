//! The Kubernetes API: it answers, grants the agent's rights, and shows nodes.

use std::sync::Arc;
use std::time::Duration;

use comity_agent_kubernetes::api::{KubernetesApi, KubernetesSource};
use comity_runtime::SystemClock;
use comity_runtime::checks::{Check, CheckList};
use kube::Client;

use super::capacity::{Capacity, any_salt};
use super::check_rights::ConfigMapName;
use super::{
    check_inventory, check_network_policies, check_policies, check_rights, check_runtime_class, check_webhook,
};
use crate::config::Config;
use crate::mig::mig_keeper::{MigChannels, check_configs, preview};
use crate::mig::mig_settings::MigSettings;
use crate::observe::kubernetes::ObserverOptions;
use crate::observe::{self, InventorySettings};

const KUBERNETES_CHECK: &str = "kubernetes";
const MIG_CHECK: &str = "mig";
const NODES_CHECK: &str = "nodes";
/// How long nodes and pods of a large cluster take to be listed.
const LIST_WITHIN: Duration = Duration::from_secs(20);

pub(super) async fn check(config: &Config, list: &mut CheckList) -> Option<Capacity> {
    // Without a section, the configuration's check failed already.
    let kubernetes = config.kubernetes.clone()?;
    let source = match kubernetes.kubeconfig {
        Some(path) => KubernetesSource::Kubeconfig { path, context: kubernetes.context },
        None => KubernetesSource::InCluster,
    };
    let api = match KubernetesApi::connect(&source).await {
        Ok(api) => api,
        Err(error) => {
            list.push(Check::failed(
                KUBERNETES_CHECK,
                error.to_string(),
                "kubectl get --raw /version must work with it",
            ));
            return None;
        }
    };
    list.push(Check::ok(KUBERNETES_CHECK, format!("{} answers", api.url())));
    if !check_rights::check(&api.client(), list).await {
        return None;
    }
    check_policies::check(&api.client(), config, list).await;
    if config.mig.repartition {
        list.push(check_mig(&api.client(), &config.mig).await);
    }
    let settings_with_rights = [
        (config.sharing.hold, check_rights::HOLD),
        (config.sharing.clean_nodes, check_rights::CLEAN),
        (config.canary.is_some(), check_rights::CANARY),
        (config.burst.provisioning_requests, check_rights::KUEUE),
        (config.standby.is_some(), check_rights::standby(&config.liqo.agent_namespace)),
    ];
    for (_, of) in settings_with_rights.iter().filter(|(is_set, _)| *is_set) {
        check_rights::check_setting(&api.client(), of, list).await;
    }
    if let Some(class) = &config.sharing.runtime_class {
        list.push(check_runtime_class::check(&api.client(), class).await);
    }
    check_rights::check_claims(&api.client(), list).await;
    check_webhook::check(&api.client(), config, list).await;
    let settings = InventorySettings { salt: any_salt(), reserve: config.reserve, rdma: config.rdma.clone() };
    let mut options = ObserverOptions::default();
    if config.mig.repartition {
        let (channels, view) = MigChannels::new();
        options.mig = Some(view);
        // It ends when the nodes are known, or with the inventory.
        tokio::spawn(preview(api.client(), config.mig.clone(), Arc::new(SystemClock::new()), channels));
    }
    let inventory = observe::kubernetes::observe_with(&api, settings, observe::no_leases(), options);
    let mut nodes = inventory.nodes();
    let first = tokio::time::timeout(LIST_WITHIN, nodes.wait_for(Option::is_some)).await;
    let capacity = match first {
        Ok(Ok(nodes)) => nodes.as_ref().map(|nodes| check_inventory::capacity(nodes)),
        Ok(Err(_)) | Err(_) => None,
    };
    list.push(match capacity {
        Some(Capacity { nodes, devices: 0 }) if nodes > 0 => Check::warning(
            NODES_CHECK,
            format!("{nodes} nodes, and no GPU that can be offered: this cluster can borrow only"),
            "to lend, install GPU Feature Discovery (or AMD's node labeller); the agent's log names devices that it \
             does not offer",
        ),
        Some(capacity) => check_inventory::summary(NODES_CHECK, capacity),
        None => {
            let detail = format!("nodes and pods were not listed within {} s", LIST_WITHIN.as_secs());
            Check::failed(NODES_CHECK, detail, "look at the load of the API server")
        }
    });
    if config.sharing.enabled && capacity.is_some_and(|capacity| capacity.devices > 0) {
        list.push(check_network_policies::check(&api.client(), config.canary.as_ref()).await);
    }
    capacity
}

/// The MIG manager's configurations, and the right to add to them.
async fn check_mig(client: &Client, settings: &MigSettings) -> Check {
    const REMEDY: &str = "docs/mig.md has the steps to let the agent cut MIG devices";
    let count = match check_configs(client, settings).await {
        Ok(count) => count,
        Err(reason) => return Check::failed(MIG_CHECK, reason, REMEDY),
    };
    let map = &settings.config_map;
    if let Some((namespace, name)) = settings.namespace_and_name()
        && let Err(reason) = check_rights::check_mig(client, ConfigMapName { namespace, name }).await
    {
        return Check::failed(MIG_CHECK, reason, REMEDY);
    }
    Check::ok(MIG_CHECK, format!("{map} has {count} configurations, and the agent can add others"))
}
