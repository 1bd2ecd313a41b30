//! Parts of a `GpuRequest`: how its GPUs lie together, as how many members, when it may start and whether it may be
//! preempted.
#![expect(unreachable_pub, reason = "the schema derive copies the types into functions")]

use comity_proto::v1;
use kube::KubeSchema;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// How many members a gang has. Each has `spec.gpus` GPUs, all on one node.
#[derive(KubeSchema, Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[x_kube(validation = Rule::new("self.min <= self.desired").message("members.min must not be more than members.desired"))]
pub struct Members {
    /// Minimum number of members that start together.
    #[x_kube(validation = Rule::new("self >= 1 && self <= 4096").message("members.min must be from 1 to 4096"))]
    pub min: i32,
    /// Maximum number of members, started as far as they fit.
    #[x_kube(validation = Rule::new("self >= 1 && self <= 4096").message("members.desired must be from 1 to 4096"))]
    pub desired: i32,
}

/// How the GPUs lie together.
#[derive(KubeSchema, Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Topology {
    /// All shares on one node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub same_node: Option<bool>,
    /// Only nodes whose GPUs the request takes whole.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub whole_node: Option<bool>,
    /// Whether NVLink joins the GPUs that the request, or each member, has on a node. Absent: as it comes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nvlink: Option<NvLink>,
    /// Where CPU and main memory come from. Absent: anywhere on the node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub numa: Option<Numa>,
    /// RDMA bandwidth in Gbit/s on each node if the request spans several. Absent: none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[x_kube(validation = Rule::new("self >= 1 && self <= 1000000").message("topology.rdmaGbits must be from 1 to 1000000"))]
    pub rdma_gbits: Option<i32>,
    /// Evenly on as many nodes of the donor as have room. Absent: on as few as possible.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub spread_nodes: Option<bool>,
}

/// Data that the work reads.
#[derive(KubeSchema, Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct DataNeed {
    /// Name of the dataset, as institutions agree on it.
    #[x_kube(validation = Rule::new("self.matches('^[-A-Za-z0-9_./:@]+$')").message("dataset must be letters, digits and -_./:@, as in imagenet-1k"))]
    #[schemars(length(min = 1, max = 128))]
    pub dataset: String,
    /// How much of it, in MiB.
    #[x_kube(validation = Rule::new("self >= 1 && self <= 1099511627776").message("mib must be from 1 to 1099511627776"))]
    pub mib: i64,
}

/// Isolation of each share from other work on its GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum Isolation {
    /// Other work cannot take the share's memory.
    Memory,
    /// Memory, compute and faults are separate in hardware.
    Hardware,
}

impl Isolation {
    pub(crate) fn to_message(given: Option<Self>) -> v1::Isolation {
        match given {
            None => v1::Isolation::Unspecified,
            Some(Self::Memory) => v1::Isolation::Memory,
            Some(Self::Hardware) => v1::Isolation::Hardware,
        }
    }
}

/// Whether NVLink joins the GPUs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
pub enum NvLink {
    /// At a donor that has such GPUs free.
    Preferred,
    /// Or the request does not fit.
    Required,
}

impl NvLink {
    pub(crate) fn to_message(given: Option<Self>) -> v1::NvLink {
        match given {
            None => v1::NvLink::Unspecified,
            Some(Self::Preferred) => v1::NvLink::Preferred,
            Some(Self::Required) => v1::NvLink::Required,
        }
    }

    pub(crate) fn from_message(message: v1::NvLink) -> Option<Self> {
        match message {
            v1::NvLink::Unspecified => None,
            v1::NvLink::Preferred => Some(Self::Preferred),
            v1::NvLink::Required => Some(Self::Required),
        }
    }
}

/// Where CPU and main memory come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
pub enum Numa {
    /// From the NUMA node of the share's GPU.
    Aligned,
}

impl Numa {
    pub(crate) fn to_message(given: Option<Self>) -> v1::Numa {
        match given {
            None => v1::Numa::Unspecified,
            Some(Self::Aligned) => v1::Numa::Aligned,
        }
    }

    pub(crate) fn from_message(message: v1::Numa) -> Option<Self> {
        match message {
            v1::Numa::Unspecified => None,
            v1::Numa::Aligned => Some(Self::Aligned),
        }
    }
}

/// Preemption by requests of higher priority.
#[derive(KubeSchema, Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[x_kube(validation = Rule::new("!(has(self.sameGpuType) && self.sameGpuType) || (has(self.checkpoint) && self.checkpoint)").message("preemptible.sameGpuType needs preemptible.checkpoint"))]
pub struct Preemptible {
    /// Notice that the work needs to save itself, in seconds; the donor's own, if that is longer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[x_kube(validation = Rule::new("self >= 0 && self <= 86400").message("preemptible.graceSeconds must be from 0 to 86400, a day"))]
    pub grace_seconds: Option<i32>,
    /// Whether the work reports when it is saved: then only later work counts as lost.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub checkpoint: Option<bool>,
    /// With checkpoint: whether what the work saved fits only the type of GPUs that it ran on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub same_gpu_type: Option<bool>,
}

/// When the request may start.
#[derive(KubeSchema, Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[x_kube(validation = Rule::new("!(has(self.notBefore) && has(self.startBy)) || self.notBefore < self.startBy").message("window.startBy must be after window.notBefore"))]
pub struct Window {
    /// It is not tried before this. Absent: at once.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("format" = "date-time"))]
    pub not_before: Option<String>,
    /// It fails if it is not placed by this. Absent: it waits until it is deleted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("format" = "date-time"))]
    pub start_by: Option<String>,
}
