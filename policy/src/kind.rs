//! The kinds of policy documents.

use std::fmt;

use serde::{Deserialize, Serialize};

/// The `apiVersion` of every document.
pub const API_VERSION: &str = "policy.comity.dev/v1";

/// The kind of a policy document.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Kind {
    /// The federation itself; exactly one per bundle.
    Federation,
    /// A legal member.
    Institution,
    /// The terms on which a cluster lends.
    Cluster,
    /// A team.
    Tenant,
    /// A tier of GPUs.
    GpuClass,
    /// Limits on a tenant or an institution.
    Quota,
    /// Permission for institutions to borrow from other institutions.
    Agreement,
    /// A named rank in the queue.
    PriorityClass,
    /// An entry of the catalogue from which people make requests.
    RequestTemplate,
    /// Named weekly windows.
    Schedule,
    /// GPUs of donors that are kept for one tenant during weekly windows.
    Reservation,
    /// A condition that denies, requires, warns or prefers.
    Rule,
    /// Where a dataset may go, and for what it may be read.
    Dataset,
}

impl Kind {
    /// All kinds, in display order.
    pub const ALL: [Self; 13] = [
        Self::Federation,
        Self::Institution,
        Self::Cluster,
        Self::Tenant,
        Self::GpuClass,
        Self::Quota,
        Self::Agreement,
        Self::PriorityClass,
        Self::RequestTemplate,
        Self::Schedule,
        Self::Reservation,
        Self::Rule,
        Self::Dataset,
    ];

    /// The kind as it appears in documents.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Federation => "Federation",
            Self::Institution => "Institution",
            Self::Cluster => "Cluster",
            Self::Tenant => "Tenant",
            Self::GpuClass => "GpuClass",
            Self::Quota => "Quota",
            Self::Agreement => "Agreement",
            Self::PriorityClass => "PriorityClass",
            Self::RequestTemplate => "RequestTemplate",
            Self::Schedule => "Schedule",
            Self::Reservation => "Reservation",
            Self::Rule => "Rule",
            Self::Dataset => "Dataset",
        }
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}
