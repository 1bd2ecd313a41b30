//! A bundle: one version of all policy documents.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::compile;
use crate::device::DeviceFacts;
use crate::documents::{Agreement, Cluster, Document, Federation, GpuClass, Institution, PriorityClass, Quota, Tenant};
use crate::problem::{Problem, render_problems};
use crate::roles::Roles;
use crate::selector::device_context;

/// One policy file.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct SourceFile {
    /// Its path within the bundle, with `/` between folders.
    pub path: String,
    /// Its content.
    pub text: String,
}

/// All files of a bundle: what is replicated, and compiled on each replica.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct BundleSource {
    /// The files, in any order.
    pub files: Vec<SourceFile>,
    /// The Git commit they come from, if any.
    #[serde(default)]
    pub commit: Option<String>,
}

/// A checked bundle. Serialises as its [`BundleSource`] and is compiled again when it is read.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(into = "BundleSource", try_from = "BundleSource")]
pub struct Bundle {
    pub(crate) source: BundleSource,
    /// SHA-256 over the paths and contents of the files, in hex. The commit is not part of it.
    pub hash: String,
    /// The federation.
    pub federation: Document<Federation>,
    /// Institutions by name.
    pub institutions: BTreeMap<String, Document<Institution>>,
    /// Donor terms by cluster id.
    pub clusters: BTreeMap<String, Document<Cluster>>,
    /// Tenants by name.
    pub tenants: BTreeMap<String, Document<Tenant>>,
    /// GPU classes by name.
    pub classes: BTreeMap<String, Document<GpuClass>>,
    /// Quotas by name.
    pub quotas: BTreeMap<String, Document<Quota>>,
    /// Agreements by name.
    pub agreements: BTreeMap<String, Document<Agreement>>,
    /// Priority classes by name.
    pub priorities: BTreeMap<String, Document<PriorityClass>>,
    /// Which institution enrols each cluster.
    pub(crate) owners: BTreeMap<String, String>,
    /// Roles by user id.
    pub(crate) roles: BTreeMap<String, Roles>,
    /// Quotas that limit a tenant, directly or through its institution.
    pub(crate) quotas_of: BTreeMap<String, Vec<String>>,
    /// Agreements in which an institution may borrow.
    pub(crate) agreements_of: BTreeMap<String, Vec<String>>,
    /// Names of classes, the highest rank first, equal ranks by name.
    pub(crate) ranked: Vec<String>,
}

/// A bundle that does not compile.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the policy bundle does not compile\n{}", render_problems(.problems))]
pub struct InvalidBundle {
    /// All that is wrong with it.
    pub problems: Vec<Problem>,
}

/// Loads a bundle that comes from no commit.
///
/// # Errors
/// All problems of all files, by file and line.
pub fn load(files: Vec<SourceFile>) -> Result<Bundle, Vec<Problem>> {
    compile::compile(BundleSource { files, commit: None })
}

impl Bundle {
    /// Compiles a bundle. The result depends on the files only, not on their order.
    ///
    /// # Errors
    /// All problems of all files, by file and line.
    pub fn compile(source: &BundleSource) -> Result<Self, Vec<Problem>> {
        compile::compile(source.clone())
    }

    /// The files of the bundle, by path.
    #[must_use]
    pub fn source(&self) -> &BundleSource {
        &self.source
    }

    /// The Git commit the files come from.
    #[must_use]
    pub fn commit(&self) -> Option<&str> {
        self.source.commit.as_deref()
    }

    /// The number of documents.
    #[must_use]
    pub fn document_count(&self) -> usize {
        1 + self.institutions.len()
            + self.clusters.len()
            + self.tenants.len()
            + self.classes.len()
            + self.quotas.len()
            + self.agreements.len()
            + self.priorities.len()
    }

    /// The institution that may enrol a cluster; `None` if nobody may.
    #[must_use]
    pub fn institution_of_cluster(&self, cluster: &str) -> Option<&str> {
        self.owners.get(cluster).map(String::as_str)
    }

    /// All clusters that may be enrolled, with their institutions.
    pub fn enrollable_clusters(&self) -> impl Iterator<Item = (&str, &str)> {
        self.owners.iter().map(|(cluster, institution)| (cluster.as_str(), institution.as_str()))
    }

    /// The priority class of requests that name none.
    #[must_use]
    pub fn default_priority(&self) -> Option<&str> {
        self.priorities.values().find(|class| class.spec.default).map(|class| class.name.as_str())
    }

    /// The value of a priority class: 0 for none, and for one that does not exist any more.
    #[must_use]
    pub fn priority_value(&self, class: Option<&str>) -> u32 {
        class.and_then(|class| self.priorities.get(class)).map_or(0, |class| class.spec.value)
    }

    /// Notice before a lease on this cluster is reclaimed, in milliseconds.
    #[must_use]
    pub fn reclaim_grace_ms(&self, cluster: &str) -> u64 {
        self.clusters
            .get(cluster)
            .and_then(|cluster| cluster.spec.reclaim_grace_ms)
            .unwrap_or(self.federation.spec.defaults.reclaim_grace_ms)
    }

    /// Whether a device is of a class. A class that does not exist has no devices.
    #[must_use]
    pub fn class_matches(&self, class: &str, device: &DeviceFacts) -> bool {
        self.classes.get(class).is_some_and(|class| class.spec.selector.matches(device))
    }

    /// The class a device belongs to: of those that select it the one with the highest rank, of equal ranks the first
    /// by name.
    #[must_use]
    pub fn class_of(&self, device: &DeviceFacts) -> Option<&str> {
        self.classes_of(device).into_iter().next()
    }

    /// All classes that select a device, the highest rank first. Cheaper than asking for each class.
    #[must_use]
    pub fn classes_of(&self, device: &DeviceFacts) -> Vec<&str> {
        let context = device_context(device);
        self.ranked
            .iter()
            .filter(|name| self.classes.get(*name).is_some_and(|class| class.spec.selector.matches_in(&context)))
            .map(String::as_str)
            .collect()
    }

    /// What a user may do; nothing, if no document names the id.
    #[must_use]
    pub fn roles_of(&self, spiffe_id: &str) -> Roles {
        self.roles.get(spiffe_id).cloned().unwrap_or_default()
    }
}

impl PartialEq for Bundle {
    fn eq(&self, other: &Self) -> bool {
        self.source == other.source
    }
}

impl Eq for Bundle {}

impl From<Bundle> for BundleSource {
    fn from(bundle: Bundle) -> Self {
        bundle.source
    }
}

impl TryFrom<BundleSource> for Bundle {
    type Error = InvalidBundle;

    fn try_from(source: BundleSource) -> Result<Self, InvalidBundle> {
        compile::compile(source).map_err(|problems| InvalidBundle { problems })
    }
}
