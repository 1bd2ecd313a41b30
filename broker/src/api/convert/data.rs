//! Converts data needs of requests and data sites of clusters.

use std::collections::{BTreeMap, BTreeSet};

use comity_core::Refusal;
use comity_core::data::DataSite;
use comity_core::limits::{MAX_DATASETS_PER_REQUEST, MAX_DATASETS_PER_SITE};
use comity_proto::v1;
use comity_types::{ClusterId, DataNeed};

/// Maximum network lines per site.
const MAX_LINES: usize = 1_024;

/// Parses data needs; `RequestSpec::check` validates them further.
pub(super) fn needs(needs: Vec<v1::DataNeed>) -> Result<Vec<DataNeed>, Refusal> {
    bounded("spec.data", needs.len(), MAX_DATASETS_PER_REQUEST)?;
    Ok(needs.into_iter().map(|need| DataNeed { dataset: need.dataset, mib: need.mib }).collect())
}

/// Converts to the API message.
pub(super) fn needs_to_proto(needs: &[DataNeed]) -> Vec<v1::DataNeed> {
    needs.iter().map(|need| v1::DataNeed { dataset: need.dataset.clone(), mib: need.mib }).collect()
}

/// Parses a data site; `Offer::check` validates it further.
pub(super) fn site(site: v1::DataSite) -> Result<DataSite, Refusal> {
    bounded("offer.data.datasets", site.datasets.len(), MAX_DATASETS_PER_SITE)?;
    bounded("offer.data.egress_to", site.egress_to.len(), MAX_LINES)?;
    bounded("offer.data.measured_from", site.measured_from.len(), MAX_LINES)?;
    let mut datasets = BTreeSet::new();
    for (index, dataset) in site.datasets.into_iter().enumerate() {
        if datasets.contains(&dataset) {
            return Err(twice(&format!("offer.data.datasets[{index}]"), &dataset));
        }
        datasets.insert(dataset);
    }
    let egress_mbits_to = lines("egress_to", site.egress_to.into_iter().map(|line| (line.cluster, line.mbits)))?;
    let seen = site.measured_from.into_iter().map(|line| (line.cluster, line.mbits));
    let measured_mbits_from = lines("measured_from", seen)?;
    Ok(DataSite { datasets, egress_mbits: site.egress_mbits, egress_mbits_to, measured_mbits_from })
}

/// Mbit/s by cluster.
fn lines(list: &str, lines: impl Iterator<Item = (String, u64)>) -> Result<BTreeMap<ClusterId, u64>, Refusal> {
    let mut by_cluster = BTreeMap::new();
    for (index, (name, mbits)) in lines.enumerate() {
        let field = format!("offer.data.{list}[{index}].cluster");
        let cluster = ClusterId::parse(&name, &field)?;
        if by_cluster.insert(cluster, mbits).is_some() {
            return Err(twice(&field, &name));
        }
    }
    Ok(by_cluster)
}

/// Converts to the API message; `None` if the cluster advertises no data.
pub(super) fn site_to_proto(site: &DataSite) -> Option<v1::DataSite> {
    let line = |(cluster, mbits): (&ClusterId, &u64)| v1::Egress { cluster: cluster.to_string(), mbits: *mbits };
    let seen = |(cluster, mbits): (&ClusterId, &u64)| v1::Ingress { cluster: cluster.to_string(), mbits: *mbits };
    (!site.is_empty()).then(|| v1::DataSite {
        datasets: site.datasets.iter().cloned().collect(),
        egress_mbits: site.egress_mbits,
        egress_to: site.egress_mbits_to.iter().map(line).collect(),
        measured_from: site.measured_mbits_from.iter().map(seen).collect(),
    })
}

fn bounded(field: &str, count: usize, most: usize) -> Result<(), Refusal> {
    if count > most {
        return Err(Refusal::invalid(field, count, "entries are too many", format!("name at most {most}")));
    }
    Ok(())
}

fn twice(field: &str, name: &str) -> Refusal {
    Refusal::invalid(field, name, "comes twice", "name each once")
}
