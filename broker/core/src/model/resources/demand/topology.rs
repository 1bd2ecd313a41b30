//! The topology of a request: how its shares lie relative to one another, and the number of members.

use serde::{Deserialize, Serialize};

use crate::model::demand::{GpuDemand, Share};
use crate::model::limits::{MAX_RDMA_GBITS, MAX_SHARES_PER_REQUEST};
use crate::model::refusal::Refusal;

/// How the shares lie relative to one another. All shares are on one donor, unless the gang may spread.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Topology {
    /// All shares on one node.
    pub same_node: bool,
    /// Whether the request takes whole nodes only.
    pub whole_node: bool,
    /// Whether NVLink connects the devices.
    pub nvlink: NvLink,
    /// Whether CPU and main memory of each share come from the NUMA node of its device.
    pub numa: Numa,
    /// RDMA bandwidth in Gbit/s on each node, if the request lies on several; 0 for none.
    pub rdma_gbits: u32,
    /// Whether to use as many nodes as possible, evenly, so that one node's failure affects little. Otherwise as few as
    /// possible.
    pub spread_nodes: bool,
}

/// Whether NVLink connects the devices that a request, or one of its members, has on a node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum NvLink {
    /// Does not matter.
    #[default]
    None,
    /// Prefers donors that provide it.
    Preferred,
    /// Requires all devices in one clique.
    Required,
}

/// The source of CPU and main memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Numa {
    /// Anywhere on the node.
    #[default]
    None,
    /// The NUMA node of the share's device.
    Aligned,
}

/// Number of members of a gang. A member has the shares of one [`GpuDemand`], all on one node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Members {
    /// Minimum number to start, all together.
    pub min: u32,
    /// Desired number. Further members start or join as capacity allows.
    pub desired: u32,
}

impl Topology {
    /// Whether it constrains how devices, CPU and networks are connected.
    #[must_use]
    pub fn asks_for_wiring(&self) -> bool {
        self.nvlink != NvLink::None || self.numa != Numa::None || self.rdma_gbits > 0
    }

    /// The same topology without such constraints.
    #[must_use]
    pub fn without_wiring(self) -> Self {
        Self {
            same_node: self.same_node,
            whole_node: self.whole_node,
            spread_nodes: self.spread_nodes,
            ..Self::default()
        }
    }

    pub(crate) fn check(&self, gpus: &GpuDemand) -> Result<(), Refusal> {
        let contradicted =
            [("same_node", self.same_node), ("whole_node", self.whole_node)].into_iter().find(|(_, set)| *set);
        if let Some((other, _)) = contradicted.filter(|_| self.spread_nodes) {
            return Err(Refusal::invalid(
                "spec.topology.spread_nodes",
                self.spread_nodes,
                &format!("contradicts spec.topology.{other}"),
                "leave one of the two out",
            ));
        }
        if self.nvlink == NvLink::Required && matches!(gpus.share, Share::MigProfile(_)) {
            return Err(Refusal::invalid(
                "spec.topology.nvlink",
                "required",
                "is asked for MIG instances, which NVLink does not join",
                "ask for whole GPUs, or leave it out",
            ));
        }
        if self.numa == Numa::Aligned && gpus.cpu_milli_per_gpu == 0 && gpus.memory_mib_per_gpu == 0 {
            return Err(Refusal::invalid(
                "spec.topology.numa",
                "aligned",
                "is asked for no CPU and no memory",
                "say how much CPU or memory goes with each GPU, or leave it out",
            ));
        }
        if self.rdma_gbits > MAX_RDMA_GBITS {
            return Err(Refusal::invalid(
                "spec.topology.rdma_gbits",
                self.rdma_gbits,
                "is too large",
                format!("use at most {MAX_RDMA_GBITS} Gbit/s for each node"),
            ));
        }
        Ok(())
    }
}

impl Members {
    pub(crate) fn check(self, gpus: &GpuDemand) -> Result<(), Refusal> {
        if self.min == 0 || self.min > self.desired {
            return Err(Refusal::invalid(
                "spec.members.min",
                self.min,
                &format!("is not between 1 and spec.members.desired, {}", self.desired),
                "say with how many members it can start",
            ));
        }
        let all = u64::from(self.desired).saturating_mul(u64::from(gpus.count));
        if all > u64::from(MAX_SHARES_PER_REQUEST) {
            return Err(Refusal::invalid(
                "spec.members.desired",
                self.desired,
                &format!("with {} shares each, is out of range", gpus.count),
                format!("ask for at most {MAX_SHARES_PER_REQUEST} shares in all"),
            ));
        }
        Ok(())
    }
}
