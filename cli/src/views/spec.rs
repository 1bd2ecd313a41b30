//! The requested GPUs and the conditions of a request.

use comity_proto::v1;
use comity_types::Delivery;
use serde::Serialize;

use super::value::{Known, is_zero, non_empty};
use crate::units::{format_duration, format_memory, format_milli};

/// Requested part of each device.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(tag = "kind", rename_all = "camelCase", rename_all_fields = "camelCase")]
pub enum Share {
    /// The whole device.
    Whole,
    /// A part of the device's compute.
    Milli {
        /// Thousandths of the device, 50 to 1000.
        milli: u32,
    },
    /// A MIG instance.
    Mig {
        /// MIG profile, such as "1g.10gb".
        profile: String,
    },
    /// A part of the device's memory.
    Memory {
        /// Memory in MiB.
        memory_mib: u64,
    },
}

impl From<Option<v1::Share>> for Share {
    fn from(share: Option<v1::Share>) -> Self {
        use v1::share::Kind;
        match share.and_then(|share| share.kind) {
            None | Some(Kind::Whole(_)) => Self::Whole,
            Some(Kind::Milli(milli)) => Self::Milli { milli },
            Some(Kind::MigProfile(profile)) => Self::Mig { profile },
            Some(Kind::MemoryMib(memory_mib)) => Self::Memory { memory_mib },
        }
    }
}

/// Requested GPUs.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Gpus {
    /// GPU class.
    pub class: Option<String>,
    /// CEL expression over `device`, in place of a class.
    pub selector: Option<String>,
    /// Part of each device.
    pub share: Share,
    /// Number of shares.
    pub count: u32,
    /// CPU per share, in thousandths of a core.
    pub cpu_milli_per_gpu: u64,
    /// Memory per share, in MiB.
    pub memory_mib_per_gpu: u64,
    /// `memory` or `hardware`: isolation of each share from other work on its GPU.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub isolation: Option<&'static str>,
}

impl From<Option<v1::GpuDemand>> for Gpus {
    fn from(gpus: Option<v1::GpuDemand>) -> Self {
        let gpus = gpus.unwrap_or_default();
        Self {
            isolation: match gpus.isolation() {
                v1::Isolation::Unspecified => None,
                v1::Isolation::Memory => Some("memory"),
                v1::Isolation::Hardware => Some("hardware"),
            },
            class: non_empty(gpus.class),
            selector: non_empty(gpus.selector),
            share: gpus.share.into(),
            count: gpus.count,
            cpu_milli_per_gpu: gpus.cpu_milli_per_gpu,
            memory_mib_per_gpu: gpus.memory_mib_per_gpu,
        }
    }
}

impl Gpus {
    /// For people: `3 frontier`, `4x0.25 midrange`, `2x1g.10gb teaching`.
    pub(crate) fn summary(&self) -> String {
        format!("{} {}", self.amount_text(), self.class_text())
    }

    /// The class, or a stand-in for a selector.
    fn class_text(&self) -> &str {
        self.class.as_deref().unwrap_or("(selector)")
    }

    fn amount_text(&self) -> String {
        let count = self.count;
        match &self.share {
            Share::Whole => count.to_string(),
            Share::Milli { milli } if count == 1 => format_milli(u64::from(*milli)),
            Share::Milli { milli } => format!("{count}x{}", format_milli(u64::from(*milli))),
            Share::Mig { profile } => format!("{count}x{profile}"),
            Share::Memory { memory_mib } => format!("{count}x{}", format_memory(*memory_mib)),
        }
    }
}

/// How the shares are placed relative to each other.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Topology {
    /// Place all shares on one node.
    pub same_node: bool,
    /// Take whole nodes only.
    pub whole_node: bool,
    /// `preferred` or `required`: NVLink between the GPUs of a node.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub nvlink: Option<&'static str>,
    /// `aligned`: CPU and memory from the NUMA node of each GPU.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub numa: Option<&'static str>,
    /// RDMA bandwidth per node in Gbit/s, if there are several nodes.
    #[serde(skip_serializing_if = "is_zero")]
    pub rdma_gbits: u32,
    /// Spread over as many nodes as have room.
    pub spread_nodes: bool,
}

/// A dataset that the work reads.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct DataNeed {
    /// Name of the dataset.
    pub dataset: String,
    /// Amount read, in MiB.
    pub mib: u64,
}

/// Members of a gang.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Members {
    /// Members that must start together.
    pub min: u32,
    /// Upper bound; members above `min` start as they fit.
    pub desired: u32,
}

impl From<v1::Topology> for Topology {
    fn from(topology: v1::Topology) -> Self {
        Self {
            same_node: topology.same_node,
            whole_node: topology.whole_node,
            nvlink: match topology.nvlink() {
                v1::NvLink::Unspecified => None,
                v1::NvLink::Preferred => Some("preferred"),
                v1::NvLink::Required => Some("required"),
            },
            numa: match topology.numa() {
                v1::Numa::Unspecified => None,
                v1::Numa::Aligned => Some("aligned"),
            },
            rdma_gbits: topology.rdma_gbits,
            spread_nodes: topology.spread_nodes,
        }
    }
}

