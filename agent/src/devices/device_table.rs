//! All devices with their holders.

use std::collections::BTreeMap;

use comity_agent_kubernetes::pod_resources::DeviceUnit;
use serde::{Deserialize, Serialize};

use super::device_use::{DeviceHolder, DeviceUse, HolderOwner};

/// Devices by name of the node and of the device.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeviceTable {
    readers: ReaderCounts,
    nodes: BTreeMap<String, BTreeMap<String, DeviceUse>>,
}

/// Numbers of device readers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReaderCounts {
    /// Read in the last round.
    pub read: usize,
    /// Not read.
    pub failed: usize,
}

/// A device with more holders than it allows: local plus lent use is more than one device.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct DeviceConflict {
    /// Name of the node.
    pub node: String,
    /// The device.
    pub device: String,
    /// What is wrong, with the holders.
    pub reason: String,
    /// Pods of leases among the holders.
    pub lent: Vec<DeviceHolder>,
}

/// Numbers of devices.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct DeviceCounts {
    /// Held by nobody.
    pub(crate) free: u64,
    /// Held by pods or claims of the donor's own.
    pub(crate) local: u64,
    /// Held by pods or claims of leases.
    pub(crate) lent: u64,
    /// Those in a device conflict, which count above too.
    pub(crate) in_conflict: u64,
}

impl DeviceTable {
    /// An empty table of a round.
    pub(crate) fn of_round(readers: ReaderCounts) -> Self {
        Self { readers, ..Self::default() }
    }

    /// Device readers in the round that filled this table.
    pub(crate) const fn readers(&self) -> ReaderCounts {
        self.readers
    }

    /// Adds a healthy unit of a node.
    pub(crate) fn offer(&mut self, node: &str, unit: &DeviceUnit) {
        self.entry(node, unit.device()).offered += 1;
    }

    /// Adds a device that its driver publishes.
    pub(crate) fn publish(&mut self, node: &str, device: &str) {
        let entry = self.entry(node, device);
        entry.offered = entry.offered.max(1);
    }

    /// Adds a holder of a device of a node.
    pub(crate) fn hold(&mut self, node: &str, device: &str, holder: DeviceHolder) {
        self.entry(node, device).holders.insert(holder);
    }

    fn entry(&mut self, node: &str, device: &str) -> &mut DeviceUse {
        self.nodes.entry(node.to_owned()).or_default().entry(device.to_owned()).or_default()
    }

    /// The table as text: a line for each device, with its holders.
    #[must_use]
    pub fn text(&self) -> String {
        let mut rows = vec![["NODE", "DEVICE", "UNITS", "HELD BY"].map(str::to_owned)];
        for (node, devices) in &self.nodes {
            for (device, DeviceUse { offered, holders }) in devices {
                let holders: Vec<String> = holders.iter().map(ToString::to_string).collect();
                let holders = if holders.is_empty() { "-".to_owned() } else { holders.join(", ") };
                rows.push([node.clone(), device.clone(), offered.to_string(), holders]);
            }
        }
        let width = |column: usize| rows.iter().map(|row| row[column].len()).max().unwrap_or(0);
        let widths = [width(0), width(1), width(2)];
        let line = |[node, device, units, holders]: &[String; 4]| {
            format!(
                "{node:w0$}  {device:w1$}  {units:w2$}  {holders}\n",
                w0 = widths[0],
                w1 = widths[1],
                w2 = widths[2]
            )
        };
        let mut text: String = rows.iter().map(line).collect();
        for DeviceConflict { node, reason, .. } in self.conflicts() {
            text.push_str(&format!("device conflict on {node}: {reason}\n"));
        }
        text
    }

    /// Devices of a node, by name.
    pub fn of_node(&self, node: &str) -> impl Iterator<Item = (&String, &DeviceUse)> {
        self.nodes.get(node).into_iter().flatten()
    }

    /// All device conflicts, by node and name.
    #[must_use]
    pub fn conflicts(&self) -> Vec<DeviceConflict> {
        let devices =
            self.nodes.iter().flat_map(|(node, devices)| devices.iter().map(move |(id, held)| (node, id, held)));
        let conflict = |(node, device, held): (&String, &String, &DeviceUse)| {
            let is_lent = |holder: &&DeviceHolder| matches!(holder.owner, HolderOwner::Lease(_));
            Some(DeviceConflict {
                node: node.clone(),
                device: device.clone(),
                reason: held.conflict(device)?,
                lent: held.present().filter(is_lent).cloned().collect(),
            })
        };
        devices.filter_map(conflict).collect()
    }

