//! Converts offers: nodes, devices, sharing.

mod mig;

use std::collections::BTreeMap;

use comity_core::cluster::Cluster;
use comity_core::health::Health;
use comity_core::inventory::{Device, DevicePool, DeviceWiring, Node, Offer, Sharing};
use comity_core::limits::{MAX_DEVICES_PER_NODE, MAX_NODES_PER_OFFER, WHOLE_MILLI};
use comity_core::{Refusal, State, Timestamp};
use comity_proto::v1;
use comity_types::{ClusterId, NodeId};

use crate::api::convert::{data, delivery, fault, required, wiring};

/// An offer of `caller`; `Offer::check` validates amounts.
pub fn parse(offer: v1::Offer, caller: &ClusterId) -> Result<Offer, Refusal> {
    if offer.cluster != caller.as_str() {
        return Err(Refusal::invalid(
            "offer.cluster",
            &offer.cluster,
            "is not the cluster of the caller's certificate",
            format!("advertise only for {caller}"),
        ));
    }
    if offer.nodes.len() > MAX_NODES_PER_OFFER {
        return Err(Refusal::invalid(
            "offer.nodes",
            offer.nodes.len(),
            "nodes are too many",
            format!("offer at most {MAX_NODES_PER_OFFER} nodes"),
        ));
    }
    let deliveries = delivery::parse_offered(&offer.deliveries)?;
    let (mut nodes, mut pool) = (BTreeMap::new(), DevicePool::default());
    for (index, proto) in offer.nodes.into_iter().enumerate() {
        let field = format!("offer.nodes[{index}]");
        let id = NodeId::parse(&proto.id, &format!("{field}.id"))?;
        if nodes.contains_key(&id) {
            return Err(Refusal::invalid(&format!("{field}.id"), &id, "comes twice", "list each node once"));
        }
        nodes.insert(id, node(proto, &field, &mut pool)?);
    }
    let data = data::site(offer.data.unwrap_or_default())?;
    let parsed = Offer { generation: offer.generation, nodes: nodes.into_iter().collect(), deliveries, data };
    parsed.check(caller)?;
    Ok(parsed)
}

fn node(node: v1::Node, field: &str, pool: &mut DevicePool) -> Result<Node, Refusal> {
    if node.devices.len() > MAX_DEVICES_PER_NODE {
        return Err(Refusal::invalid(
            &format!("{field}.devices"),
            node.devices.len(),
            "devices are too many for one node",
            format!("offer at most {MAX_DEVICES_PER_NODE}"),
        ));
    }
    let mut devices = Vec::with_capacity(node.devices.len());
    for (index, proto) in node.devices.into_iter().enumerate() {
        let field = format!("{field}.devices[{index}]");
        if usize::try_from(proto.index) != Ok(index) {
            return Err(Refusal::invalid(
                &format!("{field}.index"),
                proto.index,
                "is out of order",
                format!("number devices from 0 without gaps: here {index}"),
            ));
        }
        devices.push(device(proto, &field)?);
    }
    let wiring = wiring::node(&node.numa, &node.rdma, field)?;
    Ok(Node {
        cpu_milli: node.cpu_milli,
        memory_mib: node.memory_mib,
        local_cpu_milli: node.local_cpu_milli,
        local_memory_mib: node.local_memory_mib,
        devices: pool.share(devices),
        schedulable: node.schedulable,
        ready: !node.not_ready,
        wiring,
        enforces: wiring::enforcement(node.enforces),
    })
}

