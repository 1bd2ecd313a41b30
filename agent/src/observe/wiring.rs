//! NUMA, NVLink and RDMA of a node from its owner's annotation: no label has them.

use std::collections::BTreeMap;

use comity_agent_model::node_id::NodeSalt;
use comity_policy::quantity;
use comity_proto::v1::{Device, NumaAmounts, RdmaBandwidth};
use serde::Deserialize;

use super::MIB;

/// Annotation of a node; YAML or JSON.
pub(crate) const WIRING_ANNOTATION: &str = "comity.dev/wiring";
/// Largest annotation that is read: all of 128 devices, each on its own line.
const MAX_WIRING_BYTES: usize = 16 << 10;
/// Bounds that an offer keeps.
pub(super) const MAX_NUMA_NODES: usize = 32;
pub(super) const MAX_NETWORKS: usize = 16;
pub(crate) const MAX_GBITS: u32 = 1_000_000;
const MAX_WIRING_NAME_BYTES: usize = 63;

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase", default)]
struct WrittenWiring {
    numa: BTreeMap<u32, WrittenNuma>,
    rdma: BTreeMap<String, u32>,
    gpus: Vec<WrittenGpus>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct WrittenNuma {
    cpu: String,
    memory: String,
}

/// A run of consecutive GPUs.
#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct WrittenGpus {
    count: usize,
    #[serde(default)]
    numa: Option<u32>,
    #[serde(default)]
    nvlink: Option<String>,
}

/// A node's NUMA nodes and networks.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct Wiring {
    pub(crate) numa: Vec<NumaAmounts>,
    pub(crate) rdma: Vec<RdmaBandwidth>,
}

/// Reads the annotation of a node with `cpu_milli` and `memory_mib`, and sets its devices' NUMA nodes and cliques. On
/// error, one sentence, no device is changed.
pub(crate) fn read(
    text: &str,
    devices: &mut [Device],
    cpu_milli: u64,
    memory_mib: u64,
    salt: &NodeSalt,
) -> Result<Wiring, String> {
    if text.len() > MAX_WIRING_BYTES {
        return Err(format!("it has {} bytes; write at most {MAX_WIRING_BYTES}", text.len()));
    }
    let written: WrittenWiring =
        serde_saphyr::from_str(text).map_err(|error| error.without_snippet().to_string().replace('\n', " "))?;
    let numa = numa(&written, cpu_milli, memory_mib)?;
    let rdma = rdma(&written)?;
    let mut places = Vec::new();
    for gpus in &written.gpus {
        if let Some(number) = gpus.numa.filter(|number| !written.numa.contains_key(number)) {
            return Err(format!("gpus name NUMA node {number}, which numa does not list"));
        }
        let clique = gpus.nvlink.as_deref().unwrap_or_default();
        if gpus.nvlink.is_some() {
            check_name("nvlink", clique)?;
        }
        if gpus.count > devices.len() - places.len() {
            return Err(format!("gpus are more than the {} that the node has", devices.len()));
        }
        places.extend(std::iter::repeat_n((gpus.numa, clique), gpus.count));
    }
    if !written.gpus.is_empty() && places.len() < devices.len() {
        return Err(format!("gpus are {}, and the node has {}; say it of each", places.len(), devices.len()));
    }
    for (device, (numa, clique)) in devices.iter_mut().zip(places) {
        device.numa_node = numa;
        if !clique.is_empty() {
            device.nvlink_clique = salt.clique_id(clique);
        }
    }
    Ok(Wiring { numa, rdma })
}

fn numa(written: &WrittenWiring, cpu_milli: u64, memory_mib: u64) -> Result<Vec<NumaAmounts>, String> {
    if written.numa.len() > MAX_NUMA_NODES {
        return Err(format!("numa lists {}; a node has at most {MAX_NUMA_NODES}", written.numa.len()));
    }
    let amount = |text: &str, read: fn(&str) -> Option<u64>| {
        read(text).ok_or_else(|| format!("numa: {text:?} is not an amount; write \"56\" or 900Gi"))
    };
    let mut numa = Vec::with_capacity(written.numa.len());
    let (mut all_cpu, mut all_memory) = (0_u64, 0_u64);
    for (&numa_node, has) in &written.numa {
        let cpu_milli = amount(&has.cpu, quantity::milli_floor)?;
        let memory_mib = amount(&has.memory, quantity::ones_floor)? / MIB;
        all_cpu = all_cpu.saturating_add(cpu_milli);
        all_memory = all_memory.saturating_add(memory_mib);
        numa.push(NumaAmounts { numa_node, cpu_milli, memory_mib });
    }
    if all_cpu > cpu_milli || all_memory > memory_mib {
        return Err(format!(
            "numa has {all_cpu} thousandths of a core and {all_memory} MiB in all, and pods can have {cpu_milli} and \
             {memory_mib}"
        ));
    }
    Ok(numa)
}

