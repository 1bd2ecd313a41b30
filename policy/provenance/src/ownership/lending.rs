//! Terms of lenders, and of owners of datasets, that name an institution which is removed.

use std::collections::BTreeSet;

use comity_policy::{Cluster, Dataset, Kind};

use super::Change;
use crate::documents::DocumentSpec;

impl Change<'_> {
    /// Whether a Cluster or Dataset document changes by nothing but the names of institutions, and of their tenants and
    /// clusters, that are removed. Otherwise one owner could keep an institution in the federation.
    pub(super) fn only_forgets_the_gone(&self, old: Option<&DocumentSpec>, new: Option<&DocumentSpec>) -> bool {
        let gone = |kind: Kind| {
            let were = self.before.iter().filter(move |(key, _)| key.kind == kind);
            were.filter(|(key, spec)| match spec {
                DocumentSpec::Tenant(tenant) => self.is_gone(&tenant.institution),
                _ => self.is_gone(&key.name),
            })
            .map(|(key, _)| key.name.clone())
            .collect::<BTreeSet<String>>()
        };
        let (institutions, tenants) = (gone(Kind::Institution), gone(Kind::Tenant));
        if institutions.is_empty() {
            return false;
        }
        match (old, new) {
            (Some(DocumentSpec::Cluster(old)), Some(DocumentSpec::Cluster(new))) => {
                without(old, &institutions, &tenants) == *new
            }
            (Some(DocumentSpec::Dataset(old)), Some(DocumentSpec::Dataset(new))) => {
                let clusters = institutions.iter().filter_map(|name| self.before.institution(name));
                let clusters = clusters.flat_map(|institution| &institution.clusters).collect();
                kept_from(old, &institutions, &clusters) == *new
            }
            _ => false,
        }
    }
}

/// Lending terms without some borrowers. A term that named no others ends: without names it would cover everybody.
fn without(cluster: &Cluster, institutions: &BTreeSet<String>, tenants: &BTreeSet<String>) -> Cluster {
    let mut cluster = cluster.clone();
    cluster.lends.retain_mut(|term| {
        let was_open = term.is_open();
        term.to_institutions.retain(|name| !institutions.contains(name));
        term.to_tenants.retain(|name| !tenants.contains(name));
        was_open || !term.is_open()
    });
    cluster
}

/// A dataset that may not go to some institutions and clusters. It may go nowhere if it could go to no others.
fn kept_from(dataset: &Dataset, institutions: &BTreeSet<String>, clusters: &BTreeSet<&String>) -> Dataset {
    let mut dataset = dataset.clone();
    dataset.to_institutions.retain(|name| !institutions.contains(name));
    dataset.to_clusters.retain(|name| !clusters.contains(name));
    dataset
}
