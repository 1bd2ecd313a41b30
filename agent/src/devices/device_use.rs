//! Who holds one device.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::str::FromStr;

use comity_types::LeaseId;
use serde::{Deserialize, Serialize};

/// To whom a holder belongs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum HolderOwner {
    /// The donor itself.
    Local,
    /// A lease in force.
    Lease(LeaseId),
    /// A pod that the API server does not show as running: it has finished, and its kubelet lists it until the next pod
    /// comes.
    Gone,
}

impl fmt::Display for HolderOwner {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Local => formatter.write_str("local"),
            Self::Lease(lease) => lease.fmt(formatter),
            Self::Gone => formatter.write_str("gone"),
        }
    }
}

impl From<HolderOwner> for String {
    fn from(owner: HolderOwner) -> Self {
        owner.to_string()
    }
}

impl TryFrom<String> for HolderOwner {
    type Error = <LeaseId as FromStr>::Err;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        match text.as_str() {
            "local" => Ok(Self::Local),
            "gone" => Ok(Self::Gone),
            lease => lease.parse().map(Self::Lease),
        }
    }
}

/// A pod, or a resource claim, that holds a device or a part of it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct DeviceHolder {
    /// To whom it belongs.
    pub owner: HolderOwner,
    /// The extended resource; for a claim the driver.
    pub resource: String,
    /// The held unit: the device, or a replica "UUID::N".
    pub unit: String,
    /// Namespace.
    pub namespace: String,
    /// Name of the pod or the claim.
    pub name: String,
    /// The pod's UID, where it may belong to a lease.
    #[serde(skip)]
    pub uid: Option<String>,
}

impl fmt::Display for DeviceHolder {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{} {}/{}", self.owner, self.namespace, self.name)?;
        // A replica's number.
        match self.unit.split_once("::") {
            Some((_, replica)) => write!(formatter, " (replica {replica})"),
            None => Ok(()),
        }
    }
}

/// The use of one device: a GPU, or a MIG instance.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeviceUse {
    /// Units that are offered of it: 1, or the replicas of a shared device; 0 of one that is not healthy.
    pub offered: u64,
    /// Who holds it.
    pub holders: BTreeSet<DeviceHolder>,
}

impl DeviceUse {
    /// Holders that hold it now.
    pub(super) fn present(&self) -> impl Iterator<Item = &DeviceHolder> {
        self.holders.iter().filter(|holder| holder.owner != HolderOwner::Gone)
    }

    /// Why the device has too many holders; `None` if local plus lent use is at most one device.
    pub(super) fn conflict(&self, device: &str) -> Option<String> {
        let mut by_unit: BTreeMap<&str, BTreeSet<(&str, &str)>> = BTreeMap::new();
        for holder in self.present() {
            by_unit.entry(&holder.unit).or_default().insert((&holder.namespace, &holder.name));
        }
        let names = || {
            let names: BTreeSet<String> = self
                .present()
                .map(|holder| format!("{}/{} ({}, {})", holder.namespace, holder.name, holder.owner, holder.resource))
                .collect();
            names.into_iter().collect::<Vec<_>>().join(", ")
        };
        let everyone: BTreeSet<_> = by_unit.values().flatten().collect();
        let held = by_unit.len() as u64;
        if everyone.len() > 1 && by_unit.contains_key(device) {
            return Some(format!("{device} is held whole, and by {} at once: {}", everyone.len(), names()));
        }
        if let Some((unit, holders)) = by_unit.iter().find(|(_, holders)| holders.len() > 1) {
            return Some(format!("{unit} is held by {} at once: {}", holders.len(), names()));
        }
        (self.offered > 0 && held > self.offered)
            .then(|| format!("{device} has {} replicas, and {held} are held: {}", self.offered, names()))
    }
}
