//! The form of an inventory file. Required fields are options, so that one reading reports all that are missing.

use std::collections::{BTreeMap, BTreeSet};

use serde::Deserialize;
use serde_saphyr::Spanned;

use crate::observe::health::WrittenFault;

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct InventoryFile {
    pub(super) nodes: Vec<Spanned<FileNode>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct FileNode {
    pub(super) name: Option<Spanned<String>>,
    pub(super) cpu: Option<Spanned<String>>,
    pub(super) memory: Option<Spanned<String>>,
    #[serde(default = "yes")]
    pub(super) schedulable: bool,
    #[serde(default = "yes")]
    pub(super) ready: bool,
    #[serde(default)]
    pub(super) local_use: Option<LocalUse>,
    pub(super) gpus: Option<Vec<Spanned<FileGpus>>>,
    #[serde(default)]
    pub(super) numa: BTreeMap<u32, FileNuma>,
    /// Gbit/s by network.
    #[serde(default)]
    pub(super) rdma: BTreeMap<String, Spanned<u32>>,
    /// Parts of a placement that this host enforces.
    #[serde(default)]
    pub(super) enforces: BTreeSet<EnforcedPart>,
}

#[derive(Clone, Copy, Deserialize, PartialEq, Eq, PartialOrd, Ord)]
#[serde(rename_all = "kebab-case")]
pub(super) enum EnforcedPart {
    /// Workloads get exactly the devices of the placement.
    Devices,
    /// CPU and memory come from the NUMA node of the devices.
    Numa,
}

/// Local use of the node; devices are taken from the last one down.
#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct LocalUse {
    pub(super) cpu: Option<Spanned<String>>,
    pub(super) memory: Option<Spanned<String>>,
    pub(super) gpus: u32,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct FileGpus {
    pub(super) count: Option<Spanned<u32>>,
    pub(super) product: Option<Spanned<String>>,
    #[serde(rename = "memoryMiB")]
    pub(super) memory_mib: Option<u64>,
    pub(super) architecture: Option<String>,
    pub(super) compute_capability: Option<String>,
    pub(super) driver_version: Option<String>,
    #[serde(default)]
    pub(super) sharing: Option<Spanned<FileSharing>>,
    #[serde(default)]
    pub(super) resource_name: Option<String>,
    #[serde(default = "yes")]
    pub(super) healthy: bool,
    /// Their fault, if any.
    #[serde(default)]
    pub(super) fault: Option<Spanned<WrittenFault>>,
    /// NUMA node that they are nearest to.
    #[serde(default)]
    pub(super) numa: Option<Spanned<u32>>,
    /// Name of their NVLink clique.
    #[serde(default)]
    pub(super) nvlink: Option<Spanned<String>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", rename_all_fields = "camelCase", deny_unknown_fields)]
pub(super) enum FileSharing {
    Exclusive,
    TimeSlicing { replicas: u32 },
    Mps { shares: u32 },
    Mig(FileMig),
    Fractional { step_milli: u32 },
}

/// Either the number of instances, or their positions.
#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub(super) struct FileMig {
    #[serde(default)]
    pub(super) instances: BTreeMap<String, u32>,
    #[serde(default)]
    pub(super) layout: Option<Vec<FileInstance>>,
    /// Whether free slices are repartitioned as leases need them.
    #[serde(default)]
    pub(super) repartition: bool,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub(super) struct FileInstance {
    pub(super) profile: String,
    pub(super) start: u32,
    #[serde(default)]
    pub(super) local: bool,
}

/// Allocatable CPU and memory of a NUMA node.
#[derive(Deserialize)]
pub(super) struct FileNuma {
    pub(super) cpu: Spanned<String>,
    pub(super) memory: Spanned<String>,
}

const fn yes() -> bool {
    true
}
