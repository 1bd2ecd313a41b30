//! Pools of devices, each of which a driver may publish in several slices.

use std::collections::{BTreeMap, BTreeSet};

use super::published_gpu::{PublishedGpu, SliceFacts, UnusableDevice};

/// Driver and pool.
type PoolKey = (String, String);

/// Complete pools. While a driver replaces the slices of a pool, only some of them exist: the pool stays as it was.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DevicePools {
    complete: BTreeMap<PoolKey, Vec<SliceFacts>>,
    incomplete: BTreeSet<PoolKey>,
}

impl DevicePools {
    /// Takes over all slices of the cluster. Only slices of a pool's newest generation count.
    pub fn update<'a>(&mut self, slices: impl IntoIterator<Item = &'a SliceFacts>) {
        let mut newest: BTreeMap<PoolKey, Vec<&SliceFacts>> = BTreeMap::new();
        for slice in slices {
            let pool = newest.entry((slice.driver.clone(), slice.pool.clone())).or_default();
            match pool.first().map(|first| first.generation) {
                Some(generation) if generation > slice.generation => continue,
                Some(generation) if generation < slice.generation => pool.clear(),
                _ => {}
            }
            pool.push(slice);
        }
        self.complete.retain(|key, _| newest.contains_key(key));
        self.incomplete.clear();
        for (key, slices) in newest {
            if slices.first().map(|slice| slice.slices) == i64::try_from(slices.len()).ok() {
                self.complete.insert(key, slices.into_iter().cloned().collect());
            } else {
                self.incomplete.insert(key);
            }
        }
    }

    /// Whether some pool is being replaced.
    pub fn are_changing(&self) -> bool {
        !self.incomplete.is_empty()
    }

    /// Devices by node.
    pub fn gpus(&self) -> BTreeMap<&str, Vec<&PublishedGpu>> {
        let mut nodes: BTreeMap<&str, Vec<&PublishedGpu>> = BTreeMap::new();
        for slice in self.complete.values().flatten() {
            if let Some(node) = &slice.node {
                nodes.entry(node).or_default().extend(&slice.gpus);
            }
        }
        nodes
    }

    /// Devices that cannot be offered, with their node.
    pub fn unusable(&self) -> impl Iterator<Item = (&str, &UnusableDevice)> {
        let slices = self.complete.values().flatten();
        slices.flat_map(|slice| slice.unusable.iter().map(|device| (slice.node.as_deref().unwrap_or_default(), device)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dynamic_resources::GpuClass;

    fn slice(generation: i64, slices: i64, names: &[&str]) -> SliceFacts {
        let gpu = |name: &&str| PublishedGpu {
            class: GpuClass::NvidiaGpu,
            pool: "n".to_owned(),
            name: (*name).to_owned(),
            uuid: format!("GPU-{name}"),
            product_name: String::new(),
            architecture: String::new(),
            memory_mib: 0,
            compute_capability: String::new(),
            driver_version: String::new(),
            mig_profile: None,
            numa_node: None,
            taints: Vec::new(),
        };
        SliceFacts {
            node: Some("n".to_owned()),
            driver: "gpu.nvidia.com".to_owned(),
            pool: "n".to_owned(),
            generation,
            slices,
            gpus: names.iter().map(gpu).collect(),
            unusable: Vec::new(),
        }
    }

    fn names(pools: &DevicePools) -> Vec<String> {
        pools.gpus().into_values().flatten().map(|gpu| gpu.name.clone()).collect()
    }

    #[test]
    fn a_pool_changes_only_when_its_new_generation_is_whole() {
        let mut pools = DevicePools::default();
        let (first, second) = (slice(1, 2, &["gpu-0"]), slice(1, 2, &["gpu-1"]));
        pools.update([&first]);
        assert!(names(&pools).is_empty() && pools.are_changing());
        pools.update([&first, &second]);
        assert_eq!(names(&pools), ["gpu-0", "gpu-1"]);
        let next = slice(2, 2, &["gpu-0", "gpu-2"]);
        pools.update([&next, &second]);
        assert_eq!(names(&pools), ["gpu-0", "gpu-1"], "half of the next generation");
        assert!(pools.are_changing());
        let last = slice(3, 1, &["gpu-3"]);
        pools.update([&second, &last, &next]);
        assert_eq!(names(&pools), ["gpu-3"]);
        assert!(!pools.are_changing());
        pools.update([]);
        assert!(names(&pools).is_empty());
    }
}
