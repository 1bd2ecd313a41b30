//! Terms that name an institution which is removed.

use std::collections::BTreeSet;

use comity_policy::{Cluster, Kind};

use super::Change;
use crate::documents::DocumentSpec;

impl Change<'_> {
    /// Whether a Cluster document changes by nothing but the names of institutions and tenants that are removed with
    /// their institution. Otherwise one lender could keep an institution in the federation.
    pub(super) fn only_forgets_the_gone(&self, old: Option<&DocumentSpec>, new: Option<&DocumentSpec>) -> bool {
        let (Some(DocumentSpec::Cluster(old)), Some(DocumentSpec::Cluster(new))) = (old, new) else { return false };
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
        !institutions.is_empty() && without(old, &institutions, &tenants) == *new
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
