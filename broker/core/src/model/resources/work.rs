//! The work mix: types of work, regardless of the tenant, and their frequencies.

use std::collections::BTreeMap;

use crate::model::demand::{DeviceChoice, GpuDemand, Isolation, Share, Topology};
use crate::model::request::Request;

/// The part of a request's demand that affects its placement. Requests with equal parts are one type of work.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct WorkType {
    /// GPU demand. A count of zero means CPU and memory only, which no request is.
    pub gpus: GpuDemand,
    /// Topology.
    pub topology: Topology,
}

impl WorkType {
    /// The type of work of `request`.
    #[must_use]
    pub fn of(request: &Request) -> Self {
        // The type is set later, and the sample subtracts what it added.
        let gpus = GpuDemand { gpu_type: None, ..request.spec.gpus.clone() };
        Self { gpus, topology: request.spec.topology }
    }

    /// Work that needs only CPU (in thousandths of a core) and main memory (in MiB).
    #[must_use]
    pub fn without_gpus(cpu_milli: u64, memory_mib: u64) -> Self {
        let gpus = GpuDemand {
            devices: DeviceChoice::Selector(String::new()),
            share: Share::Whole,
            count: 0,
            cpu_milli_per_gpu: cpu_milli,
            memory_mib_per_gpu: memory_mib,
            isolation: Isolation::None,
            gpu_type: None,
        };
        Self { gpus, topology: Topology::default() }
    }
}

/// The frequencies of work types among all requests in the state, including ended ones: an estimate of recent work.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WorkMix {
    types: BTreeMap<WorkType, u64>,
    all: u64,
}

impl WorkMix {
    /// Adds `times` occurrences of `work`.
    pub fn add(&mut self, work: WorkType, times: u64) {
        let count = self.types.entry(work).or_default();
        *count = count.saturating_add(times);
        self.all = self.all.saturating_add(times);
    }

    /// Subtracts one occurrence of `work`.
    pub(crate) fn remove(&mut self, work: &WorkType) {
        if let Some(count) = self.types.get_mut(work) {
            *count = count.saturating_sub(1);
            self.all = self.all.saturating_sub(1);
            if *count == 0 {
                self.types.remove(work);
            }
        }
    }

    /// Halves all counts; drops work that occurred once.
    pub(crate) fn halve(&mut self) {
        self.types.retain(|_, count| {
            *count /= 2;
            *count > 0
        });
        self.all = self.types.values().fold(0, |all, count| all.saturating_add(*count));
    }

    /// Types and their counts, in a fixed order.
    pub fn types(&self) -> impl Iterator<Item = (&WorkType, u64)> {
        self.types.iter().map(|(work, count)| (work, *count))
    }

    /// Total count.
    #[must_use]
    pub fn all(&self) -> u64 {
        self.all
    }
}