fn device(device: v1::Device, field: &str) -> Result<Device, Refusal> {
    let mode = required(
        device.sharing.and_then(|sharing| sharing.mode),
        &format!("{field}.sharing"),
        "use exclusive, time_slicing, mps, mig or fractional",
    )?;
    let sharing = match mode {
        v1::sharing::Mode::Exclusive(_) => Sharing::Exclusive,
        v1::sharing::Mode::TimeSlicing(slicing) => Sharing::TimeSlicing { replicas: slicing.replicas },
        v1::sharing::Mode::Mps(mps) => Sharing::Mps { shares: mps.shares },
        v1::sharing::Mode::Fractional(fractional) => Sharing::Fractional { step_milli: fractional.step_milli },
        v1::sharing::Mode::Mig(mig) => mig::parse(mig, field)?,
    };
    let fault = device.fault.as_ref().map(|fault| fault::parse(fault, field)).transpose()?;
    let mut device = Device {
        product_name: device.product_name,
        architecture: device.architecture,
        memory_mib: device.memory_mib,
        cuda_compute_capability: device.cuda_compute_capability,
        driver_version: device.driver_version,
        sharing,
        healthy: device.healthy && !fault.as_ref().is_some_and(|fault| fault.class.withdraws()),
        fault,
        local_use_milli: device.local_use_milli,
        resource_name: device.resource_name,
        wiring: DeviceWiring {
            numa: device.numa_node,
            nvlink: Some(device.nvlink_clique).filter(|clique| !clique.is_empty()),
        },
    };
    mig::count_local_use(&mut device);
    Ok(device)
}

/// Converts to the API message.
#[must_use]
pub fn to_proto(cluster: &ClusterId, offer: &Offer) -> v1::Offer {
    let nodes = offer.nodes.iter().map(|(id, node)| v1::Node {
        id: id.to_string(),
        cpu_milli: node.cpu_milli,
        memory_mib: node.memory_mib,
        local_cpu_milli: node.local_cpu_milli,
        local_memory_mib: node.local_memory_mib,
        devices: node.devices.iter().zip(0..).map(|(device, index)| device_to_proto(index, device)).collect(),
        schedulable: node.schedulable,
        not_ready: !node.ready,
        numa: wiring::numa_to_proto(node.wiring.numa.iter()),
        rdma: wiring::rdma_of_node(&node.wiring),
        enforces: wiring::enforcement_to_proto(node.enforces),
    });
    v1::Offer {
        cluster: cluster.to_string(),
        generation: offer.generation,
        nodes: nodes.collect(),
        deliveries: delivery::offered_to_proto(&offer.deliveries),
        data: data::site_to_proto(&offer.data),
    }
}

fn device_to_proto(index: u32, device: &Device) -> v1::Device {
    use v1::sharing::{Exclusive, Fractional, Mode, Mps, TimeSlicing};
    let mode = match &device.sharing {
        Sharing::Exclusive => Mode::Exclusive(Exclusive {}),
        Sharing::TimeSlicing { replicas } => Mode::TimeSlicing(TimeSlicing { replicas: *replicas }),
        Sharing::Mps { shares } => Mode::Mps(Mps { shares: *shares }),
        Sharing::Fractional { step_milli } => Mode::Fractional(Fractional { step_milli: *step_milli }),
        Sharing::Mig { instances, layout } => Mode::Mig(mig::to_proto(instances, layout.as_ref())),
    };
    v1::Device {
        index,
        product_name: device.product_name.clone(),
        architecture: device.architecture.clone(),
        memory_mib: device.memory_mib,
        cuda_compute_capability: device.cuda_compute_capability.clone(),
        driver_version: device.driver_version.clone(),
        sharing: Some(v1::Sharing { mode: Some(mode) }),
        healthy: device.healthy,
        local_use_milli: device.local_use_milli,
        resource_name: device.resource_name.clone(),
        numa_node: device.wiring.numa,
        nvlink_clique: device.wiring.nvlink.clone().unwrap_or_default(),
        fault: device.fault.as_ref().map(fault::to_proto),
    }
}

