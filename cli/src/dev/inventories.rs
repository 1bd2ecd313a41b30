//! The member clusters and their simulated machines.

/// The member clusters: origin and donor of the demonstration first.
pub(super) const NAMES: [&str; 4] = [ORIGIN, DONOR, "physics-farm", "startup-pc"];
/// Cluster that borrows.
pub(super) const ORIGIN: &str = "polytech-campus";
/// Cluster that lends to it.
pub(super) const DONOR: &str = "ncc-main";

/// The inventory file of a cluster without Kubernetes, as its agent reads it; `None` for an unknown cluster.
pub(super) fn inventory(cluster: &str) -> Option<&'static str> {
    Some(match cluster {
        ORIGIN => {
            "nodes:
- name: lab-1
  cpu: '32'
  memory: 128Gi
  localUse: {gpus: 2}
  gpus:
  - {count: 4, product: NVIDIA-RTX-4000-Ada, memoryMiB: 20475,
     architecture: ada-lovelace, computeCapability: '8.9', driverVersion: 550.127.05}
"
        }
        DONOR => {
            "nodes:
- name: h100-1
  cpu: '192'
  memory: 2048Gi
  gpus:
  - {count: 8, product: NVIDIA-H100-80GB-HBM3, memoryMiB: 81559,
     architecture: hopper, computeCapability: '9.0', driverVersion: 550.127.05}
- name: h100-2
  cpu: '192'
  memory: 2048Gi
  gpus:
  - {count: 8, product: NVIDIA-H100-80GB-HBM3, memoryMiB: 81559,
     architecture: hopper, computeCapability: '9.0', driverVersion: 550.127.05}
- name: a100-1
  cpu: '128'
  memory: 1024Gi
  localUse: {gpus: 2, cpu: '32', memory: 256Gi}
  gpus:
  - {count: 8, product: NVIDIA-A100-SXM4-40GB, memoryMiB: 40960,
     architecture: ampere, computeCapability: '8.0', driverVersion: 550.127.05}
"
        }
        "physics-farm" => {
            "nodes:
- name: farm-1
  cpu: '64'
  memory: 512Gi
  gpus:
  - {count: 8, product: NVIDIA-L40S, memoryMiB: 46068,
     architecture: ada-lovelace, computeCapability: '8.9', driverVersion: 550.127.05}
- name: farm-2
  cpu: '64'
  memory: 512Gi
  gpus:
  - {count: 8, product: NVIDIA-L40S, memoryMiB: 46068,
     architecture: ada-lovelace, computeCapability: '8.9', driverVersion: 550.127.05}
"
        }
        "startup-pc" => {
            "nodes:
- name: pc
  cpu: '16'
  memory: 64Gi
  gpus:
  - {count: 1, product: NVIDIA-GeForce-RTX-4090, memoryMiB: 24564,
     architecture: ada-lovelace, computeCapability: '8.9', driverVersion: 560.35.03}
"
        }
        _ => return None,
    })
}
