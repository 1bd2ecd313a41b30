//! Where the policy comes from: the Git repository that the leader pulls, and what came of it.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use crate::model::time::{Millis, Timestamp};

/// The source of the policy, and what must outlive it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Provenance {
    /// The repository that the leader pulls, if there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source: Option<PolicySource>,
    /// The newest commit that came into force, by full id. Later ones descend from it, even after the source was set
    /// again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub commit: Option<String>,
    /// The first commit of its history that came into force.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub began: Option<String>,
    /// The digest of the artifact whose policy was in force at the last pull that found it so; `None` if that was none of a
    /// registry.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub artifact: Option<String>,
    /// Names of institutions that left the federation, and of their clusters, tenants and datasets, as
    /// `Cluster/ncc-main`. Only several maintainers give them to others.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub taken_names: BTreeSet<String>,
}

impl Provenance {
    /// Whether there is nothing to keep.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

/// A branch of a Git repository, or an artifact of a registry.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PolicySource {
    /// An `https://`, `ssh://` or `oci://` address without credentials, or an absolute path on each broker's machine.
    pub repository: String,
    /// The branch, without `refs/heads/`.
    pub branch: String,
    /// The folder with the policy; empty for the whole repository.
    pub folder: String,
    /// How often the leader pulls.
    pub interval: Millis,
    /// Who set it.
    pub set_by: String,
    /// When it was set.
    pub set_at: Timestamp,
    /// The head that the leader saw last.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub head: Option<String>,
    /// The digest of the artifact that the leader saw last, if the repository is one of a registry.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub artifact: Option<String>,
    /// When the leader last recorded a pull. It records changes at once, and otherwise once in a while.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pulled_at: Option<Timestamp>,
    /// Why the head is not in force.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failure: Option<PullFailure>,
}

/// Why a pull brought nothing into force. The last good bundle stays.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PullFailure {
    /// Stable code: `unreachable`, or that of the verdict.
    pub code: String,
    /// The commit to look at; empty if none was seen.
    pub commit: String,
    /// One sentence for people. Names no credentials.
    pub reason: String,
    /// How to fix the cause.
    pub remedy: String,
    /// Since when it has been so.
    pub since: Timestamp,
}
