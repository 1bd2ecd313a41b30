//! A node whose MIG devices the agent may cut, as the observer sees it.

use std::collections::BTreeMap;
use std::sync::Arc;

use comity_agent_kubernetes::gpu_resource::{NVIDIA_GPU, NVIDIA_MIG_PREFIX};
use comity_agent_kubernetes::pod_request::Amounts;
use comity_types::mig::Board;
use serde::{Deserialize, Serialize};

use super::device_layout::DeviceLayout;

/// The node's owner lets the agent cut its MIG devices with this label, if it is "true".
pub(crate) const CUT_LABEL: &str = "comity.dev/mig";
/// Names the configuration that a node had before the agent changed it.
pub(crate) const BEFORE_ANNOTATION: &str = "comity.dev/mig-config-before";
/// The change under way, so that a restart of the agent does not forget it: see [`BegunChange`].
pub(crate) const CHANGE_ANNOTATION: &str = "comity.dev/mig-change";
/// Names the configuration that the MIG manager applies.
pub(crate) const CONFIG_LABEL: &str = "nvidia.com/mig.config";
/// The MIG manager's progress: "pending", "rebooting", "success" or "failed".
const STATE_LABEL: &str = "nvidia.com/mig.config.state";

/// All such nodes; `None` before they are known.
pub(crate) type MigNodes = Option<Arc<Vec<MigNode>>>;

/// One node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct MigNode {
    /// Name in the cluster; never leaves it.
    pub(crate) name: String,
    /// Its id in offers.
    pub(crate) id: String,
    /// Labels of GPUs.
    pub(crate) labels: BTreeMap<String, String>,
    /// Value of [`BEFORE_ANNOTATION`]; empty: none.
    pub(crate) before: String,
    /// The change that its annotation records.
    pub(crate) change: Option<BegunChange>,
    /// Allocatable amounts.
    pub(crate) allocatable: Amounts,
    /// Capacity of extended resources.
    pub(crate) capacity: Amounts,
    /// Requests of local pods.
    pub(crate) local: Amounts,
    /// Requests of lent pods.
    pub(crate) lent: Amounts,
}

/// The beginning of a change, as JSON in the annotation [`CHANGE_ANNOTATION`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct BegunChange {
    /// Name of the configuration before it.
    pub(crate) from: String,
    /// Name of the wanted one.
    pub(crate) to: String,
    /// When it began, in seconds since 1970.
    pub(crate) begun: u64,
}

impl MigNode {
    fn label(&self, key: &str) -> &str {
        self.labels.get(key).map_or("", String::as_str)
    }

    /// Name of the configuration in force, or on its way.
    pub(crate) fn config(&self) -> &str {
        self.label(CONFIG_LABEL)
    }

    /// Names of configurations that the node has, or may return to.
    pub(crate) fn configs(&self) -> impl Iterator<Item = &str> {
        let from = self.change.as_ref().map_or("", |begun| begun.from.as_str());
        [self.config(), self.before.as_str(), from].into_iter().filter(|name| !name.is_empty())
    }

    /// The MIG manager's progress.
    pub(crate) fn state(&self) -> &str {
        self.label(STATE_LABEL)
    }

    /// Board and number of its devices; an error is one sentence.
    pub(crate) fn board(&self) -> Result<(Board, usize), String> {
        let strategy = self.label("nvidia.com/mig.strategy");
        if strategy != "mixed" {
            return Err(format!("nvidia.com/mig.strategy is {strategy:?}; cutting needs the mixed strategy"));
        }
        let product = self.label("nvidia.com/gpu.product");
        let memory_mib = self.label("nvidia.com/gpu.memory").parse().unwrap_or(0);
        let board = Board::of(product, memory_mib)
            .ok_or_else(|| format!("{product:?} of {memory_mib} MiB is no board whose MIG geometry is known"))?;
        match self.label("nvidia.com/gpu.count").parse() {
            Ok(gpus) if (1..=crate::mig::mig_settings::MAX_GPUS).contains(&gpus) => Ok((board, gpus)),
            _ => Err("nvidia.com/gpu.count does not tell how many GPUs the node has".to_owned()),
        }
    }

    /// Units of a resource in use by pods.
    pub(crate) fn used(&self, resource: &str) -> u64 {
        of(&self.local, resource).saturating_add(of(&self.lent, resource))
    }

    /// Whether it has exactly these instances and whole GPUs; unhealthy ones count. A kubelet remembers names that the
    /// device plugin no longer serves for five minutes, with nothing allocatable.
    pub(crate) fn has(&self, layouts: &[DeviceLayout]) -> bool {
        let expected = resources(layouts);
        let is_remembered = |name: &String| of(&self.allocatable, name) == 0;
        let is_counted = |name: &str| name == NVIDIA_GPU || name.starts_with(NVIDIA_MIG_PREFIX);
        expected.iter().all(|(name, count)| of(&self.capacity, name) == *count)
            && self.capacity.keys().filter(|name| is_counted(name) && !expected.contains_key(*name)).all(is_remembered)
    }

    /// Whether it has exactly these, and all of them can be allocated.
    pub(crate) fn serves(&self, layouts: &[DeviceLayout]) -> bool {
        self.has(layouts) && resources(layouts).iter().all(|(name, count)| of(&self.allocatable, name) == *count)
    }
}

/// The amount of a resource.
pub(crate) fn of(amounts: &Amounts, resource: &str) -> u64 {
    amounts.get(resource).copied().unwrap_or(0)
}

/// The resource that counts instances of a profile.
pub(crate) fn resource(profile: &str) -> String {
    format!("{NVIDIA_MIG_PREFIX}{profile}")
}

/// Counts by resource.
pub(crate) fn resources(layouts: &[DeviceLayout]) -> Amounts {
    let mut amounts = Amounts::new();
    for layout in layouts {
        match layout {
            DeviceLayout::Whole => *amounts.entry(NVIDIA_GPU.to_owned()).or_default() += 1,
            DeviceLayout::Cut(instances) => {
                for profile in instances.values() {
                    *amounts.entry(resource(profile)).or_default() += 1;
                }
            }
        }
    }
    amounts
}