fn rdma(written: &WrittenWiring) -> Result<Vec<RdmaBandwidth>, String> {
    if written.rdma.len() > MAX_NETWORKS {
        return Err(format!("rdma lists {}; a node has at most {MAX_NETWORKS} networks", written.rdma.len()));
    }
    let mut rdma = Vec::with_capacity(written.rdma.len());
    for (network, &gbits) in &written.rdma {
        check_name("rdma", network)?;
        if !(1..=MAX_GBITS).contains(&gbits) {
            return Err(format!("rdma: {network} has {gbits} Gbit/s; write 1 to {MAX_GBITS}"));
        }
        rdma.push(RdmaBandwidth { network: network.clone(), gbits, ..RdmaBandwidth::default() });
    }
    Ok(rdma)
}

/// Checks a name of a clique or network: it must be printable.
pub(crate) fn check_name(field: &str, name: &str) -> Result<(), String> {
    if !name.is_empty() && name.len() <= MAX_WIRING_NAME_BYTES && name.chars().all(|c| c.is_ascii_graphic()) {
        return Ok(());
    }
    Err(format!(
        "{field}: {name:?} is not a name; write 1 to {MAX_WIRING_NAME_BYTES} visible ASCII characters without spaces"
    ))
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;
    use crate::observe::TEST_SALT;

    const PAIRS: &str = "{numa: {0: {cpu: '32', memory: 400Gi}, 1: {cpu: '32', memory: 400Gi}}, rdma: {ib: 200},
        gpus: [{count: 2, numa: 0, nvlink: a}, {count: 2, numa: 1, nvlink: b}]}";

    fn of(text: &str) -> Result<(Wiring, Vec<Device>), String> {
        let mut devices = vec![Device::default(); 4];
        let wiring = read(text, &mut devices, 64_000, 1 << 20, &TEST_SALT)?;
        Ok((wiring, devices))
    }

    #[test]
    fn an_owner_says_how_a_node_is_wired() {
        let (wiring, devices) = of(PAIRS).unwrap();
        assert_eq!(wiring.numa[1], NumaAmounts { numa_node: 1, cpu_milli: 32_000, memory_mib: 400 << 10 });
        assert_eq!(wiring.rdma, [RdmaBandwidth { network: "ib".to_owned(), gbits: 200, ..RdmaBandwidth::default() }]);
        assert_eq!(devices.iter().map(|device| device.numa_node).collect::<Vec<_>>(), [0, 0, 1, 1].map(Some));
        let cliques: Vec<&str> = devices.iter().map(|device| device.nvlink_clique.as_str()).collect();
        assert!(cliques[0] == cliques[1] && cliques[1] != cliques[2] && cliques[2] == cliques[3]);
        assert!(!cliques.contains(&"a"), "names stay at home");
        assert_eq!(of("{}").unwrap(), (Wiring::default(), vec![Device::default(); 4]));
    }

    #[test]
    fn an_invalid_value_gives_one_sentence() {
        for (from, to, word) in [
            ("count: 2, numa: 1", "count: 3, numa: 1", "more than the 4"),
            ("count: 2, numa: 1", "count: 1, numa: 1", "gpus are 3, and the node has 4"),
            ("numa: 1, nvlink", "numa: 3, nvlink", "NUMA node 3"),
            ("0: {cpu: '32'", "0: {cpu: '33'", "65000 thousandths"),
            ("ib: 200", "ib: 0", "write 1 to 1000000"),
            ("nvlink: a", "nvlink: ''", "is not a name"),
            ("rdma", "dram", "dram"),
        ] {
            let error = of(&PAIRS.replacen(from, to, 1)).unwrap_err();
            assert!(error.contains(word) && !error.contains('\n'), "{error}");
        }
    }
}
