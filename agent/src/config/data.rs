//! The section `data` of the agent's configuration.

use std::collections::{BTreeMap, BTreeSet};

use comity_agent_model::settings::SettingChecks;
use comity_proto::v1;
use comity_types::{DATASET_NAME_REMEDY, is_dataset_name};
use serde::{Deserialize, Serialize};

/// Most datasets in an offer.
const MAX_DATASETS: usize = 1_024;
/// Highest bandwidth in Mbit/s.
const MAX_MBITS: u64 = 100_000_000;

/// Datasets in this cluster, and its bandwidth to others. The broker places work near its data.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct DataSettings {
    /// Names of datasets, as agreed among institutions.
    pub datasets: BTreeSet<String>,
    /// Measured bandwidth to other clusters in Mbit/s (perfSONAR, iperf3); 0: unknown, counts as 1,000.
    pub egress_mbits: u64,
    /// Bandwidth to particular clusters in Mbit/s, if different.
    pub egress_mbits_to: BTreeMap<String, u64>,
    /// Whether the offer includes the rates measured in the fabric's tunnels.
    pub tell_measured: bool,
}

impl Default for DataSettings {
    fn default() -> Self {
        Self { datasets: BTreeSet::new(), egress_mbits: 0, egress_mbits_to: BTreeMap::new(), tell_measured: true }
    }
}

impl DataSettings {
    pub(super) fn check(&self, checks: &mut SettingChecks) {
        if self.datasets.len() > MAX_DATASETS {
            let reason = format!("name the {MAX_DATASETS} that others request most");
            checks.refuse("data.datasets", self.datasets.len(), reason);
        }
        if let Some(name) = self.datasets.iter().find(|name| !is_dataset_name(name)) {
            checks.refuse("data.datasets", name, DATASET_NAME_REMEDY);
        }
        if self.egress_mbits > MAX_MBITS {
            checks.refuse("data.egressMbits", self.egress_mbits, format!("use at most {MAX_MBITS} Mbit/s"));
        }
        if let Some((to, mbits)) = self.egress_mbits_to.iter().find(|(_, mbits)| !(1..=MAX_MBITS).contains(*mbits)) {
            checks.refuse("data.egressMbitsTo", format!("{to}: {mbits}"), format!("use 1 to {MAX_MBITS} Mbit/s"));
        }
        if let Some(name) = self.egress_mbits_to.keys().find(|name| !comity_types::is_dns_label(name)) {
            checks.refuse("data.egressMbitsTo", name, "name clusters of the federation, as in polytech-campus");
        }
    }

    /// The data section of an offer; `None` if nothing is configured.
    #[must_use]
    pub fn site(&self) -> Option<v1::DataSite> {
        let line = |(cluster, mbits): (&String, &u64)| v1::Egress { cluster: cluster.clone(), mbits: *mbits };
        let says_something = !self.datasets.is_empty() || self.egress_mbits > 0 || !self.egress_mbits_to.is_empty();
        says_something.then(|| v1::DataSite {
            datasets: self.datasets.iter().cloned().collect(),
            egress_mbits: self.egress_mbits,
            egress_to: self.egress_mbits_to.iter().map(line).collect(),
            measured_from: Vec::new(),
        })
    }
}
