//! Joins the devices that kubelets report with pods, claims and leases. Pure.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};

use comity_agent_kubernetes::dynamic_resources::AllocatedDevice;
use comity_agent_kubernetes::gpu_resource::counts_gpus;
use comity_agent_kubernetes::pod_resources::{DeviceUnit, PodName};
use comity_agent_model::lent::PodOwners;

use super::Guests;
use crate::devices::{DeviceHolder, DevicePages, DeviceTable, HolderOwner, ReadPage, ReaderCounts};
use crate::observe::dra_devices::DraDevices;
use crate::observe::pod_facts::PodFacts;

/// A page that is not younger than a pod by this much may show another pod of that name. Also bounds the difference of
/// the clocks.
const YOUNGER_BY_MS: u64 = 5_000;

/// Looks up unfinished pods.
pub(crate) trait FindPod {
    /// The pod of a name, if it is bound to a node.
    fn find(&self, pod: &PodName) -> Option<&PodFacts>;
}

/// Who holds each device of the read nodes, and each device of a DRA driver.
pub(crate) fn table(pages: &DevicePages, pods: &impl FindPod, guests: &Guests, dra: &DraDevices) -> DeviceTable {
    let owners = PodOwners::of(&guests.leases);
    let mut table = DeviceTable::of_round(ReaderCounts { read: pages.nodes.len(), failed: pages.failed });
    for (node, ReadPage { devices, .. }) in &pages.nodes {
        for unit in &devices.offered {
            table.offer(node, unit);
        }
        for (name, units) in &devices.held {
            let pod = pods.find(name).filter(|pod| *pod.node == **node);
            let owner = pod.map_or(HolderOwner::Gone, |pod| guests.owner_of(pod, &owners));
            let guest = pod.and_then(|pod| pod.guest.as_ref());
            for unit in units {
                let holder = DeviceHolder {
                    owner,
                    resource: unit.resource.clone(),
                    unit: unit.id.clone(),
                    namespace: name.namespace.clone(),
                    name: name.name.clone(),
                    uid: guest.map(|guest| guest.uid.clone()),
                };
                table.hold(node, unit.device(), holder);
            }
        }
    }
    add_claims(&mut table, guests, dra);
    table
}

/// Devices of DRA drivers have the UUIDs of the same devices at a device plugin.
fn add_claims(table: &mut DeviceTable, guests: &Guests, dra: &DraDevices) {
    let mut published = BTreeMap::new();
    for (node, gpus) in dra.pools.gpus() {
        for gpu in gpus.into_iter().filter(|gpu| !gpu.uuid.is_empty()) {
            table.publish(node, &gpu.uuid);
            let device = AllocatedDevice {
                driver: gpu.class.driver().to_owned(),
                pool: gpu.pool.clone(),
                device: gpu.name.clone(),
            };
            published.insert(device, PublishedDevice { node, uuid: &gpu.uuid });
        }
    }
    for claim in &dra.claims {
        let lease = guests.lease_namespaces.get(&claim.namespace);
        let owner = match lease.filter(|lease| guests.leases.contains_key(lease)) {
            Some(lease) => HolderOwner::Lease(*lease),
            None => HolderOwner::Local,
        };
        for allocated in &claim.allocated {
            let Some(PublishedDevice { node, uuid }) = published.get(allocated) else { continue };
            let holder = DeviceHolder {
                owner,
                resource: allocated.driver.clone(),
                unit: (*uuid).to_owned(),
                namespace: claim.namespace.clone(),
                name: claim.name.clone(),
                uid: None,
            };
            table.hold(node, uuid, holder);
        }
    }
}

struct PublishedDevice<'a> {
    node: &'a str,
    uuid: &'a str,
}

/// The pod, with each GPU request raised to the number of units that its kubelet reports.
pub(crate) fn with_held<'p>(pod: &'p PodFacts, pages: &DevicePages) -> Cow<'p, PodFacts> {
    let Some((guest, page)) = pod.guest.as_ref().zip(pages.nodes.get(&*pod.node)) else { return Cow::Borrowed(pod) };
    let created_ms = u64::try_from(guest.created_ms).unwrap_or(0);
    if page.read_at_ms < created_ms.saturating_add(YOUNGER_BY_MS) {
        return Cow::Borrowed(pod);
    }
    let name = PodName { namespace: pod.namespace.to_string(), name: guest.name.clone() };
    let nothing = BTreeSet::new();
    let mut held: BTreeMap<&str, u64> = BTreeMap::new();
    for DeviceUnit { resource, .. } in page.devices.held.get(&name).unwrap_or(&nothing) {
        *held.entry(resource).or_default() += 1;
    }
    held.retain(|resource, count| counts_gpus(resource) && *count > pod.request(resource));
    if held.is_empty() {
        return Cow::Borrowed(pod);
    }
    let others = pod.requests.iter().filter(|(name, _)| !held.contains_key(&**name)).cloned();
    let mut requests: Vec<_> = others.chain(held.iter().map(|(name, count)| ((*name).into(), *count))).collect();
    requests.sort();
    Cow::Owned(PodFacts { requests: requests.into(), ..pod.clone() })
}

impl Guests {
    /// To whom a pod belongs that holds a device.
    fn owner_of(&self, pod: &PodFacts, owners: &PodOwners<'_>) -> HolderOwner {
        let held_for = pod.guest.as_ref().filter(|_| self.is_placeholder(pod)).and_then(|guest| guest.lease);
        let lease = held_for.or_else(|| self.lease_of(pod, owners).map(|(lease, _)| lease));
        lease.map_or(HolderOwner::Local, HolderOwner::Lease)
    }
}

#[cfg(test)]
mod tests;
