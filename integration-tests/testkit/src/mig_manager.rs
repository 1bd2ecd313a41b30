//! A stand-in for NVIDIA's MIG manager, which the Go module proxy does not serve: it reads mig-parted's configurations
//! as the manager does, and tells which instances the devices then have. It sets nothing: tests write them to a node,
//! or to the GPUs of a real node ([`GpuBox::configured`](crate::GpuBox::configured)).
//!
//! Not imitated: device filters, the time that a change takes, resets and reboots.

use std::collections::{BTreeMap, BTreeSet};

use serde::Deserialize;

#[derive(Deserialize)]
struct ConfigFile {
    #[serde(rename = "mig-configs")]
    configs: BTreeMap<String, Vec<DeviceConfig>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "kebab-case")]
struct DeviceConfig {
    devices: Chosen,
    mig_enabled: bool,
    #[serde(default)]
    mig_devices: BTreeMap<String, u32>,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Chosen {
    Some(Vec<usize>),
    All(String),
}

/// The instances of a node's devices: by profile, or none if MIG mode is off.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MigLayouts(pub Vec<Option<BTreeMap<String, u32>>>);

impl MigLayouts {
    /// The layouts of `gpus` devices under configuration `name` of a text.
    ///
    /// # Errors
    /// A sentence, as mig-parted would refuse it.
    pub fn read(text: &str, name: &str, gpus: usize) -> Result<Self, String> {
        let file: ConfigFile = serde_saphyr::from_str(text).map_err(|error| error.to_string())?;
        let config = file.configs.get(name).ok_or_else(|| format!("configuration {name} is not in the file"))?;
        let mut layouts = vec![None; gpus];
        for (device, layout) in layouts.iter_mut().enumerate() {
            for part in config {
                let is_meant = match &part.devices {
                    Chosen::Some(devices) => devices.contains(&device),
                    Chosen::All(all) => all == "all",
                };
                if is_meant {
                    *layout = part.mig_enabled.then(|| part.mig_devices.clone());
                }
            }
        }
        Ok(Self(layouts))
    }

    /// Profiles of the devices that mig-parted would clear on the way to `next`: it leaves equal ones alone.
    #[must_use]
    pub fn cleared(&self, next: &Self) -> BTreeSet<String> {
        let changed = self.0.iter().zip(&next.0).filter(|(now, next)| now != next);
        changed.flat_map(|(now, _)| now.iter().flat_map(|now| now.keys().cloned())).collect()
    }

    /// The resources of the device plugin with the mixed strategy.
    #[must_use]
    pub fn resources(&self) -> BTreeMap<String, u32> {
        let mut resources = BTreeMap::new();
        for layout in &self.0 {
            match layout {
                None => *resources.entry("nvidia.com/gpu".to_owned()).or_default() += 1,
                Some(counts) => {
                    for (profile, count) in counts {
                        *resources.entry(format!("nvidia.com/mig-{profile}")).or_default() += count;
                    }
                }
            }
        }
        resources
    }

    /// The profiles of each device's instances, in an order in which the driver has room for all: mig-parted tries
    /// orders until one works.
    #[must_use]
    pub(crate) fn instances(&self) -> Vec<Option<Vec<String>>> {
        let of_device = |counts: &BTreeMap<String, u32>| {
            let mut profiles: Vec<String> = Vec::new();
            for (profile, count) in counts {
                profiles.extend((0..*count).map(|_| profile.clone()));
            }
            // 4g and 7g start at slot 0 only. A 3g goes behind all others, which need the slots before it.
            profiles.sort_by_key(|profile| (profile.starts_with("3g"), std::cmp::Reverse(size(profile))));
            profiles
        };
        self.0.iter().map(|counts| counts.as_ref().map(of_device)).collect()
    }
}

/// Compute slices and memory of a profile, such as `1g.10gb`.
fn size(profile: &str) -> (Option<u32>, Option<u32>) {
    let (slices, memory) = profile.split_once("g.").unwrap_or_default();
    let memory = memory.split("gb").next().unwrap_or_default();
    (slices.parse().ok(), memory.parse().ok())
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    const TEXT: &str = r#"version: v1
mig-configs:
  off: [{devices: all, mig-enabled: false}]
  some:
    - devices: [0]
      mig-enabled: true
      mig-devices: {"1g.10gb": 2, "3g.40gb": 1}
    - devices: [1]
      mig-enabled: false
"#;

    #[test]
    fn a_configuration_becomes_resources_and_instances() {
        let off = MigLayouts::read(TEXT, "off", 2).unwrap();
        let some = MigLayouts::read(TEXT, "some", 2).unwrap();
        assert_eq!(off.instances(), [None, None]);
        let ordered = ["1g.10gb", "1g.10gb", "3g.40gb"].map(str::to_owned).to_vec();
        assert_eq!(some.instances(), [Some(ordered), None]);
        let counts = ["1g.10gb", "1g.20gb", "4g.40gb"].map(|profile| (profile.to_owned(), 1)).into();
        let ordered = ["4g.40gb", "1g.20gb", "1g.10gb"].map(str::to_owned).to_vec();
        assert_eq!(MigLayouts(vec![Some(counts)]).instances(), [Some(ordered)]);
        let resources = [("nvidia.com/gpu", 1), ("nvidia.com/mig-1g.10gb", 2), ("nvidia.com/mig-3g.40gb", 1)];
        assert_eq!(some.resources(), resources.map(|(name, count)| (name.to_owned(), count)).into());
        assert_eq!(some.cleared(&off), BTreeSet::from(["1g.10gb".to_owned(), "3g.40gb".to_owned()]));
        assert!(some.cleared(&some).is_empty() && MigLayouts::read(TEXT, "none", 2).is_err());
    }
}
