//! The devices of a node. Equal devices share memory, because a large cluster has many devices of few kinds.

use std::cmp::Ordering;
use std::collections::BTreeSet;
use std::ops::{Index, IndexMut};
use std::sync::Arc;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::model::inventory::Device;

/// Devices by index. Copies share them until one side changes.
#[derive(Clone, Debug, Default)]
pub struct Devices(Arc<[Arc<Device>]>);

impl Devices {
    /// Number of devices.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether the node has no devices.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The device at `index`.
    #[must_use]
    pub fn get(&self, index: usize) -> Option<&Device> {
        self.0.get(index).map(AsRef::as_ref)
    }

    /// The device at index 0.
    #[must_use]
    pub fn first(&self) -> Option<&Device> {
        self.get(0)
    }

    /// Devices in index order.
    pub fn iter(&self) -> DeviceIter<'_> {
        self.0.iter().map(AsRef::as_ref)
    }

    /// Mutable access in index order. A changed device is no longer shared.
    pub fn iter_mut(&mut self) -> DeviceIterMut<'_> {
        Arc::make_mut(&mut self.0).iter_mut().map(Arc::make_mut)
    }

    /// The same devices, sharing memory with equal devices of `other`.
    #[must_use]
    pub fn shared_with(&self, other: &Self) -> Self {
        if self == other {
            return other.clone();
        }
        let held = |device: &Arc<Device>| other.0.iter().find(|held| *held == device).unwrap_or(device).clone();
        Self(self.0.iter().map(held).collect())
    }

    /// The shared pointers to the devices.
    pub(crate) fn held(&self) -> &[Arc<Device>] {
        &self.0
    }
}

/// Iterator over [`Devices`].
pub type DeviceIter<'a> = std::iter::Map<std::slice::Iter<'a, Arc<Device>>, fn(&'a Arc<Device>) -> &'a Device>;
/// Mutable iterator over [`Devices`].
pub type DeviceIterMut<'a> =
    std::iter::Map<std::slice::IterMut<'a, Arc<Device>>, fn(&'a mut Arc<Device>) -> &'a mut Device>;

impl PartialEq for Devices {
    fn eq(&self, other: &Self) -> bool {
        // The standard library compares the addresses of the inner pointers first.
        Arc::ptr_eq(&self.0, &other.0) || self.0 == other.0
    }
}

impl Eq for Devices {}

impl PartialOrd for Devices {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Devices {
    fn cmp(&self, other: &Self) -> Ordering {
        let device = |(one, other): (&Arc<Device>, &Arc<Device>)| {
            if Arc::ptr_eq(one, other) { Ordering::Equal } else { one.cmp(other) }
        };
        let differs = self.0.iter().zip(other.0.iter()).map(device).find(|order| order.is_ne());
        differs.unwrap_or_else(|| self.len().cmp(&other.len()))
    }
}

impl Index<usize> for Devices {
    type Output = Device;

    fn index(&self, index: usize) -> &Device {
        &self.0[index]
    }
}

impl IndexMut<usize> for Devices {
    fn index_mut(&mut self, index: usize) -> &mut Device {
        Arc::make_mut(&mut Arc::make_mut(&mut self.0)[index])
    }
}

impl<'a> IntoIterator for &'a Devices {
    type Item = &'a Device;
    type IntoIter = DeviceIter<'a>;

    fn into_iter(self) -> DeviceIter<'a> {
        self.iter()
    }
}

impl<'a> IntoIterator for &'a mut Devices {
    type Item = &'a mut Device;
    type IntoIter = DeviceIterMut<'a>;

    fn into_iter(self) -> DeviceIterMut<'a> {
        self.iter_mut()
    }
}

impl FromIterator<Device> for Devices {
    fn from_iter<I: IntoIterator<Item = Device>>(devices: I) -> Self {
        let mut held: Vec<Arc<Device>> = Vec::new();
        for device in devices {
            // Neighbouring devices are usually equal.
            let same = held.iter().rev().find(|held| ***held == device).cloned();
            held.push(same.unwrap_or_else(|| Arc::new(device)));
        }
        Self(held.into())
    }
}

impl From<Vec<Device>> for Devices {
    fn from(devices: Vec<Device>) -> Self {
        devices.into_iter().collect()
    }
}

impl Serialize for Devices {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(self)
    }
}

impl<'de> Deserialize<'de> for Devices {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Ok(Vec::<Device>::deserialize(deserializer)?.into())
    }
}

/// Interns devices, and lists of devices.
#[derive(Debug, Default)]
pub struct DevicePool {
    devices: BTreeSet<Arc<Device>>,
    lists: BTreeSet<Devices>,
}

impl DevicePool {
    /// Interns the devices of a node, in index order.
    pub fn share(&mut self, devices: impl IntoIterator<Item = Device>) -> Devices {
        let held = devices.into_iter().map(|device| self.hold(device)).collect();
        self.list(held)
    }

    pub(crate) fn hold(&mut self, device: Device) -> Arc<Device> {
        if let Some(held) = self.devices.get(&device) {
            return Arc::clone(held);
        }
        let held = Arc::new(device);
        self.devices.insert(Arc::clone(&held));
        held
    }

    pub(crate) fn list(&mut self, held: Vec<Arc<Device>>) -> Devices {
        let list = Devices(held.into());
        if let Some(known) = self.lists.get(&list) {
            return known.clone();
        }
        self.lists.insert(list.clone());
        list
    }
}
