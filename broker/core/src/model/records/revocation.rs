//! Revocations: certificates that are void before they expire, evicted clusters and suspended institutions.
//!
//! The state counts revocations. A certificate carries the count at its issue, its *generation*. A revocation raises
//! the count and voids the subject's certificates of earlier generations. So no clock decides whether a certificate is
//! void, and one that was being issued during a revocation is void as well.

use std::collections::BTreeSet;

use comity_types::{ClusterId, LeaseTreatment, RequestId};
use serde::{Deserialize, Serialize};

use crate::model::lease::Lease;
use crate::model::time::Timestamp;

/// The certificates of a subject that are void.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Revocation {
    /// Certificates of earlier generations are void.
    pub void_before: u64,
    /// When it was revoked.
    pub at: Timestamp,
    /// Who revoked it.
    pub by: String,
}

/// The end of a cluster's membership, or the suspension of an institution.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Exclusion {
    /// Since when.
    pub since: Timestamp,
    /// Who decided it.
    pub by: String,
    /// Whether a maintainer decided it, so that only a maintainer may lift it.
    pub by_maintainer: bool,
    /// What becomes of the leases.
    pub leases: LeaseTreatment,
}

impl Exclusion {
    /// This decision on top of an earlier one, which goes on. A maintainer's decision takes the place of an operator's,
    /// and never the other way round.
    #[must_use]
    pub fn after(self, earlier: Option<&Self>) -> Self {
        let Some(earlier) = earlier else { return self };
        let decides = if self.by_maintainer && !earlier.by_maintainer { &self } else { earlier };
        let (by, by_maintainer) = (decides.by.clone(), decides.by_maintainer);
        Self { since: earlier.since, by, by_maintainer, leases: earlier.leases.max(self.leases) }
    }
}

/// What the revocation of a user ends, and what it leaves.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct UserRevocationEffects {
    /// Number of open invitations, for the user and made by the user, that are void.
    pub invitations: usize,
    /// Number of leases in force of the user's tenants that stay, with their tokens.
    pub leases: usize,
    /// What ends of the requests that the user submitted, if their leases are drained or stopped.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub own: Option<RevocationEffects>,
    /// Whether nobody is left who may invite the user again, who operates brokers.
    #[serde(default, skip_serializing_if = "is_false")]
    pub none_may_invite: bool,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
fn is_false(value: &bool) -> bool {
    !value
}

/// What a revocation ends.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RevocationEffects {
    /// Clusters that take no further part.
    pub clusters: Vec<ClusterId>,
    /// Number of leases in force that are treated as asked: of the clusters, on both sides, or of a user's requests.
    pub leases: usize,
    /// Number of such leases that are not in force yet, or whose gang has not started: these end at once.
    pub starting: usize,
    /// Number of waiting requests that are cancelled.
    pub requests: usize,
    /// Number of open invitations that are void: for the clusters, and of the institution's operators.
    #[serde(default, skip_serializing_if = "is_none_open")]
    pub invitations: usize,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
fn is_none_open(invitations: &usize) -> bool {
    *invitations == 0
}

impl RevocationEffects {
    /// Counts the leases of `clusters` by what happens to them. Those that are ending end in any case.
    pub(crate) fn of<'l>(clusters: Vec<ClusterId>, leases: impl Iterator<Item = &'l Lease>, requests: usize) -> Self {
        let leases: Vec<&Lease> = leases.collect();
        // With an initial lease that is not in force yet, the whole gang ends.
        let initial = leases.iter().filter(|lease| lease.state.is_held() && !lease.joins && lease.moved_from.is_none());
        let unstarted: BTreeSet<RequestId> = initial.map(|lease| lease.request).collect();
        let (mut in_force, mut starting) = (0, 0);
        for lease in leases {
            let is_active = lease.state.is_in_force();
            let ends_at_once = lease.state.is_held() || is_active && unstarted.contains(&lease.request);
            starting += usize::from(ends_at_once);
            in_force += usize::from(is_active && !ends_at_once);
        }
        Self { clusters, leases: in_force, starting, requests, invitations: 0 }
    }
}