/// Sums up an offer by device class, with its use; `None` before the first offer.
#[must_use]
pub fn summary(state: &State, id: &ClusterId, cluster: &Cluster) -> Option<v1::OfferSummary> {
    let offer = cluster.offer.as_ref()?;
    let mut classes: BTreeMap<String, v1::ClassSummary> = BTreeMap::new();
    for (node_id, node) in &offer.nodes {
        let known = state.device_classes(id, node_id);
        // Leaves out quarantined devices.
        let used = state.usable_node(id, node_id).unwrap_or(node);
        let lent = state.occupancy().node(id, node_id);
        for (index, device) in node.devices.iter().enumerate() {
            let class = known.get(index).and_then(Option::as_ref).map_or_else(String::new, ToString::to_string);
            let lent_milli =
                u32::try_from(index).ok().and_then(|index| lent?.devices.get(&index).copied()).unwrap_or(0);
            let healthy = used.devices.get(index).is_some_and(|device| device.healthy);
            let barred = node.schedulable && !used.schedulable || !node.ready;
            let usable = healthy && used.schedulable;
            let free =
                if usable { WHOLE_MILLI.saturating_sub(device.local_use_milli).saturating_sub(lent_milli) } else { 0 };
            let sum = classes.entry(class).or_default();
            sum.devices = sum.devices.saturating_add(1);
            sum.unhealthy = sum.unhealthy.saturating_add(u32::from(!healthy || barred));
            sum.free_milli = sum.free_milli.saturating_add(free.into());
            sum.lent_milli = sum.lent_milli.saturating_add(lent_milli.into());
            sum.local_milli = sum.local_milli.saturating_add(device.local_use_milli.into());
        }
    }
    // By the policy in force: the one for which the cluster joined may have left.
    let bundle = state.policy.as_ref().map(|record| &record.bundle);
    let institution = bundle.and_then(|bundle| bundle.institution_of_cluster(id.as_str()));
    Some(v1::OfferSummary {
        cluster: id.to_string(),
        institution: institution.unwrap_or_default().to_owned(),
        generation: offer.generation,
        connected: cluster.connected,
        classes: classes.into_iter().map(|(class, sum)| v1::ClassSummary { class, ..sum }).collect(),
        nodes: crate::api::convert::count(offer.nodes.len()),
        deliveries: delivery::offered_to_proto(&offer.deliveries),
        data: data::site_to_proto(&offer.data),
    })
}

