//! GPUs of a host without Kubernetes, as nvidia-smi lists them.

use std::path::Path;

use comity_runtime::checks::{Check, CheckList, Outcome};

use super::capacity::Capacity;
use crate::host::found_gpus::{self, FoundGpus};

const GPU_CHECK: &str = "gpus";

/// The check of the GPUs that were found on a host with this inventory file.
pub fn check_found_gpus(gpus: &FoundGpus, inventory: &Path) -> Check {
    let inventory = inventory.display();
    match gpus {
        FoundGpus::Listed(gpus) if gpus.is_empty() => Check::ok(
            GPU_CHECK,
            format!(
                "no GPU found: this cluster can borrow; to lend, write {inventory} (`comity-agent sample-inventory`)"
            ),
        ),
        FoundGpus::Listed(gpus) => {
            let partitioned = gpus.iter().filter(|gpu| gpu.is_mig).count();
            let names: Vec<&str> = gpus.iter().map(|gpu| gpu.product.as_str()).collect();
            let detail = format!("{} found by nvidia-smi: {}", gpus.len(), names.join(", "));
            if partitioned == 0 {
                return Check::ok(GPU_CHECK, detail);
            }
            let remedy = format!("describe the partitioned GPUs in {inventory} (docs/mig.md)");
            Check::warning(GPU_CHECK, format!("{detail}; partitioned, and not offered: {partitioned}"), remedy)
        }
        FoundGpus::Unlisted { on_pci: 0, problem } => Check::failed(
            GPU_CHECK,
            format!("{problem}; whether this host has GPUs is unknown"),
            "make nvidia-smi work, and repeat; on a host without GPUs, take it out of PATH".to_owned(),
        ),
        FoundGpus::Unlisted { on_pci, problem } => Check::warning(
            GPU_CHECK,
            format!("{on_pci} NVIDIA GPUs on the PCI bus are not offered: {problem}"),
            format!(
                "make nvidia-smi work (NVIDIA's driver), remove {inventory} and agent.yaml, and repeat; or write \
                 {inventory} by hand"
            ),
        ),
    }
}

/// Warns if the inventory has no GPU, and the host has some or nvidia-smi cannot tell.
pub(super) async fn check(inventory: &Path, capacity: Option<Capacity>, list: &mut CheckList) {
    if !matches!(capacity, Some(Capacity { devices: 0, .. })) {
        return;
    }
    let gpus = found_gpus::find().await;
    list.extend(check_against_empty(&gpus, inventory));
}

/// The check of an inventory without GPUs; `None` if the host has none either.
fn check_against_empty(gpus: &FoundGpus, inventory: &Path) -> Option<Check> {
    let check = check_found_gpus(gpus, inventory);
    match gpus {
        FoundGpus::Listed(gpus) if gpus.is_empty() => None,
        FoundGpus::Listed(_) => {
            let detail = format!("{}; {} has none of them", check.detail, inventory.display());
            Some(Check::warning(GPU_CHECK, detail, "write them there (`comity-agent sample-inventory`)"))
        }
        // The agent runs with what the inventory has.
        FoundGpus::Unlisted { .. } => Some(Check { result: Outcome::Warning, ..check }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::found_gpus::NvidiaSmiError;

    #[test]
    fn a_failing_nvidia_smi_keeps_a_host_from_joining_unless_the_bus_shows_gpus() {
        let inventory = Path::new("/var/lib/comity-agent/inventory.yaml");
        let unlisted = |on_pci| FoundGpus::Unlisted { on_pci, problem: NvidiaSmiError::Missing };
        let outcomes = [unlisted(0), unlisted(2)].map(|gpus| check_found_gpus(&gpus, inventory));
        assert_eq!([outcomes[0].result, outcomes[1].result], [Outcome::Failed, Outcome::Warning]);
        for check in &outcomes {
            assert!(check.detail.contains("nvidia-smi is not installed"), "{check:?}");
            assert!(check.remedy.contains("make nvidia-smi work"), "{check:?}");
        }
        assert_eq!(check_found_gpus(&FoundGpus::Listed(Vec::new()), inventory).result, Outcome::Ok);
    }

    #[test]
    fn an_inventory_without_gpus_is_compared_with_the_host() {
        let inventory = Path::new("inventory.yaml");
        let outcome = |gpus: &FoundGpus| check_against_empty(gpus, inventory).map(|check| check.result);
        let hangs = FoundGpus::Unlisted { on_pci: 0, problem: NvidiaSmiError::TimedOut(std::time::Duration::ZERO) };
        assert_eq!(outcome(&hangs), Some(Outcome::Warning));
        assert_eq!(outcome(&FoundGpus::Listed(Vec::new())), None);
    }
}
