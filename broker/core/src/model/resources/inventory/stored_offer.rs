//! The stored form of offers: each kind of device once, and nodes that refer to kinds by index.
//!
//! ```text
//!   {"generation":7,"kinds":[{…},{…}],"nodes":{"n1":{…,"devices":[0,0,1,1]}},"deliveries":[…]}
//! ```

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;

use comity_types::{Delivery, NodeId};
use serde::de::{self, DeserializeSeed, MapAccess, Visitor};
use serde::ser::SerializeStruct as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::model::data::DataSite;
use crate::model::inventory::devices::DevicePool;
use crate::model::inventory::{Device, Enforcement, Node, NodeMap, NodeWiring, Offer, is_yes, yes};

/// A stored node. `D` is the form of its devices.
#[derive(Serialize, Deserialize)]
struct StoredNode<'a, D> {
    cpu_milli: u64,
    memory_mib: u64,
    local_cpu_milli: u64,
    local_memory_mib: u64,
    devices: D,
    schedulable: bool,
    #[serde(default = "yes", skip_serializing_if = "is_yes")]
    ready: bool,
    wiring: Cow<'a, NodeWiring>,
    #[serde(default, skip_serializing_if = "Enforcement::is_none")]
    enforces: Enforcement,
}

/// Kinds of devices in order of first appearance, so that equal offers give equal bytes.
#[derive(Default)]
struct Kinds<'a> {
    kinds: Vec<&'a Device>,
    by_device: BTreeMap<&'a Device, u32>,
    /// Index by address, which speeds up the lookup of shared devices. Never stored or iterated.
    by_address: BTreeMap<usize, u32>,
}

impl<'a> Kinds<'a> {
    fn of(&mut self, device: &'a Arc<Device>) -> u32 {
        let address = Arc::as_ptr(device).addr();
        if let Some(kind) = self.by_address.get(&address) {
            return *kind;
        }
        let next = u32::try_from(self.kinds.len()).unwrap_or(u32::MAX);
        let kind = *self.by_device.entry(device).or_insert_with(|| {
            self.kinds.push(device);
            next
        });
        self.by_address.insert(address, kind);
        kind
    }
}

/// Nodes with the kind of each device.
struct Nodes<'a>(Vec<(&'a NodeId, &'a Node, Vec<u32>)>);

impl Serialize for Nodes<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.0.iter().map(|(id, node, devices)| {
            let stored = StoredNode {
                cpu_milli: node.cpu_milli,
                memory_mib: node.memory_mib,
                local_cpu_milli: node.local_cpu_milli,
                local_memory_mib: node.local_memory_mib,
                devices,
                schedulable: node.schedulable,
                ready: node.ready,
                wiring: Cow::Borrowed(&node.wiring),
                enforces: node.enforces,
            };
            (id, stored)
        }))
    }
}

impl Serialize for Offer {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut kinds = Kinds::default();
        let mut nodes = Vec::with_capacity(self.nodes.len());
        for (id, node) in &self.nodes {
            nodes.push((id, node, node.devices.held().iter().map(|device| kinds.of(device)).collect()));
        }
        let mut offer = serializer.serialize_struct("Offer", 5)?;
        offer.serialize_field("generation", &self.generation)?;
        offer.serialize_field("kinds", &kinds.kinds)?;
        offer.serialize_field("nodes", &Nodes(nodes))?;
        offer.serialize_field("deliveries", &self.deliveries)?;
        if !self.data.is_empty() {
            offer.serialize_field("data", &self.data)?;
        }
        offer.end()
    }
}

/// Stores a shared offer like an owned one.
pub(crate) mod shared {
    use std::sync::Arc;

    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    use crate::model::inventory::Offer;

    pub(crate) fn serialize<S: Serializer>(offer: &Option<Arc<Offer>>, serializer: S) -> Result<S::Ok, S::Error> {
        offer.as_deref().serialize(serializer)
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Arc<Offer>>, D::Error> {
        Ok(Option::deserialize(deserializer)?.map(Arc::new))
    }
}

/// Reads nodes and interns their devices.
#[derive(Default)]
struct ReadNodes {
    kinds: Vec<Arc<Device>>,
    pool: DevicePool,
}

impl ReadNodes {
    fn node<E: de::Error>(&mut self, stored: StoredNode<'_, Vec<u64>>) -> Result<Node, E> {
        let mut held = Vec::with_capacity(stored.devices.len());
        for kind in stored.devices {
            let known = usize::try_from(kind).ok().and_then(|kind| self.kinds.get(kind));
            let unknown = || E::custom(format_args!("kind {kind} is not one of {} before", self.kinds.len()));
            held.push(Arc::clone(known.ok_or_else(unknown)?));
        }
        Ok(Node {
            cpu_milli: stored.cpu_milli,
            memory_mib: stored.memory_mib,
            local_cpu_milli: stored.local_cpu_milli,
            local_memory_mib: stored.local_memory_mib,
            devices: self.pool.list(held),
            schedulable: stored.schedulable,
            ready: stored.ready,
            wiring: stored.wiring.into_owned(),
            enforces: stored.enforces,
        })
    }
}

impl<'de> DeserializeSeed<'de> for &mut ReadNodes {
    type Value = NodeMap;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for &mut ReadNodes {
    type Value = NodeMap;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("nodes by id")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let mut nodes = NodeMap::new();
        while let Some((id, stored)) = map.next_entry::<NodeId, StoredNode<'_, Vec<u64>>>()? {
            nodes.insert(id, self.node(stored)?);
        }
        Ok(nodes)
    }
}

/// Fields of an offer. Readers skip unknown fields of later releases.
#[derive(Deserialize)]
#[serde(field_identifier, rename_all = "lowercase")]
enum OfferField {
    Generation,
    Kinds,
    Nodes,
    Deliveries,
    Data,
    #[serde(other)]
    Unknown,
}

impl<'de> Deserialize<'de> for Offer {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct ReadOffer;
        impl<'de> Visitor<'de> for ReadOffer {
            type Value = Offer;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an offer")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Offer, A::Error> {
                let (mut generation, mut nodes) = (None, None);
                let (mut deliveries, mut data) = (None::<BTreeSet<Delivery>>, DataSite::default());
                let mut read = ReadNodes::default();
                while let Some(field) = map.next_key()? {
                    match field {
                        OfferField::Generation => generation = Some(map.next_value()?),
                        OfferField::Kinds => {
                            read.kinds = map.next_value::<Vec<Device>>()?.into_iter().map(Arc::new).collect()
                        }
                        OfferField::Nodes => nodes = Some(map.next_value_seed(&mut read)?),
                        OfferField::Deliveries => deliveries = Some(map.next_value()?),
                        OfferField::Data => data = map.next_value()?,
                        OfferField::Unknown => {
                            let de::IgnoredAny = map.next_value()?;
                        }
                    }
                }
                Ok(Offer {
                    generation: generation.ok_or_else(|| de::Error::missing_field("generation"))?,
                    nodes: nodes.ok_or_else(|| de::Error::missing_field("nodes"))?,
                    deliveries: deliveries.ok_or_else(|| de::Error::missing_field("deliveries"))?,
                    data,
                })
            }
        }
        const FIELDS: &[&str] = &["generation", "kinds", "nodes", "deliveries", "data"];
        deserializer.deserialize_struct("Offer", FIELDS, ReadOffer)
    }
}

#[cfg(test)]
mod tests;