/// Quarantined nodes and devices of an offer.
#[must_use]
pub fn quarantines(offer: &Offer, health: &Health) -> Vec<v1::Quarantine> {
    let mut found = Vec::new();
    for (id, node) in &offer.nodes {
        let Some(known) = health.node(id) else { continue };
        let quarantine = |device, until: Timestamp| v1::Quarantine { node: id.to_string(), device, until_ms: until.0 };
        found.extend(known.until().map(|until| quarantine(None, until)));
        let devices = (0_u32..).take(node.devices.len());
        found.extend(devices.filter_map(|index| Some(quarantine(Some(index), known.device_until(index)?))));
    }
    found
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::path::Path;
    use std::sync::Arc;

    use comity_core::Records;
    use comity_core::policy_record::PolicyRecord;
    use comity_policy::{Bundle, BundleSource, RemovedDocuments};
    use comity_types::InstitutionId;

    use super::*;

    fn caller() -> ClusterId {
        ClusterId::parse("campus", "cluster").expect("a label")
    }

    fn good() -> v1::Offer {
        let device = v1::Device {
            index: 0,
            product_name: "NVIDIA-A100-SXM4-40GB".to_owned(),
            memory_mib: 40_960,
            sharing: Some(v1::Sharing { mode: Some(v1::sharing::Mode::Mps(v1::sharing::Mps { shares: 4 })) }),
            healthy: true,
            resource_name: "nvidia.com/gpu".to_owned(),
            numa_node: Some(3),
            nvlink_clique: "a".to_owned(),
            ..v1::Device::default()
        };
        let node = v1::Node {
            id: "0123456789abcdef".to_owned(),
            cpu_milli: 64_000,
            devices: vec![device],
            numa: vec![v1::NumaAmounts { numa_node: 3, cpu_milli: 32_000, memory_mib: 0 }],
            rdma: vec![
                v1::RdmaBandwidth {
                    network: "eth-vf".to_owned(),
                    gbits: 400,
                    resource: "nvidia.com/ib_vf".to_owned(),
                    functions: 8,
                    local_functions: 2,
                },
                v1::RdmaBandwidth { network: "ib0".to_owned(), gbits: 400, ..v1::RdmaBandwidth::default() },
            ],
            enforces: Some(v1::Enforcement { devices: true, numa: false }),
            ..v1::Node::default()
        };
        v1::Offer {
            cluster: "campus".to_owned(),
            generation: 1,
            nodes: vec![node],
            deliveries: vec![v1::Delivery::Namespace.into()],
            data: Some(v1::DataSite {
                datasets: vec!["imagenet-1k".to_owned(), "laion".to_owned()],
                egress_mbits: 10_000,
                egress_to: vec![v1::Egress { cluster: "eos".to_owned(), mbits: 100_000 }],
                measured_from: vec![v1::Ingress { cluster: "atlas".to_owned(), mbits: 940 }],
            }),
        }
    }

    #[test]
    fn a_good_offer_comes_back_as_it_was() {
        let parsed = parse(good(), &caller()).expect("it is good");
        assert_eq!(to_proto(&caller(), &parsed), good());
        let both = v1::Offer { deliveries: vec![1, 2], ..good() };
        assert_eq!(to_proto(&caller(), &parse(both.clone(), &caller()).expect("it is good")), both);
    }

    /// With the example policy in force.
    fn state() -> State {
        let examples = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../policy/examples"));
        let source = BundleSource::of_files(comity_policy::read_directory(examples).expect("readable"));
        let mut records = Records::default();
        records.policy = Some(PolicyRecord {
            bundle: Arc::new(Bundle::compile(&source).expect("valid")),
            source: Arc::new(source),
            applied_at: Timestamp(1),
            applied_by: String::new(),
            signed_by: BTreeSet::new(),
            removed: RemovedDocuments::default(),
        });
        State::from(records)
    }

    #[test]
    fn a_summary_names_the_institution_by_the_policy_in_force() {
        let cluster = Cluster {
            institution: InstitutionId::parse("left", "institution").expect("a label"),
            identity_key: String::new(),
            joined_at: Timestamp(1),
            certificate_not_after: Timestamp(1),
            void_before: 0,
            evicted: None,
            connected: true,
            since: Timestamp(1),
            offer: Some(Arc::new(parse(good(), &caller()).expect("it is good"))),
            withdrawn_generation: 0,
            health: Health::default(),
            last_fencing_token: 0,
            refused_donors: BTreeMap::new(),
            revision: 1,
        };
        let state = state();
        for (id, institution) in [("polytech-campus", "polytechnic"), ("campus", "")] {
            let id = ClusterId::parse(id, "cluster").expect("a label");
            let summary = summary(&state, &id, &cluster).expect("it has an offer");
            assert_eq!(summary.institution, institution, "{id}");
        }
    }

    fn site(offer: &mut v1::Offer) -> &mut v1::DataSite {
        offer.data.get_or_insert_default()
    }

    #[test]
    fn bad_offers_name_field_and_value() {
        let with = |change: fn(&mut v1::Offer)| {
            let mut offer = good();
            change(&mut offer);
            offer
        };
        for (bad, field, value) in [
            (with(|o| o.cluster = "other".into()), "offer.cluster", "other"),
            (with(|o| o.generation = 0), "offer.generation", "0"),
            (with(|o| o.nodes[0].id = "Node.A".into()), "offer.nodes[0].id", "Node.A"),
            (with(|o| o.nodes.push(o.nodes[0].clone())), "offer.nodes[1].id", "0123456789abcdef"),
            (with(|o| o.nodes[0].devices[0].index = 7), "offer.nodes[0].devices[0].index", "7"),
            (with(|o| o.nodes[0].devices[0].sharing = None), "offer.nodes[0].devices[0].sharing", ""),
            (
                with(|o| o.nodes[0].cpu_milli = u64::MAX),
                "offer.nodes[0123456789abcdef].cpu_milli",
                "18446744073709551615",
            ),
            (
                with(|o| o.nodes[0].devices[0].local_use_milli = 1001),
                "offer.nodes[0123456789abcdef].devices[0].local_use_milli",
                "1001",
            ),
            (with(|o| o.nodes = vec![v1::Node::default(); 10_001]), "offer.nodes", "10001"),
            (with(|o| o.nodes[0].numa = vec![o.nodes[0].numa[0]; 2]), "offer.nodes[0].numa[1].numa_node", "3"),
            (with(|o| o.nodes[0].numa = vec![v1::NumaAmounts::default(); 33]), "offer.nodes[0].numa", "33"),
            (with(|o| o.nodes[0].rdma = vec![o.nodes[0].rdma[1].clone(); 2]), "offer.nodes[0].rdma[1].network", "ib0"),
            (with(|o| o.nodes[0].rdma[1].gbits = 0), "offer.nodes[0123456789abcdef].rdma[ib0].gbits", "0"),
            (with(|o| o.nodes[0].rdma[1].network = "i b".into()), "offer.nodes[0123456789abcdef].rdma", "i b"),
            (with(|o| o.nodes[0].rdma[0].functions = 3), "offer.nodes[0123456789abcdef].rdma[eth-vf].functions", "3"),
            (
                with(|o| o.nodes[0].rdma[1].resource = "nvidia.com/ib_vf".into()),
                "offer.nodes[0123456789abcdef].rdma[ib0].functions",
                "0",
            ),
            (
                with(|o| o.nodes[0].rdma[0].local_functions = 9),
                "offer.nodes[0123456789abcdef].rdma[eth-vf].local_functions",
                "9",
            ),
            (with(|o| o.nodes[0].rdma[0].resource.clear()), "offer.nodes[0123456789abcdef].rdma[eth-vf].resource", ""),
            (
                with(|o| {
                    let twice = v1::RdmaBandwidth { network: "ib1".to_owned(), ..o.nodes[0].rdma[0].clone() };
                    o.nodes[0].rdma.push(twice);
                }),
                "offer.nodes[0123456789abcdef].rdma[ib1].resource",
                "nvidia.com/ib_vf",
            ),
            (with(|o| o.nodes[0].numa[0].cpu_milli = 65_000), "offer.nodes[0123456789abcdef].numa", "65000"),
            (with(|o| o.nodes[0].devices[0].numa_node = Some(4)), "offer.nodes[0123456789abcdef].devices[0].numa", "4"),
            (with(|o| o.deliveries = vec![0]), "offer.deliveries[0]", "0"),
            (with(|o| o.deliveries = vec![1, 99]), "offer.deliveries[1]", "99"),
            (with(|o| o.deliveries = vec![2, 2]), "offer.deliveries[1]", "2"),
            (with(|o| site(o).datasets[1] = "imagenet-1k".to_owned()), "offer.data.datasets[1]", "imagenet-1k"),
            (with(|o| site(o).datasets[1] = "a b".to_owned()), "offer.data.datasets[0]", "a b"),
            (with(|o| site(o).egress_mbits = 1 << 40), "offer.data.egress_mbits", "1099511627776"),
            (with(|o| site(o).egress_to[0].cluster = "E".to_owned()), "offer.data.egress_to[0].cluster", "E"),
            (
                with(|o| {
                    let twice = site(o).measured_from[0].clone();
                    site(o).measured_from.push(twice);
                }),
                "offer.data.measured_from[1].cluster",
                "atlas",
            ),
            (with(|o| o.deliveries = vec![1, 2, 1]), "offer.deliveries", "3"),
        ] {
            let refusal = parse(bad, &caller()).expect_err(field);
            assert_eq!((refusal.field.as_str(), refusal.value.as_str()), (field, value), "{refusal}");
        }
    }
}