/// Requested GPUs and conditions.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct RequestSpec {
    /// Tenant that is accounted for the lease.
    pub tenant: String,
    /// Cluster that the workload comes from.
    pub origin: String,
    /// Requested GPUs; for a gang, of each member.
    pub gpus: Gpus,
    /// How they are placed relative to each other.
    pub topology: Topology,
    /// Members of a gang, each with `gpus`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub members: Option<Members>,
    /// Whether members may be on several donors.
    pub spread_donors: bool,
    /// Datasets that the work reads.
    pub data: Vec<DataNeed>,
    /// Purpose for which it reads them.
    pub purpose: Option<String>,
    /// Length of the lease in milliseconds; 0 for the federation's default.
    pub duration_ms: u64,
    /// Donors that may serve it; empty for any.
    pub allow_donors: Vec<String>,
    /// Donors that must not serve it.
    pub deny_donors: Vec<String>,
    /// How the lease is delivered to the origin.
    pub delivery: Known<Delivery>,
    /// Namespace on the origin for the kubeconfig Secret, or whose pods may run on the virtual node.
    pub target_namespace: Option<String>,
    /// The caller's words.
    pub note: Option<String>,
    /// Priority class.
    pub priority: Option<String>,
    /// Opening of the start window; 0 for immediately.
    pub not_before_ms: u64,
    /// Close of the start window, when it fails unless placed; 0 for never.
    pub start_by_ms: u64,
    /// Idle time after which its lease is released, in milliseconds; 0 for policy's limit, if any.
    pub release_idle_ms: u64,
    /// Conditions of preemption; none if it must not be preempted.
    pub preemptible: Option<Preemptible>,
    /// Secret of the target namespace by which pods on the virtual node reach their checkpoints.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub checkpoint_secret: Option<String>,
    /// Request template that it was made from.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub template: Option<String>,
}

/// Conditions of preemption.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Preemptible {
    /// Notice that it needs, in milliseconds; 0 for the donor's.
    pub grace_ms: u64,
    /// Whether its work reports when it is saved.
    pub checkpoint: bool,
    /// Whether what it saved fits only the type of GPUs that it ran on.
    pub same_gpu_type: bool,
}

impl Preemptible {
    /// For people: `yes, with 10m of notice; its work says when it is saved`.
    pub(crate) fn summary(self) -> String {
        let notice = match self.grace_ms {
            0 => "the donor's notice".to_owned(),
            grace => format!("{} of notice", format_duration(grace)),
        };
        let saved = match (self.checkpoint, self.same_gpu_type) {
            (true, true) => "; its work says when it is saved, and continues on GPUs of the same type",
            (true, false) => "; its work says when it is saved",
            (false, _) => "",
        };
        format!("yes, with {notice}{saved}")
    }
}

impl RequestSpec {
    /// For people: `3 frontier`; for a gang `13x1 midrange`, `2-4x8 frontier` or `4x(2x0.5) midrange`.
    pub(crate) fn gpus_summary(&self) -> String {
        let Some(members) = self.members else { return self.gpus.summary() };
        let count = match members {
            Members { min, desired } if min == desired => min.to_string(),
            Members { min, desired } => format!("{min}-{desired}"),
        };
        let each = self.gpus.amount_text();
        let each = if each.contains('x') { format!("({each})") } else { each };
        format!("{count}x{each} {}", self.gpus.class_text())
    }
}

impl From<Option<v1::RequestSpec>> for RequestSpec {
    fn from(spec: Option<v1::RequestSpec>) -> Self {
        let spec = spec.unwrap_or_default();
        let delivery = spec.delivery().try_into().into();
        let topology = spec.topology.unwrap_or_default();
        Self {
            tenant: spec.tenant,
            origin: spec.origin,
            gpus: spec.gpus.into(),
            topology: topology.into(),
            members: spec.members.map(|members| Members { min: members.min, desired: members.desired }),
            spread_donors: spec.spread_donors,
            data: spec.data.into_iter().map(|it| DataNeed { dataset: it.dataset, mib: it.mib }).collect(),
            duration_ms: spec.duration_ms,
            allow_donors: spec.allow_donors,
            deny_donors: spec.deny_donors,
            delivery,
            target_namespace: non_empty(spec.target_namespace),
            purpose: non_empty(spec.purpose),
            note: non_empty(spec.note),
            priority: non_empty(spec.priority),
            not_before_ms: spec.not_before_ms,
            start_by_ms: spec.start_by_ms,
            release_idle_ms: spec.release_idle_ms,
            preemptible: spec.preemptible.map(|it| Preemptible {
                grace_ms: it.grace_ms,
                checkpoint: it.checkpoint,
                same_gpu_type: it.same_gpu_type,
            }),
            checkpoint_secret: non_empty(spec.checkpoint_secret),
            template: non_empty(spec.template),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gang_is_shown_by_its_members() {
        let of = |members: Option<(u32, u32)>, count, milli: Option<u32>| {
            let kind = milli.map_or(v1::share::Kind::Whole(v1::share::Whole {}), v1::share::Kind::Milli);
            let gpus = v1::GpuDemand {
                class: "midrange".to_owned(),
                share: Some(v1::Share { kind: Some(kind) }),
                count,
                ..v1::GpuDemand::default()
            };
            let members = members.map(|(min, desired)| v1::Members { min, desired });
            RequestSpec::from(Some(v1::RequestSpec { gpus: Some(gpus), members, ..Default::default() })).gpus_summary()
        };
        assert_eq!(of(None, 1, None), "1 midrange");
        assert_eq!(of(Some((13, 13)), 1, None), "13x1 midrange");
        assert_eq!(of(Some((2, 4)), 8, None), "2-4x8 midrange");
        assert_eq!(of(Some((4, 4)), 2, Some(500)), "4x(2x0.5) midrange");
    }
}
