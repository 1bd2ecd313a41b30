//! Federations of hosts without Kubernetes: real brokers, agents, mTLS, handshakes and tunnels.

use std::path::{Path, PathBuf};

use comity_scenarios::{AgentSpec, Federation, FederationConfig, InventorySource};

use crate::OrLogs as _;

/// An inventory of `gpus` devices of a class of the example policy.
pub(crate) fn inventory(dir: &Path, name: &str, gpus: u32, class: &str) -> PathBuf {
    let (product, memory, architecture, capability) = match class {
        "frontier" => ("NVIDIA-H100-80GB-HBM3", 81_559, "Hopper", "9.0"),
        _ => ("NVIDIA-L40S", 46_068, "Ada Lovelace", "8.9"),
    };
    let nodes = match gpus {
        0 => "nodes: []\n".to_owned(),
        _ => format!(
            "nodes:\n  - name: {name}-1\n    cpu: 64\n    memory: 512Gi\n    gpus:\n      \
             - count: {gpus}\n        product: {product}\n        memoryMiB: {memory}\n        \
             architecture: {architecture}\n        computeCapability: \"{capability}\"\n        driverVersion: 550.107.02\n"
        ),
    };
    let path = dir.join(format!("{name}.inventory.yaml"));
    std::fs::write(&path, nodes).unwrap();
    path
}

/// An origin without GPUs, `polytech-campus`, and a donor of sixteen, `ncc-main`.
pub(crate) async fn origin_and_donor() -> Federation {
    origin_and_donor_with(FederationConfig::with_example_policy()).await
}

/// As [`origin_and_donor`], with another configuration.
pub(crate) async fn origin_and_donor_with(config: FederationConfig) -> Federation {
    let mut federation = Federation::start(config).await.unwrap();
    for (cluster, gpus) in [("polytech-campus", 0), ("ncc-main", 16)] {
        let file = inventory(federation.dir(), cluster, gpus, "frontier");
        federation.join(AgentSpec::new(cluster, InventorySource::File(file))).await.or_logs(&federation);
    }
    federation.all_connected().await.or_logs(&federation);
    federation
}
