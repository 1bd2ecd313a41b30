//! Data locality: the datasets that requests need and clusters hold, and the transfer times between clusters.

use std::collections::{BTreeMap, BTreeSet};

use comity_types::{ClusterId, DATASET_NAME_REMEDY, DataNeed, is_dataset_name};
use serde::{Deserialize, Serialize};

use crate::model::limits::{MAX_AMOUNT, MAX_DATASETS_PER_REQUEST, MAX_DATASETS_PER_SITE, MAX_MBITS};
use crate::model::refusal::Refusal;

/// Assumed bandwidth of a link without any information, in Mbit/s.
pub const DEFAULT_MBITS: u64 = 1_000;

/// Datasets that a cluster holds, and its bandwidth to other clusters.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DataSite {
    /// Datasets by name.
    pub datasets: BTreeSet<String>,
    /// Mbit/s to other clusters; 0 if unknown.
    pub egress_mbits: u64,
    /// Mbit/s to particular clusters, which overrides `egress_mbits`.
    pub egress_mbits_to: BTreeMap<ClusterId, u64>,
    /// Mbit/s that its agent recently measured from other clusters, through their tunnels.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub measured_mbits_from: BTreeMap<ClusterId, u64>,
}

impl DataSite {
    /// Whether it contains no information.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// Mbit/s to another cluster as declared by this cluster's operator, above 0; `None` if undeclared.
    #[must_use]
    pub fn declared_mbits_to(&self, other: &ClusterId) -> Option<u64> {
        Some(self.egress_mbits_to.get(other).copied().unwrap_or(self.egress_mbits)).filter(|mbits| *mbits > 0)
    }

    /// Checks names and bounds.
    ///
    /// # Errors
    /// Refuses with field, value and remedy.
    pub fn check(&self) -> Result<(), Refusal> {
        if self.datasets.len() > MAX_DATASETS_PER_SITE {
            return Err(Refusal::invalid(
                "offer.data.datasets",
                self.datasets.len(),
                "datasets are too many",
                format!("name the {MAX_DATASETS_PER_SITE} that others ask for most"),
            ));
        }
        for (index, name) in self.datasets.iter().enumerate() {
            check_name(name, &format!("offer.data.datasets[{index}]"))?;
        }
        let lines =
            self.egress_mbits_to.iter().map(|(to, mbits)| (format!("offer.data.egress_to[{to}].mbits"), *mbits));
        let seen = self.measured_mbits_from.iter();
        let seen = seen.map(|(from, mbits)| (format!("offer.data.measured_from[{from}].mbits"), *mbits));
        for (field, mbits) in lines.chain(seen).chain([("offer.data.egress_mbits".to_owned(), self.egress_mbits)]) {
            if mbits > MAX_MBITS {
                return Err(Refusal::invalid(&field, mbits, "is too large", format!("use at most {MAX_MBITS} Mbit/s")));
            }
        }
        Ok(())
    }
}

/// One end of a link between clusters.
#[derive(Clone, Copy, Debug)]
pub struct LinkEnd<'a> {
    /// The cluster.
    pub cluster: &'a ClusterId,
    /// Its advertised datasets and bandwidth; `None` if it offers nothing.
    pub site: Option<&'a DataSite>,
}

/// Mbit/s from one cluster to another, above 0. A measurement is a lower bound of the link's bandwidth, so it overrides
/// a smaller declared number and replaces the default if none was declared.
#[must_use]
pub fn mbits_between(from: LinkEnd<'_>, to: LinkEnd<'_>) -> u64 {
    let declared = from.site.and_then(|site| site.declared_mbits_to(to.cluster));
    let seen = to.site.and_then(|site| site.measured_mbits_from.get(from.cluster)).copied().filter(|mbits| *mbits > 0);
    declared.max(seen).unwrap_or(DEFAULT_MBITS)
}

/// Checks the datasets that a request names.
pub(crate) fn check_needs(needs: &[DataNeed]) -> Result<(), Refusal> {
    if needs.len() > MAX_DATASETS_PER_REQUEST {
        return Err(Refusal::invalid(
            "spec.data",
            needs.len(),
            "datasets are too many",
            format!("name the {MAX_DATASETS_PER_REQUEST} largest"),
        ));
    }
    for (index, need) in needs.iter().enumerate() {
        check_name(&need.dataset, &format!("spec.data[{index}].dataset"))?;
        if need.mib == 0 || need.mib > MAX_AMOUNT {
            return Err(Refusal::invalid(
                &format!("spec.data[{index}].mib"),
                need.mib,
                "is out of range",
                format!("say how much of the dataset is read, 1 to {MAX_AMOUNT} MiB"),
            ));
        }
        if needs.iter().take(index).any(|other| other.dataset == need.dataset) {
            let field = format!("spec.data[{index}].dataset");
            return Err(Refusal::invalid(&field, &need.dataset, "comes twice", "name each dataset once"));
        }
    }
    Ok(())
}