    /// Counts the devices by use; one of local and lent use counts as both.
    pub(crate) fn counts(&self) -> DeviceCounts {
        let mut counts = DeviceCounts::default();
        for (device, held) in self.nodes.values().flatten() {
            let is_local = held.present().any(|holder| holder.owner == HolderOwner::Local);
            let is_lent = held.present().any(|holder| holder.owner != HolderOwner::Local);
            counts.local += u64::from(is_local);
            counts.lent += u64::from(is_lent);
            counts.free += u64::from(!is_local && !is_lent);
            counts.in_conflict += u64::from(held.conflict(device).is_some());
        }
        counts
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use comity_types::LeaseId;

    use super::*;

    const LEASE: HolderOwner = HolderOwner::Lease(LeaseId(7));

    fn holder(owner: HolderOwner, resource: &str, unit: &str, name: &str) -> DeviceHolder {
        DeviceHolder {
            owner,
            resource: resource.to_owned(),
            unit: unit.to_owned(),
            namespace: "ns".to_owned(),
            name: name.to_owned(),
            uid: None,
        }
    }

    fn table(offered: &[(&str, &str)], holders: &[DeviceHolder]) -> DeviceTable {
        let mut table = DeviceTable::default();
        let unit = |resource: &str, id: &str| DeviceUnit { resource: resource.to_owned(), id: id.to_owned() };
        for (resource, id) in offered {
            table.offer("a", &unit(resource, id));
        }
        for holder in holders {
            table.hold("a", unit("", &holder.unit).device(), holder.clone());
        }
        table
    }

    #[test]
    fn local_plus_lent_are_at_most_one_device() {
        const GPU: &str = "nvidia.com/gpu";
        const SHARED: &str = "nvidia.com/gpu.shared";
        let whole: &[(&str, &str)] = &[(GPU, "GPU-1")];
        let sliced: &[(&str, &str)] = &[(GPU, "GPU-1::0"), (GPU, "GPU-1::1")];
        let local = |resource: &str, unit: &str| holder(HolderOwner::Local, resource, unit, "own");
        let lent = |resource: &str, unit: &str, name: &str| holder(LEASE, resource, unit, name);
        type Case<'a> = (&'a str, &'a [(&'a str, &'a str)], Vec<DeviceHolder>, &'a str);
        let cases: [Case<'_>; 9] = [
            ("free", whole, vec![], ""),
            ("lent", whole, vec![lent(GPU, "GPU-1", "x")], ""),
            ("local and lent", whole, vec![local(GPU, "GPU-1"), lent(GPU, "GPU-1", "x")], "held whole, and by 2"),
            ("one pod by two resources", whole, vec![lent(GPU, "GPU-1", "x"), lent(SHARED, "GPU-1", "x")], ""),
            ("two replicas", sliced, vec![local(GPU, "GPU-1::0"), lent(GPU, "GPU-1::1", "x")], ""),
            (
                "one replica twice",
                sliced,
                vec![local(GPU, "GPU-1::0"), lent(GPU, "GPU-1::0", "x")],
                "GPU-1::0 is held by 2",
            ),
            (
                "more replicas than are offered",
                sliced,
                vec![local(GPU, "GPU-1::0"), lent(GPU, "GPU-1::1", "x"), lent(GPU, "GPU-1::2", "y")],
                "has 2 replicas, and 3 are held",
            ),
            (
                "whole by a claim, and shared by a plugin",
                sliced,
                vec![local("gpu.nvidia.com", "GPU-1"), lent(GPU, "GPU-1::1", "x")],
                "held whole, and by 2",
            ),
            (
                "a finished pod that its kubelet still lists",
                whole,
                vec![holder(HolderOwner::Gone, GPU, "GPU-1", "old"), lent(GPU, "GPU-1", "x")],
                "",
            ),
        ];
        for (name, offered, holders, reason) in cases {
            let table = table(offered, &holders);
            let conflicts = table.conflicts();
            assert_eq!(conflicts.is_empty(), reason.is_empty(), "{name}: {conflicts:?}");
            assert!(conflicts.iter().all(|conflict| conflict.reason.contains(reason)), "{name}: {conflicts:?}");
            assert_eq!(table.counts().in_conflict, conflicts.len() as u64, "{name}");
        }
    }

    #[test]
    fn a_conflict_names_everyone_and_the_pods_of_leases() {
        let table = table(
            &[("r", "GPU-1")],
            &[holder(HolderOwner::Local, "r", "GPU-1", "own"), holder(LEASE, "r", "GPU-1", "x")],
        );
        let conflicts = table.conflicts();
        let found: Vec<_> =
            conflicts.iter().map(|one| (one.node.as_str(), one.lent.len(), one.reason.as_str())).collect();
        let reason = "GPU-1 is held whole, and by 2 at once: ns/own (local, r), ns/x (lease-7, r)";
        assert_eq!(found, [("a", 1, reason)]);
        assert_eq!(
            table.text(),
            format!(
                "NODE  DEVICE  UNITS  HELD BY\na     GPU-1   1      local ns/own, lease-7 ns/x\ndevice conflict on a: {reason}\n"
            )
        );
        let told: DeviceTable = serde_json::from_str(&serde_json::to_string(&table).unwrap()).unwrap();
        assert_eq!(told, table, "as the local API tells it");
        let counts = DeviceCounts { local: 1, lent: 1, in_conflict: 1, ..DeviceCounts::default() };
        assert_eq!(table.counts(), counts);
    }
}
