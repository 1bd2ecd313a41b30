//! The load of GPUs, by the pod that uses them.

use std::collections::BTreeMap;

use super::metrics_text::samples;

/// Per cent of time in which a kernel ran on a GPU. Absent for MIG instances.
const GPU_UTIL: &str = "DCGM_FI_DEV_GPU_UTIL";
/// Ratio of time in which the compute engine of a GPU or of a MIG instance was active.
const ENGINE_ACTIVE: &str = "DCGM_FI_PROF_GR_ENGINE_ACTIVE";
/// Pods of one round: as many as a large cluster runs on GPUs.
const MAX_PODS: usize = 100_000;

/// The load of one pod's GPUs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Load {
    /// No figure: no exporter names the pod.
    Unknown,
    /// All its GPUs are idle.
    Idle,
    /// One of its GPUs works.
    Busy,
}

/// The load of GPUs by pod, from one round of scraping.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct GpuLoad {
    /// Whether a pod's GPUs work, by namespace and name.
    pods: BTreeMap<(String, String), bool>,
}

impl GpuLoad {
    /// Adds the metrics of one exporter. Each GPU's lines name the pod that uses it.
    pub(super) fn add(&mut self, text: &str) {
        for sample in samples(text, &[GPU_UTIL, ENGINE_ACTIVE]) {
            let (namespace, pod) = (sample.label("namespace"), sample.label("pod"));
            if pod.is_empty() || sample.value.is_nan() {
                continue;
            }
            let key = (namespace.to_owned(), pod.to_owned());
            if self.pods.len() < MAX_PODS || self.pods.contains_key(&key) {
                *self.pods.entry(key).or_default() |= sample.value > 0.0;
            }
        }
    }

    pub(super) fn of(&self, namespace: &str, pod: &str) -> Load {
        match self.pods.get(&(namespace.to_owned(), pod.to_owned())) {
            None => Load::Unknown,
            Some(false) => Load::Idle,
            Some(true) => Load::Busy,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The form of dcgm-exporter 4 on a node with an idle GPU, a GPU that works, one without a pod, and two instances
    /// of a GPU with MIG, one of which works. Composed from published outputs; the exporter itself did not run here.
    const EXPORTED: &str = r#"# HELP DCGM_FI_DEV_SM_CLOCK SM clock frequency (in MHz).
# TYPE DCGM_FI_DEV_SM_CLOCK gauge
DCGM_FI_DEV_SM_CLOCK{gpu="0",UUID="GPU-1",pci_bus_id="00000000:07:00.0",device="nvidia0",modelName="NVIDIA A100-SXM4-80GB",Hostname="gpu-1",container="main",namespace="comity-lease-7",pod="idle"} 210
# HELP DCGM_FI_DEV_GPU_UTIL GPU utilization (in %).
# TYPE DCGM_FI_DEV_GPU_UTIL gauge
DCGM_FI_DEV_GPU_UTIL{gpu="0",UUID="GPU-1",pci_bus_id="00000000:07:00.0",device="nvidia0",modelName="NVIDIA A100-SXM4-80GB",Hostname="gpu-1",container="main",namespace="comity-lease-7",pod="idle"} 0
DCGM_FI_DEV_GPU_UTIL{gpu="1",UUID="GPU-2",pci_bus_id="00000000:0A:00.0",device="nvidia1",modelName="NVIDIA A100-SXM4-80GB",Hostname="gpu-1",container="main",namespace="comity-lease-7",pod="busy"} 100
DCGM_FI_DEV_GPU_UTIL{gpu="2",UUID="GPU-3",pci_bus_id="00000000:0B:00.0",device="nvidia2",modelName="NVIDIA A100-SXM4-80GB",Hostname="gpu-1",container="main",namespace="comity-lease-7",pod="busy"} 0
DCGM_FI_DEV_GPU_UTIL{gpu="3",UUID="GPU-4",pci_bus_id="00000000:0C:00.0",device="nvidia3",modelName="NVIDIA A100-SXM4-80GB",Hostname="gpu-1"} 0
# HELP DCGM_FI_PROF_GR_ENGINE_ACTIVE Ratio of time the graphics engine is active.
# TYPE DCGM_FI_PROF_GR_ENGINE_ACTIVE gauge
DCGM_FI_PROF_GR_ENGINE_ACTIVE{gpu="0",UUID="GPU-1",device="nvidia0",modelName="NVIDIA A100-SXM4-80GB",Hostname="gpu-1",container="main",namespace="comity-lease-7",pod="idle"} 0.000000
DCGM_FI_PROF_GR_ENGINE_ACTIVE{gpu="4",UUID="GPU-5",device="nvidia4",modelName="NVIDIA A100-SXM4-80GB",GPU_I_PROFILE="1g.10gb",GPU_I_ID="7",Hostname="gpu-1",container="main",namespace="team",pod="slice-a"} 0.000000
DCGM_FI_PROF_GR_ENGINE_ACTIVE{gpu="4",UUID="GPU-5",device="nvidia4",modelName="NVIDIA A100-SXM4-80GB",GPU_I_PROFILE="1g.10gb",GPU_I_ID="8",Hostname="gpu-1",container="main",namespace="team",pod="slice-b"} 0.012345
"#;

    #[test]
    fn a_pod_is_busy_if_one_of_its_gpus_is() {
        let mut load = GpuLoad::default();
        load.add(EXPORTED);
        for (namespace, pod, wanted) in [
            ("comity-lease-7", "idle", Load::Idle),
            ("comity-lease-7", "busy", Load::Busy),
            ("team", "slice-a", Load::Idle),
            ("team", "slice-b", Load::Busy),
            ("comity-lease-8", "idle", Load::Unknown),
            ("", "", Load::Unknown),
        ] {
            assert_eq!(load.of(namespace, pod), wanted, "{namespace}/{pod}");
        }
        assert_eq!(load.pods.len(), 4, "no entry for the GPU without a pod");
    }

    #[test]
    fn an_idle_gpu_of_another_node_does_not_hide_a_busy_one() {
        let mut load = GpuLoad::default();
        load.add(EXPORTED);
        load.add(&EXPORTED.replace("} 100", "} 0"));
        assert_eq!(load.of("comity-lease-7", "busy"), Load::Busy);
        let mut odd = GpuLoad::default();
        odd.add(&EXPORTED.replace("} 0\n", "} NaN\n").replace("} 0.000000", "} NaN"));
        assert_eq!(odd.of("comity-lease-7", "idle"), Load::Unknown);
    }
}
