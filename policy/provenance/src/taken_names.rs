//! Names that stay taken after their institution left: its own, and those of its clusters, tenants and datasets.
//!
//! Whoever got the name of a cluster would get the cluster: its agent and its certificate live on.

use std::collections::BTreeSet;

use comity_policy::{Bundle, Kind};

use crate::documents::{DocumentKey, DocumentSpec, Documents};

/// A name as it is kept: `Cluster/ncc-main`.
pub(crate) fn taken_name(kind: Kind, name: &str) -> String {
    format!("{kind}/{name}")
}

/// All names of an institution.
pub(crate) fn names_of(institution: &str, documents: &Documents) -> BTreeSet<String> {
    let of_clusters = documents.institution(institution).into_iter().flat_map(|it| &it.clusters);
    let of_clusters = of_clusters.map(|name| taken_name(Kind::Cluster, name));
    let of_documents = documents.iter().filter_map(|(key, spec)| {
        let owner = match spec {
            DocumentSpec::Cluster(cluster) => &cluster.institution,
            DocumentSpec::Tenant(tenant) => &tenant.institution,
            DocumentSpec::Dataset(dataset) => &dataset.institution,
            _ => return None,
        };
        (owner == institution).then(|| taken_name(key.kind, &key.name))
    });
    of_clusters.chain(of_documents).chain([taken_name(Kind::Institution, institution)]).collect()
}

/// The names that a document gives to its owner.
pub(crate) fn names_given_by(key: &DocumentKey, spec: &DocumentSpec) -> BTreeSet<String> {
    let clusters = match spec {
        DocumentSpec::Institution(institution) => Some(&institution.clusters),
        _ => None,
    };
    let clusters = clusters.into_iter().flatten().map(|name| taken_name(Kind::Cluster, name));
    let own = match key.kind {
        Kind::Institution | Kind::Cluster | Kind::Tenant | Kind::Dataset => Some(taken_name(key.kind, &key.name)),
        _ => None,
    };
    clusters.chain(own).collect()
}

/// The names that are taken after a bundle that nobody signs.
#[must_use]
pub fn taken_after(before: &BTreeSet<String>, in_force: &Bundle, next: &Bundle) -> BTreeSet<String> {
    let (old, new) = (Documents::of(in_force), Documents::of(next));
    let gone = in_force.institutions.keys().filter(|name| !next.institutions.contains_key(*name));
    let mut taken: BTreeSet<String> =
        gone.flat_map(|name| names_of(name, &old)).chain(before.iter().cloned()).collect();
    for given in new.iter().flat_map(|(key, spec)| names_given_by(key, spec)) {
        taken.remove(&given);
    }
    taken
}
