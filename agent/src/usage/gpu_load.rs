//! The load of GPUs, by the pod that uses them.

use std::collections::BTreeMap;

use crate::exporters::metrics_text::samples;

/// Per cent of time in which a kernel ran on a GPU. Absent for MIG instances.
const GPU_UTIL: &str = "DCGM_FI_DEV_GPU_UTIL";
/// Ratio of time in which the compute engine of a GPU or of a MIG instance was active.
const ENGINE_ACTIVE: &str = "DCGM_FI_PROF_GR_ENGINE_ACTIVE";
/// The metrics that tell the load.
pub(super) const LOAD_METRICS: [&str; 2] = [GPU_UTIL, ENGINE_ACTIVE];
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
        for sample in samples(text, &LOAD_METRICS) {
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
    const EXPORTED: &str = include_str!("gpu_load/dcgm_exporter.prom");

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
