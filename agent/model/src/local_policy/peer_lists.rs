//! The clusters and institutions that a section of the policy accepts as the other side of a lease.

use std::collections::BTreeSet;

use super::is_allowed;

/// The four lists of a section. Denials are stronger; an empty list of allowed names has all.
#[derive(Clone, Copy, Debug)]
pub(super) struct PeerLists<'a> {
    /// The section's name in the configuration file.
    pub(super) section: &'static str,
    /// What this cluster does with the others: "lend to".
    pub(super) relation: &'static str,
    /// The others, as the settings call them: "Origins".
    pub(super) others: &'static str,
    pub(super) allowed: &'a BTreeSet<String>,
    pub(super) denied: &'a BTreeSet<String>,
    pub(super) allowed_institutions: &'a BTreeSet<String>,
    pub(super) denied_institutions: &'a BTreeSet<String>,
}

impl PeerLists<'_> {
    /// Checks a cluster and its institution.
    ///
    /// # Errors
    /// A sentence for the operator of the other cluster, naming the settings behind it.
    pub(super) fn check(&self, cluster: &str, institution: &str) -> Result<(), String> {
        let Self { section, relation, others, .. } = self;
        if self.denied.contains(cluster) || !is_allowed(self.allowed, cluster) {
            return Err(format!(
                "this cluster does not {relation} cluster {cluster} ({section}.allowed{others}, \
                 {section}.denied{others})"
            ));
        }
        if self.denied_institutions.contains(institution) || !is_allowed(self.allowed_institutions, institution) {
            return Err(format!(
                "this cluster does not {relation} institution {institution:?} ({section}.allowedInstitutions, \
                 {section}.deniedInstitutions)"
            ));
        }
        Ok(())
    }
}
