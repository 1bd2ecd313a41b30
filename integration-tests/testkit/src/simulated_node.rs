//! Simulated nodes, with the fields and labels of real GPU nodes.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Node, NodeStatus, NodeSystemInfo};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use kube::api::ObjectMeta;

/// The annotation that marks kwok's nodes.
pub(crate) const KWOK_ANNOTATION: (&str, &str) = ("kwok.x-k8s.io/node", "fake");
/// The GPU resource of NVIDIA's device plugin.
const GPU: &str = "nvidia.com/gpu";
/// Pods on one node: the kubelet's default.
const PODS: u32 = 110;

/// A node that exists in the API only. kwok keeps it Ready and "runs" its pods.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SimulatedNode {
    /// Its name, unique in the cluster.
    pub name: String,
    /// Allocatable `nvidia.com/gpu`; with 0 the resource is absent.
    pub gpus: u32,
    /// Cores.
    pub cpu: u32,
    /// Memory in GiB.
    pub memory_gib: u32,
    /// Ephemeral storage in GiB.
    pub ephemeral_storage_gib: u32,
    /// Labels besides the ones every node has, among them those of GPU Feature Discovery.
    pub labels: BTreeMap<String, String>,
}

impl SimulatedNode {
    /// A node without GPUs: 32 cores, 128 GiB.
    #[must_use]
    pub fn without_gpus(name: &str) -> Self {
        Self {
            name: name.to_owned(),
            gpus: 0,
            cpu: 32,
            memory_gib: 128,
            ephemeral_storage_gib: 1000,
            labels: BTreeMap::new(),
        }
    }

    /// A DGX-like node with `gpus` H100 of 80 GB: 112 cores, 2048 GiB.
    #[must_use]
    pub fn h100(name: &str, gpus: u32) -> Self {
        Self { gpus, cpu: 112, memory_gib: 2048, labels: H100.labels(gpus), ..Self::without_gpus(name) }
    }

    /// A node with `gpus` A100 of 40 GB: 64 cores, 1024 GiB.
    #[must_use]
    pub fn a100(name: &str, gpus: u32) -> Self {
        Self { gpus, cpu: 64, memory_gib: 1024, labels: A100.labels(gpus), ..Self::without_gpus(name) }
    }

    /// A node with `gpus` L40S of 48 GB, which have no MIG: 64 cores, 512 GiB.
    #[must_use]
    pub fn l40s(name: &str, gpus: u32) -> Self {
        Self { gpus, cpu: 64, memory_gib: 512, labels: L40S.labels(gpus), ..Self::without_gpus(name) }
    }

    /// Adds or replaces a label.
    #[must_use]
    pub fn label(mut self, key: &str, value: &str) -> Self {
        self.labels.insert(key.to_owned(), value.to_owned());
        self
    }

    /// The Node object for the API.
    pub(crate) fn manifest(&self) -> Node {
        let mut amounts = BTreeMap::from([
            ("cpu".to_owned(), Quantity(self.cpu.to_string())),
            ("memory".to_owned(), Quantity(format!("{}Gi", self.memory_gib))),
            ("ephemeral-storage".to_owned(), Quantity(format!("{}Gi", self.ephemeral_storage_gib))),
            ("pods".to_owned(), Quantity(PODS.to_string())),
        ]);
        if self.gpus > 0 {
            amounts.insert(GPU.to_owned(), Quantity(self.gpus.to_string()));
        }
        let mut labels = self.labels.clone();
        for (key, value) in [
            ("kubernetes.io/hostname", self.name.as_str()),
            ("kubernetes.io/os", "linux"),
            ("kubernetes.io/arch", "amd64"),
            ("type", "kwok"),
        ] {
            labels.insert(key.to_owned(), value.to_owned());
        }
        let (annotation, value) = KWOK_ANNOTATION;
        Node {
            metadata: ObjectMeta {
                name: Some(self.name.clone()),
                labels: Some(labels),
                annotations: Some(BTreeMap::from([(annotation.to_owned(), value.to_owned())])),
                ..ObjectMeta::default()
            },
            status: Some(NodeStatus {
                allocatable: Some(amounts.clone()),
                capacity: Some(amounts),
                node_info: Some(NodeSystemInfo {
                    architecture: "amd64".into(),
                    operating_system: "linux".into(),
                    kubelet_version: "v1.34.4".into(),
                    container_runtime_version: "kwok://0.8.0".into(),
                    os_image: "simulated".into(),
                    ..NodeSystemInfo::default()
                }),
                ..NodeStatus::default()
            }),
            ..Node::default()
        }
    }
}

/// One model of GPU, as GPU Feature Discovery describes it.
pub(crate) struct GpuModel {
    product: &'static str,
    memory_mib: u32,
    family: &'static str,
    /// Compute capability, major and minor.
    compute: (u8, u8),
    machine: &'static str,
    mig: bool,
}

const H100: GpuModel = GpuModel {
    product: "NVIDIA-H100-80GB-HBM3",
    memory_mib: 81_559,
    family: "hopper",
    compute: (9, 0),
    machine: "NVIDIA-DGX-H100",
    mig: true,
};
const A100: GpuModel = GpuModel {
    product: "NVIDIA-A100-SXM4-40GB",
    memory_mib: 40_960,
    family: "ampere",
    compute: (8, 0),
    machine: "NVIDIA-DGX-A100",
    mig: true,
};
const L40S: GpuModel = GpuModel {
    product: "NVIDIA-L40S",
    memory_mib: 46_068,
    family: "ada-lovelace",
    compute: (8, 9),
    machine: "SYS-521GE-TNRT",
    mig: false,
};

impl GpuModel {
    /// The labels that GPU Feature Discovery puts on a node with `count` whole GPUs of this model.
    pub(crate) fn labels(&self, count: u32) -> BTreeMap<String, String> {
        [
            ("gpu.present", "true".to_owned()),
            ("gpu.product", self.product.to_owned()),
            ("gpu.count", count.to_string()),
            ("gpu.replicas", "1".to_owned()),
            ("gpu.memory", self.memory_mib.to_string()),
            ("gpu.family", self.family.to_owned()),
            ("gpu.compute.major", self.compute.0.to_string()),
            ("gpu.compute.minor", self.compute.1.to_string()),
            ("gpu.machine", self.machine.to_owned()),
            ("gpu.mode", "compute".to_owned()),
            ("gpu.sharing-strategy", "none".to_owned()),
            ("mig.capable", self.mig.to_string()),
            ("mig.strategy", "single".to_owned()),
            ("mps.capable", "false".to_owned()),
            ("vgpu.present", "false".to_owned()),
            ("cuda.driver-version.full", "570.86.15".to_owned()),
            ("cuda.driver-version.major", "570".to_owned()),
            ("cuda.driver-version.minor", "86".to_owned()),
            ("cuda.driver-version.revision", "15".to_owned()),
            ("cuda.driver.major", "570".to_owned()),
            ("cuda.driver.minor", "86".to_owned()),
            ("cuda.driver.rev", "15".to_owned()),
            ("cuda.runtime-version.full", "12.8".to_owned()),
            ("cuda.runtime-version.major", "12".to_owned()),
            ("cuda.runtime-version.minor", "8".to_owned()),
            ("cuda.runtime.major", "12".to_owned()),
            ("cuda.runtime.minor", "8".to_owned()),
            ("gfd.timestamp", "1764547200".to_owned()),
        ]
        .into_iter()
        .map(|(key, value)| (format!("nvidia.com/{key}"), value))
        .collect()
    }
}
