//! Offers: the capacity that clusters lend.

use comity_proto::v1;
use comity_types::Delivery;
use serde::Serialize;

use super::device::{Device, Node};
use super::list::Row;
use super::value::{Known, non_empty};
use crate::output::{Answer, Column, Sheet, columns};
use crate::units::{age, format_cpu, format_memory, format_milli};

/// Summary of one cluster's offer.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Offer {
    /// Cluster id.
    pub cluster: String,
    /// Institution that owns it.
    pub institution: String,
    /// Whether its agent is connected; the scheduler skips offers of silent agents.
    pub connected: bool,
    /// Number of nodes.
    pub nodes: u32,
    /// Deliveries that it supports now.
    pub deliveries: Vec<Known<Delivery>>,
    /// Data that it holds; none if unknown.
    pub data: Option<DataSite>,
    /// A summary per GPU class.
    pub classes: Vec<ClassSummary>,
    /// Generation of the offer.
    pub generation: u64,
}

/// Datasets of a cluster and its bandwidth to other clusters.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct DataSite {
    /// Names of the datasets.
    pub datasets: Vec<String>,
    /// Mbit/s to other clusters; 0 if unknown.
    pub egress_mbits: u64,
    /// Mbit/s to particular clusters.
    pub egress_to: Vec<Egress>,
    /// Mbit/s measured from other clusters recently.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub measured_from: Vec<Egress>,
}

/// Bandwidth to or from one cluster.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Egress {
    /// The other cluster.
    pub cluster: String,
    /// Bandwidth in Mbit/s.
    pub mbits: u64,
}

impl DataSite {
    /// For people: `imagenet-1k, laion; 10000 Mbit/s to others, 100000 to eos; at least 940 measured from atlas`.
    fn summary(&self) -> String {
        let lines = self.egress_to.iter().map(|line| format!(", {} to {}", line.mbits, line.cluster));
        let others = match self.egress_mbits {
            0 => "unknown Mbit/s to others".to_owned(),
            mbits => format!("{mbits} Mbit/s to others"),
        };
        let datasets = if self.datasets.is_empty() { "none".to_owned() } else { self.datasets.join(", ") };
        let seen = self.measured_from.iter().map(|line| format!("{} measured from {}", line.mbits, line.cluster));
        let seen: Vec<String> = seen.collect();
        let seen = if seen.is_empty() { String::new() } else { format!("; at least {}", seen.join(", ")) };
        format!("{datasets}; {others}{}{seen}", lines.collect::<String>())
    }
}

impl From<v1::DataSite> for DataSite {
    fn from(site: v1::DataSite) -> Self {
        let egress = |line: v1::Egress| Egress { cluster: line.cluster, mbits: line.mbits };
        let ingress = |line: v1::Ingress| Egress { cluster: line.cluster, mbits: line.mbits };
        Self {
            datasets: site.datasets,
            egress_mbits: site.egress_mbits,
            egress_to: site.egress_to.into_iter().map(egress).collect(),
            measured_from: site.measured_from.into_iter().map(ingress).collect(),
        }
    }
}

/// One GPU class of an offer.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ClassSummary {
    /// Class name; none for devices without a class.
    pub class: Option<String>,
    /// Number of devices.
    pub devices: u32,
    /// Thousandths of GPUs that could be lent now.
    pub free_milli: u64,
    /// Thousandths of GPUs that are lent.
    pub lent_milli: u64,
    /// Thousandths of GPUs that local work uses.
    pub local_milli: u64,
    /// Devices excluded because they or their nodes are unhealthy or in quarantine.
    pub unhealthy: u32,
}

impl From<v1::OfferSummary> for Offer {
    fn from(offer: v1::OfferSummary) -> Self {
        let class = |class: v1::ClassSummary| ClassSummary {
            class: non_empty(class.class),
            devices: class.devices,
            free_milli: class.free_milli,
            lent_milli: class.lent_milli,
            local_milli: class.local_milli,
            unhealthy: class.unhealthy,
        };
        Self {
            deliveries: offer.deliveries().map(|delivery| delivery.try_into().into()).collect(),
            data: offer.data.map(DataSite::from),
            cluster: offer.cluster,
            institution: offer.institution,
            connected: offer.connected,
            nodes: offer.nodes,
            classes: offer.classes.into_iter().map(class).collect(),
            generation: offer.generation,
        }
    }
}

