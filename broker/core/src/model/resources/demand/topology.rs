//! How the shares of a request lie together, and as how many members.

use serde::{Deserialize, Serialize};

use crate::model::demand::{GpuDemand, Share};
use crate::model::limits::{MAX_RDMA_GBITS, MAX_SHARES_PER_REQUEST};
use crate::model::refusal::Refusal;

/// How the shares lie together. All of a request is on one donor (gang).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Topology {
    /// All shares on one node.
    pub same_node: bool,
    /// Only nodes that the request takes whole.
    pub whole_node: bool,
    /// Whether NVLink joins the devices.
    #[serde(default)]
    pub nvlink: NvLink,
    /// Whether CPU and main memory of each share come from the NUMA node of its device.
    #[serde(default)]
    pub numa: Numa,
    /// Gbit/s for RDMA that each node gives where the request lies on several; 0: none are asked for.
    #[serde(default)]
    pub rdma_gbits: u32,
    /// On as many nodes of the donor as have room, evenly, so that the failure of one takes little; else on as few as
    /// can be.
    #[serde(default)]
    pub spread_nodes: bool,
}

/// Whether NVLink joins the devices that a request, or one of its members, has on a node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum NvLink {
    /// Whatever is there.
    #[default]
    None,
    /// At a donor where that can be had.
    Preferred,
    /// All of them are of one clique, or it does not fit.
    Required,
}

/// Where CPU and main memory come from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Numa {
    /// From anywhere on the node.
    #[default]
    None,
    /// From the NUMA node of the share's device.
    Aligned,
}

/// How many members a gang has. A member has the shares of one [`GpuDemand`], all on one node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Members {
    /// So many start together, or none.
    pub min: u32,
    /// More are started with them as far as they fit, up to so many.
    pub desired: u32,
}

impl Topology {
    /// Whether it asks for more than amounts: for how devices, CPU and networks are joined.
    #[must_use]
    pub fn asks_for_wiring(&self) -> bool {
        self.nvlink != NvLink::None || self.numa != Numa::None || self.rdma_gbits > 0
    }

    /// The same, asking for nothing of the kind.
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