fn check_name(name: &str, field: &str) -> Result<(), Refusal> {
    if !is_dataset_name(name) {
        return Err(Refusal::invalid(field, name, "is not the name of a dataset", DATASET_NAME_REMEDY));
    }
    Ok(())
}

/// Transfer time of an amount over a link in seconds, rounded down.
#[must_use]
pub fn seconds(mib: u64, mbits: u64) -> u64 {
    const BITS_PER_MIB: u128 = 8 << 20;
    let bits = u128::from(mib).saturating_mul(BITS_PER_MIB);
    u64::try_from(bits / (u128::from(mbits.max(1)) * 1_000_000)).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cluster(name: &str) -> ClusterId {
        ClusterId::parse(name, "cluster").expect("a label")
    }

    #[test]
    fn transfer_time_is_size_over_bandwidth() {
        // 150 GiB over 10 Gbit/s: 1,288 Gbit.
        assert_eq!(seconds(150 << 10, 10_000), 128);
        assert_eq!(seconds(0, 0), 0);
        assert_eq!(seconds(u64::MAX, 1), u64::MAX);
    }

    #[test]
    fn undeclared_links_have_the_default_bandwidth() {
        let (eos, atlas) = (cluster("eos"), cluster("atlas"));
        let home = cluster("home");
        let mut site = DataSite::default();
        let to = |site: &DataSite, other: &ClusterId| {
            let from = LinkEnd { cluster: &home, site: Some(site) };
            mbits_between(from, LinkEnd { cluster: other, site: None })
        };
        assert_eq!((to(&site, &eos), site.is_empty()), (DEFAULT_MBITS, true));
        site.egress_mbits = 10_000;
        site.egress_mbits_to.insert(eos.clone(), 100_000);
        assert_eq!((to(&site, &eos), to(&site, &atlas)), (100_000, 10_000));
    }

    #[test]
    fn measurements_raise_declared_and_default_bandwidth() {
        let (home, eos) = (cluster("home"), cluster("eos"));
        let between = |declared, seen| {
            let from = DataSite { egress_mbits: declared, ..DataSite::default() };
            let to = DataSite { measured_mbits_from: BTreeMap::from([(home.clone(), seen)]), ..DataSite::default() };
            let from = LinkEnd { cluster: &home, site: Some(&from) };
            mbits_between(from, LinkEnd { cluster: &eos, site: Some(&to) })
        };
        assert_eq!(between(10_000, 40_000), 40_000);
        assert_eq!(between(10_000, 400), 10_000, "it may just not have had more to carry");
        assert_eq!((between(0, 400), between(0, 40_000)), (400, 40_000));
        assert_eq!(between(0, 0), DEFAULT_MBITS);
    }

    #[test]
    fn needs_and_sites_are_checked() {
        let need = |dataset: &str, mib| DataNeed { dataset: dataset.to_owned(), mib };
        assert_eq!(check_needs(&[need("imagenet-1k", 1), need("doi:10.5281/zenodo.1", MAX_AMOUNT)]), Ok(()));
        for (needs, field) in [
            (vec![need("", 1)], "spec.data[0].dataset"),
            (vec![need("a b", 1)], "spec.data[0].dataset"),
            (vec![need("a", 1), need("b", 0)], "spec.data[1].mib"),
            (vec![need("a", 1), need("a", 2)], "spec.data[1].dataset"),
            ((0..=MAX_DATASETS_PER_REQUEST).map(|n| need(&format!("d{n}"), 1)).collect(), "spec.data"),
        ] {
            assert_eq!(check_needs(&needs).expect_err(field).field, field);
        }
        let site = DataSite { datasets: BTreeSet::from(["with space".to_owned()]), ..DataSite::default() };
        assert_eq!(site.check().expect_err("a space").field, "offer.data.datasets[0]");
        let site = DataSite { egress_mbits: MAX_MBITS + 1, ..DataSite::default() };
        assert_eq!(site.check().expect_err("too much").field, "offer.data.egress_mbits");
        let measured_mbits_from = BTreeMap::from([(cluster("eos"), MAX_MBITS + 1)]);
        let site = DataSite { measured_mbits_from, ..DataSite::default() };
        assert_eq!(site.check().expect_err("too much").field, "offer.data.measured_from[eos].mbits");
    }
}
