//! CPUs, memory and NUMA nodes of this host, from /proc and /sys.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

/// KiB in a MiB.
const KIB_IN_MIB: u64 = 1_024;

/// CPUs and memory, of the host or of a NUMA node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CpuAndMemory {
    /// CPUs.
    pub cpus: u64,
    /// Memory.
    pub memory_mib: u64,
}

/// This host.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Machine {
    /// Host name.
    pub name: String,
    /// The whole host.
    pub whole: CpuAndMemory,
    /// Its NUMA nodes; empty if there is only one.
    pub numa: BTreeMap<u32, CpuAndMemory>,
}

impl Machine {
    /// Reads the facts below a root directory, "/" for this host. What cannot be read is left empty.
    #[must_use]
    pub fn read(root: &Path) -> Self {
        let text = |path: &str| fs::read_to_string(root.join(path)).unwrap_or_default();
        let name = text("proc/sys/kernel/hostname").trim().to_owned();
        let cpus = text("proc/cpuinfo").lines().filter(|line| line.starts_with("processor")).count();
        let mut whole = CpuAndMemory {
            cpus: u64::try_from(cpus).unwrap_or_default(),
            memory_mib: total_memory_mib(&text("proc/meminfo")),
        };
        let mut numa = numa_nodes(root);
        if numa.len() < 2 || numa.values().any(|has| has.cpus == 0 || has.memory_mib == 0) {
            numa.clear();
        }
        // The sums of the NUMA nodes must not exceed the host.
        whole.cpus = whole.cpus.max(numa.values().map(|has| has.cpus).sum());
        whole.memory_mib = whole.memory_mib.max(numa.values().map(|has| has.memory_mib).sum());
        Self { name, whole, numa }
    }
}

fn numa_nodes(root: &Path) -> BTreeMap<u32, CpuAndMemory> {
    let entries = fs::read_dir(root.join("sys/devices/system/node")).into_iter().flatten().flatten();
    let nodes = entries.filter_map(|entry| {
        let number = entry.file_name().to_str()?.strip_prefix("node")?.parse().ok()?;
        let text = |name: &str| fs::read_to_string(entry.path().join(name)).unwrap_or_default();
        let has = CpuAndMemory { cpus: cpus_in(&text("cpulist")), memory_mib: total_memory_mib(&text("meminfo")) };
        Some((number, has))
    });
    nodes.collect()
}

/// Number of CPUs in a list such as "0-3,8-11".
fn cpus_in(list: &str) -> u64 {
    let ranges = list.trim().split(',').filter(|range| !range.is_empty());
    let sizes = ranges.filter_map(|range| {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let (first, last) = (first.parse::<u64>().ok()?, last.parse::<u64>().ok()?);
        Some(last.checked_sub(first)? + 1)
    });
    sizes.sum()
}

/// "MemTotal: 131072 kB", in /proc/meminfo or after "Node 0" in that of a NUMA node.
fn total_memory_mib(text: &str) -> u64 {
    let kib =
        text.lines().find_map(|line| line.split_once("MemTotal:")?.1.trim().strip_suffix("kB")?.trim().parse().ok());
    kib.map_or(0, |kib: u64| kib / KIB_IN_MIB)
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    #[test]
    fn a_host_with_two_sockets_is_read() {
        let root = tempfile::tempdir().unwrap();
        let write = |path: &str, text: &str| {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        write("proc/sys/kernel/hostname", "hgx-1\n");
        write("proc/cpuinfo", &"processor\t: 0\nmodel name\t: x\n\n".repeat(8));
        write("proc/meminfo", "MemTotal:       16777216 kB\nMemFree: 1 kB\n");
        for (node, cpus) in [(0, "0-1,4-5\n"), (1, "2-3,6,7\n")] {
            write(&format!("sys/devices/system/node/node{node}/cpulist"), cpus);
            write(
                &format!("sys/devices/system/node/node{node}/meminfo"),
                &format!("Node {node} MemTotal:        8388608 kB\n"),
            );
        }
        write("sys/devices/system/node/possible", "0-1\n");
        let half = CpuAndMemory { cpus: 4, memory_mib: 8_192 };
        let expected = Machine {
            name: "hgx-1".to_owned(),
            whole: CpuAndMemory { cpus: 8, memory_mib: 16_384 },
            numa: BTreeMap::from([(0, half), (1, half)]),
        };
        assert_eq!(Machine::read(root.path()), expected);
        assert_eq!(Machine::read(Path::new("/nonexistent")), Machine::default());
    }
}