impl Row for Offer {
    const HEADS: &'static [Column] = &[
        Column::text("cluster"),
        Column::text("institution").rank(5),
        Column::state("state").rank(2),
        Column::text("delivers").rank(6),
        Column::number("nodes").rank(4),
        Column::text("class"),
        Column::number("devices").rank(1),
        Column::number("free"),
        Column::number("lent"),
        Column::number("local"),
        Column::number("unhealthy").rank(3),
    ];
    const NONE: &'static str = "no cluster has an offer yet";

    fn key(&self) -> &str {
        &self.cluster
    }

    fn rows(&self, _now_ms: u64) -> Vec<Vec<String>> {
        let state = if self.connected { "connected" } else { "silent" };
        let deliveries: Vec<String> = self.deliveries.iter().map(Known::to_string).collect();
        let head = [
            self.cluster.clone(),
            self.institution.clone(),
            state.to_owned(),
            deliveries.join(","),
            self.nodes.to_string(),
        ];
        let blank = |count: usize| vec!["-".to_owned(); count];
        if self.classes.is_empty() {
            return vec![[head.to_vec(), blank(6)].concat()];
        }
        let row = |class: &ClassSummary| {
            let mut row = head.to_vec();
            row.push(class.class.clone().unwrap_or_else(|| "(none)".to_owned()));
            row.push(class.devices.to_string());
            row.extend([class.free_milli, class.lent_milli, class.local_milli].map(format_milli));
            row.push(class.unhealthy.to_string());
            row
        };
        self.classes.iter().map(row).collect()
    }
}

/// Whether a device can take new work, or why not.
fn device_state(node: &Node, device: &Device, now_ms: u64) -> String {
    match (&device.fault, device.quarantined_until_ms) {
        _ if !node.ready => "not ready".to_owned(),
        _ if !node.schedulable => "cordoned".to_owned(),
        (Some(fault), _) if !device.healthy => fault.clone(),
        (None, _) if !device.healthy => "unhealthy".to_owned(),
        (_, Some(until)) => format!("quarantined, ends {}", age(until, now_ms)),
        (Some(fault), None) => fault.clone(),
        (None, None) => "healthy".to_owned(),
    }
}

/// One offer with its nodes.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct OfferDetail {
    /// Summary of the offer.
    #[serde(flatten)]
    pub summary: Offer,
    /// The nodes; `null` if the caller may see only the summary.
    pub node_details: Option<Vec<Node>>,
}

impl Answer for OfferDetail {
    fn table(&self, now_ms: u64) -> Sheet {
        let summary = columns(Offer::HEADS, self.summary.rows(now_ms), Offer::NONE);
        let data = self.summary.data.as_ref().map(|data| format!("Data: {}.", data.summary()));
        let summary = match data {
            Some(data) => summary.gap().paragraph(data),
            None => summary,
        };
        let Some(nodes) = &self.node_details else {
            let who = "operators of its institution and maintainers of the federation";
            return summary.gap().paragraph(format!("Only {who} may see its nodes and devices."));
        };
        let mut rows = Vec::new();
        for node in nodes {
            for device in &node.devices {
                rows.push(vec![
                    node.id.clone(),
                    device.index.to_string(),
                    device.product_name.clone(),
                    format_memory(device.memory_mib),
                    device.cuda_compute_capability.clone(),
                    device.sharing.clone(),
                    device.isolation.to_owned(),
                    device_state(node, device, now_ms),
                    format_milli(u64::from(device.local_use_milli)),
                    format_cpu(node.cpu_milli),
                    format_memory(node.memory_mib),
                    if node.enforces.is_empty() { "-".to_owned() } else { node.enforces.join(",") },
                ]);
            }
        }
        let heads = [
            Column::text("node"),
            Column::number("device"),
            Column::text("product").rank(1),
            Column::number("memory").rank(3),
            Column::number("cc").rank(6),
            Column::text("sharing").rank(2),
            Column::text("isolation").rank(7),
            Column::state("state"),
            Column::number("local"),
            Column::number("node cpu").rank(4),
            Column::number("node memory").rank(5),
            Column::text("enforces").rank(8),
        ];
        summary.gap().then(columns(&heads, rows, "no devices"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_quarantined_device_is_not_healthy() {
        let device = |index| v1::Device { index, healthy: true, ..v1::Device::default() };
        let node = v1::Node {
            id: "n1".to_owned(),
            schedulable: true,
            devices: vec![device(0), device(1)],
            ..v1::Node::default()
        };
        let of = |device| [v1::Quarantine { node: "n1".to_owned(), device, until_ms: 600_000 }];
        let states = |quarantines: &[v1::Quarantine]| {
            let node = Node::from(node.clone()).with_quarantines(quarantines);
            node.devices.iter().map(|device| device_state(&node, device, 0)).collect::<Vec<_>>()
        };
        assert_eq!(states(&[]), ["healthy", "healthy"]);
        assert_eq!(states(&of(Some(1))), ["healthy", "quarantined, ends in 10m"]);
        assert_eq!(states(&of(None)), ["quarantined, ends in 10m"; 2]);
    }
}
