//! What is asked for, without who asks: types of work, and how often each occurs.

use std::collections::BTreeMap;

use crate::model::demand::{DeviceChoice, GpuDemand, Share, Topology};
use crate::model::request::Request;

/// What a request asks for, as far as placing it goes. Equal ones are one type of work.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct WorkType {
    /// What GPUs; a count of zero is work of CPU and memory alone, which no request is.
    pub gpus: GpuDemand,
    /// How they lie together.
    pub topology: Topology,
}

impl WorkType {
    /// What `request` asks for.
    #[must_use]
    pub fn of(request: &Request) -> Self {
        Self { gpus: request.spec.gpus.clone(), topology: request.spec.topology }
    }

    /// Work of CPU (in thousandths of a core) and main memory (in MiB) alone.
    #[must_use]
    pub fn without_gpus(cpu_milli: u64, memory_mib: u64) -> Self {
        let gpus = GpuDemand {
            devices: DeviceChoice::Selector(String::new()),
            share: Share::Whole,
            count: 0,
            cpu_milli_per_gpu: cpu_milli,
            memory_mib_per_gpu: memory_mib,
        };
        Self { gpus, topology: Topology::default() }
    }
}

/// Requests that the state holds, ended ones that are kept among them, by type: what work is like lately.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WorkMix {
    types: BTreeMap<WorkType, u64>,
    all: u64,
}

impl WorkMix {
    /// Counts `work` once more, or `times`.
    pub fn add(&mut self, work: WorkType, times: u64) {
        let count = self.types.entry(work).or_default();
        *count = count.saturating_add(times);
        self.all = self.all.saturating_add(times);
    }

    /// Counts `work` once less.
    pub(crate) fn remove(&mut self, work: &WorkType) {
        if let Some(count) = self.types.get_mut(work) {
            *count = count.saturating_sub(1);
            self.all = self.all.saturating_sub(1);
            if *count == 0 {
                self.types.remove(work);
            }
        }
    }

    /// Counts all work half as often; what came once is forgotten.
    pub(crate) fn halve(&mut self) {
        self.types.retain(|_, count| {
            *count /= 2;
            *count > 0
        });
        self.all = self.types.values().fold(0, |all, count| all.saturating_add(*count));
    }

    /// Types and how often each occurs, in a fixed order.
    pub fn types(&self) -> impl Iterator<Item = (&WorkType, u64)> {
        self.types.iter().map(|(work, count)| (work, *count))
    }

    /// How much work is counted in all.
    #[must_use]
    pub fn all(&self) -> u64 {
        self.all
    }
}
