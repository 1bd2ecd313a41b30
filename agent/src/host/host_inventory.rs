//! The inventory file of this host, as `comity-agent join` writes it.

use std::fmt::Write as _;

use super::found_gpus::{FoundGpu, FoundGpus};
use super::machine::{CpuAndMemory, Machine};

const INVENTORY_HEAD: &str = "\
# Inventory of this host, as comity-agent found it. `comity-agent sample-inventory` shows all fields. The agent reads
# changes within a second; `comity-agent doctor` checks them.
";

/// The text of an inventory.
#[must_use]
pub fn inventory_of(machine: &Machine, gpus: &FoundGpus) -> String {
    let CpuAndMemory { cpus, memory_mib } = machine.whole;
    let name = if machine.name.is_empty() { "host" } else { &machine.name };
    let mut text =
        format!("{INVENTORY_HEAD}nodes:\n  - name: {name:?}\n    cpu: \"{cpus}\"\n    memory: {memory_mib}Mi\n");
    let gpus = match gpus {
        FoundGpus::Listed(gpus) => &gpus[..],
        FoundGpus::Unlisted { .. } => &[],
    };
    let usable: Vec<&FoundGpu> = gpus.iter().filter(|gpu| !gpu.is_mig).collect();
    if !machine.numa.is_empty() {
        text.push_str("    numa:\n");
        for (node, has) in &machine.numa {
            writeln!(text, "      {node}: {{cpu: \"{}\", memory: {}Mi}}", has.cpus, has.memory_mib).expect("a string");
        }
    }
    for gpu in gpus.iter().filter(|gpu| gpu.is_mig) {
        writeln!(text, "    # {} {} is partitioned: add it with its instances (docs/mig.md)", gpu.product, gpu.uuid)
            .expect("a string");
    }
    if usable.is_empty() {
        text.push_str("    gpus: []\n");
        return text;
    }
    text.push_str("    gpus:\n");
    let mut rest = &usable[..];
    while let Some(first) = rest.first() {
        let alike = rest.iter().take_while(|gpu| is_alike(gpu, first)).count();
        group(&mut text, &rest[..alike], machine);
        rest = &rest[alike..];
    }
    text
}

fn is_alike(one: &FoundGpu, other: &FoundGpu) -> bool {
    let without_uuid = |gpu: &FoundGpu| FoundGpu { uuid: String::new(), ..gpu.clone() };
    without_uuid(one) == without_uuid(other)
}

fn group(text: &mut String, gpus: &[&FoundGpu], machine: &Machine) {
    let Some(first) = gpus.first() else { return };
    for gpu in gpus {
        writeln!(text, "      # {}", gpu.uuid).expect("a string");
    }
    let architecture = if first.architecture.is_empty() { "unknown" } else { first.architecture };
    let FoundGpu { product, memory_mib, compute_capability, driver_version, .. } = first;
    writeln!(
        text,
        "      - count: {}\n        product: {product:?}\n        memoryMiB: {memory_mib}\n        architecture: \
         {architecture}\n        computeCapability: {compute_capability:?}\n        driverVersion: {driver_version:?}",
        gpus.len()
    )
    .expect("a string");
    if let Some(numa) = first.numa.filter(|numa| machine.numa.contains_key(numa)) {
        writeln!(text, "        numa: {numa}").expect("a string");
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use std::collections::BTreeMap;
    use std::path::Path;

    use comity_agent_model::node_id::NodeSalt;
    use comity_fuzz::fuzz;

    use super::*;
    use crate::host::found_gpus;
    use crate::observe::LocalReserve;
    use crate::observe::file::parse;

    fn gpu(numa: u32, is_mig: bool) -> FoundGpu {
        FoundGpu {
            product: "NVIDIA-H100-80GB-HBM3".to_owned(),
            uuid: format!("GPU-{numa}"),
            memory_mib: 81_559,
            driver_version: "550.107.02".to_owned(),
            compute_capability: "9.0".to_owned(),
            architecture: "hopper",
            numa: Some(numa),
            is_mig,
        }
    }

    #[test]
    fn the_agent_reads_what_was_found() {
        let half = CpuAndMemory { cpus: 56, memory_mib: 1_000_000 };
        let machine = Machine {
            name: "hgx-1".to_owned(),
            whole: CpuAndMemory { cpus: 112, memory_mib: 2_000_000 },
            numa: BTreeMap::from([(0, half), (1, half)]),
        };
        let read = |gpus: Vec<FoundGpu>| {
            let text = inventory_of(&machine, &FoundGpus::Listed(gpus));
            let nodes = parse(Path::new("a"), &text, &NodeSalt::new([1; 32]), &LocalReserve::default());
            (nodes.unwrap().remove(0), text)
        };
        let (node, text) = read(vec![gpu(0, false), gpu(0, false), gpu(1, false), gpu(1, true)]);
        let numa: Vec<_> = node.devices.iter().map(|device| device.numa_node).collect();
        assert_eq!(numa, [Some(0), Some(0), Some(1)], "{text}");
        assert_eq!(
            (node.cpu_milli, node.memory_mib, node.devices[0].architecture.as_str()),
            (112_000, 2_000_000, "Hopper")
        );
        assert!(text.contains("is partitioned") && text.contains("# GPU-0"), "{text}");
        assert!(read(Vec::new()).0.devices.is_empty());
    }

    #[test]
    fn gpus_that_nvidia_smi_lists() {
        let machine = Machine {
            name: "hgx-1".to_owned(),
            whole: CpuAndMemory { cpus: 8, memory_mib: 64_000 },
            numa: BTreeMap::new(),
        };
        let valid = "NVIDIA H100 80GB HBM3, GPU-1, 81559, 550.107.02, 9.0, 00000000:9B:00.0, Disabled\n\
            NVIDIA A100-SXM4-40GB, GPU-2, 40960, 550.107.02, 8.0, 00000000:3B:00.0, Enabled\n";
        fuzz!("nvidia_smi", vec![valid.as_bytes().to_vec()], move |printed: &[u8]| {
            let gpus = found_gpus::parse(&String::from_utf8_lossy(printed), Path::new("/nonexistent"));
            let (found, usable) = (gpus.len(), gpus.iter().filter(|gpu| !gpu.is_mig).count());
            let text = inventory_of(&machine, &FoundGpus::Listed(gpus));
            assert!(text.chars().all(|letter| letter == '\n' || !letter.is_control()), "{text:?}");
            let nodes = parse(Path::new("a"), &text, &NodeSalt::new([1; 32]), &LocalReserve::default());
            match nodes.as_deref() {
                Ok([node]) => assert_eq!(node.devices.len(), usable, "{text}"),
                Ok(nodes) => panic!("{} nodes in {text}", nodes.len()),
                Err(error) => assert!(!error.to_string().is_empty()),
            }
            found > 0 && nodes.is_ok()
        });
    }
}
