//! Idle, healthy nodes and devices, as agents describe them.

use comity_core::inventory::{Device, DeviceWiring, Enforcement, Node, NodeWiring, Sharing};

/// A healthy, idle device.
pub(crate) fn device(product_name: &str, memory_mib: u64, sharing: Sharing) -> Device {
    Device {
        product_name: product_name.to_owned(),
        architecture: String::new(),
        memory_mib,
        cuda_compute_capability: "8.0".to_owned(),
        driver_version: "550.107.02".to_owned(),
        sharing,
        healthy: true,
        fault: None,
        local_use_milli: 0,
        resource_name: "nvidia.com/gpu".to_owned(),
        wiring: DeviceWiring::default(),
    }
}

/// A ready, idle node.
pub(crate) fn node(cpu_milli: u64, memory_mib: u64, devices: Vec<Device>) -> Node {
    Node {
        cpu_milli,
        memory_mib,
        local_cpu_milli: 0,
        local_memory_mib: 0,
        devices: devices.into(),
        schedulable: true,
        ready: true,
        wiring: NodeWiring::default(),
        enforces: Enforcement::default(),
    }
}

/// A node with `count` exclusive H100s.
pub(crate) fn h100s(count: usize) -> Node {
    let h100 = Device {
        architecture: "Hopper".to_owned(),
        cuda_compute_capability: "9.0".to_owned(),
        ..device("NVIDIA-H100-80GB-HBM3", 81_559, Sharing::Exclusive)
    };
    node(128_000, 1_000_000, vec![h100; count])
}
