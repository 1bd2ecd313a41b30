//! The limits of one share, as they are written on a namespace.

use std::collections::{BTreeMap, BTreeSet};

use super::check_uuid;

/// Annotations of a namespace. Only those who may write namespaces can change them.
const SHARE_MEMORY: &str = "comity.dev/hami-gpumem";
const SHARE_CORES: &str = "comity.dev/hami-gpucores";
const SHARE_DEVICES: &str = "comity.dev/hami-devices";

/// Limits that containers in a namespace keep for each `nvidia.com/gpu`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HamiShare {
    /// Device memory in MiB.
    pub memory_mib: u64,
    /// Compute in percent of a device.
    pub cores: u32,
    /// UUIDs of the devices on which the shares are.
    pub devices: BTreeSet<String>,
}

impl HamiShare {
    /// The annotations of the namespace.
    #[must_use]
    pub fn annotations(&self) -> BTreeMap<String, String> {
        [
            (SHARE_MEMORY, self.memory_mib.to_string()),
            (SHARE_CORES, self.cores.to_string()),
            (SHARE_DEVICES, self.device_list()),
        ]
        .into_iter()
        .map(|(key, value)| (key.to_owned(), value))
        .collect()
    }

    /// Whether a namespace has any of the annotations, valid or not.
    #[must_use]
    pub fn is_stated(annotations: &BTreeMap<String, String>) -> bool {
        [SHARE_MEMORY, SHARE_CORES, SHARE_DEVICES].iter().any(|key| annotations.contains_key(*key))
    }

    /// Reads the annotations of a namespace; `None` if it has none of them, or none that are valid.
    #[must_use]
    pub fn of_namespace(annotations: &BTreeMap<String, String>) -> Option<Self> {
        let devices: BTreeSet<String> = annotations.get(SHARE_DEVICES)?.split(',').map(str::to_owned).collect();
        let valid = devices.iter().all(|uuid| check_uuid(uuid).is_ok());
        valid.then_some(Self {
            memory_mib: annotations.get(SHARE_MEMORY)?.parse().ok()?,
            cores: annotations.get(SHARE_CORES)?.parse().ok()?,
            devices,
        })
    }

    /// The devices as HAMi reads them from a pod's annotation.
    pub(super) fn device_list(&self) -> String {
        self.devices.iter().map(String::as_str).collect::<Vec<_>>().join(",")
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    #[test]
    fn a_share_is_read_back_from_its_namespace() {
        let devices = BTreeSet::from(["GPU-b".to_owned(), "GPU-a".to_owned()]);
        let share = HamiShare { memory_mib: 4_077, cores: 5, devices };
        let mut annotations = share.annotations();
        assert_eq!(annotations["comity.dev/hami-devices"], "GPU-a,GPU-b");
        assert_eq!(HamiShare::of_namespace(&annotations), Some(share));
        annotations.insert(SHARE_DEVICES.to_owned(), String::new());
        assert_eq!(HamiShare::of_namespace(&annotations), None);
        annotations.remove(SHARE_CORES).unwrap();
        assert_eq!(HamiShare::of_namespace(&annotations), None);
    }
}
