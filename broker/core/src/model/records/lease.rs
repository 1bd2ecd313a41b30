//! Leases.

use comity_policy::{Kind, LeaseUse};
use comity_types::{
    ClassName, ClusterId, DataNeed, Delivery, EndReason, InstitutionId, LeaseId, LeaseState, PeeringId, RequestId,
    Side, TenantId, is_dns_label, namespace_name,
};
use serde::{Deserialize, Serialize};

use crate::model::demand::{GpuDemand, Topology};
use crate::model::meter::Meter;
use crate::model::placement::Placement;
use crate::model::reclaim::{Reclaim, ReclaimReason};
use crate::model::refusal::Refusal;
use crate::model::time::{Millis, Timestamp};

/// Field of a donor's report that names the namespace.
const DONOR_NAMESPACE: &str = "lease_report.ready.namespace";
/// Liqo's tenant namespace: this, and the id of the other cluster's Liqo.
const LIQO_TENANT_PREFIX: &str = "liqo-tenant-";

/// Progress of one side of a lease.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum SideState {
    /// Nothing reported.
    #[default]
    Pending,
    /// The side is prepared.
    Ready,
    /// The side has removed everything.
    Clean,
}

/// Capacity granted to a request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Lease {
    /// The request it serves.
    pub request: RequestId,
    /// The tenant charged for it.
    pub tenant: TenantId,
    /// Who submitted its request.
    pub submitted_by: String,
    /// Origin.
    pub origin: ClusterId,
    /// Donor, nodes and devices.
    pub placement: Placement,
    /// The peering it uses.
    pub peering: PeeringId,
    /// The GPU demand it serves.
    pub gpus: GpuDemand,
    /// The topology it satisfies.
    pub topology: Topology,
    /// Datasets that its work reads.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub data: Vec<DataNeed>,
    /// The purpose for which it reads them; empty for none.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub purpose: String,
    /// How the origin accesses it.
    pub delivery: Delivery,
    /// The GPU class it is charged to.
    pub class: ClassName,
    /// The tenant's institution at the time of the grant.
    pub institution: InstitutionId,
    /// The agreement it was granted under; `None` within one institution.
    pub agreement: Option<String>,
    /// Length of one term.
    pub term: Millis,
    /// Its state.
    pub state: LeaseState,
    /// Why it ends; set from `Ending` on.
    pub end_reason: Option<EndReason>,
    /// Strictly increasing per donor.
    pub fencing_token: u64,
    /// When it was placed.
    pub placed_at: Timestamp,
    /// When the hold ends.
    pub hold_until: Timestamp,
    /// When it ends at the latest, unless renewed: with its gang, or when the lease that it replaces would have. `None` if
    /// it has a term of its own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ends_by: Option<Timestamp>,
    /// Whether its GPU-time counts against quotas.
    pub meter: Meter,
    /// When it became active.
    pub active_at: Option<Timestamp>,
    /// Expiry unless renewed; set with `active_at`.
    pub expires_at: Option<Timestamp>,
    /// When both sides had reported clean, or the donor alone if the origin is evicted or suspended.
    pub ended_at: Option<Timestamp>,
    /// The donor's side.
    pub donor_side: SideState,
    /// The origin's side.
    pub origin_side: SideState,
    /// Namespace on the donor, set once, when it is made.
    pub donor_namespace: String,
    /// Namespace on the origin: holds the Secret, or the pods that may run on the virtual node.
    pub target_namespace: String,
    /// Secret on the origin, once written; empty if the delivery makes none.
    pub secret_name: String,
    /// W3C traceparent of its request's submission; empty if none.
    pub traceparent: String,
    /// The reclaim, from `Reclaiming` on. Kept if the lease ends by it.
    pub reclaim: Option<Reclaim>,
    /// When its origin last reported that its work is saved.
    pub checkpointed_at: Option<Timestamp>,
    /// The lease of the same request that it replaces.
    pub moved_from: Option<LeaseId>,
    /// The lease of the same request that replaces it.
    pub moved_to: Option<LeaseId>,
    /// Whether it adds members to a gang that was already running. Until it is active, its end affects no other lease.
    pub joins: bool,
    /// Idle time after which it is released: the shorter of its request's and policy's at the time of the grant.
    pub release_idle: Option<Millis>,
    /// Since when it has been idle, as its donor reports; `None` while work uses it.
    pub idle_since: Option<Timestamp>,
    /// When its end began.
    pub ending_at: Option<Timestamp>,
    /// Status message for people.
    pub message: String,
    /// Revision that last changed it.
    pub revision: u64,
}

/// What a lease waits for whose clusters are connected while neither side is ready; for people.
pub const WAITS_FOR_DONOR: &str = "the clusters are connected; the donor prepares";

impl Lease {
    /// The side that `cluster` is; `None` for a stranger.
    #[must_use]
    pub fn side_of(&self, cluster: &ClusterId) -> Option<Side> {
        let is_donor = || (*cluster == self.placement.donor).then_some(Side::Donor);
        (*cluster == self.origin).then_some(Side::Origin).or_else(is_donor)
    }

    /// Whether it occupies capacity on the donor: until the donor reports clean.
    #[must_use]
    pub fn occupies(&self) -> bool {
        self.donor_side != SideState::Clean && self.state != LeaseState::Ended
    }

    /// Whether it still takes capacity and will soon free it.
    pub(crate) fn departs(&self) -> bool {
        self.occupies() && matches!(self.state, LeaseState::Ending | LeaseState::Reclaiming)
    }

    /// What a lease waits for that is not active yet, once its clusters are connected; for people.
    #[must_use]
    pub fn waits_for(&self) -> &'static str {
        match (self.donor_side, self.origin_side) {
            (SideState::Ready, _) => "the donor is ready; the origin connects",
            (_, SideState::Ready) => "the origin is ready; the donor prepares",
            _ => WAITS_FOR_DONOR,
        }
    }

    /// Its next deadline, at which it ends by itself; `None` if it has none.
    #[must_use]
    pub fn due(&self) -> Option<Timestamp> {
        match self.state {
            LeaseState::Placed | LeaseState::Connecting => Some(self.hold_until),
            LeaseState::Active | LeaseState::Suspect => self.expires_at,
            LeaseState::Reclaiming => {
                let deadline = self.reclaim.as_ref().map(|reclaim| reclaim.deadline);
                deadline.into_iter().chain(self.expires_at).min()
            }
            LeaseState::Ending | LeaseState::Ended => None,
        }
    }

    /// The end of its term; of a lease that is not active yet, the latest one.
    pub(crate) fn term_end(&self) -> Timestamp {
        self.expires_at.or(self.ends_by).unwrap_or(self.hold_until.after(self.term))
    }

    /// Its latest end without renewal; `now` if that is over.
    pub(crate) fn latest_end(&self, now: Timestamp) -> Timestamp {
        let end = match self.state {
            // Whatever end it takes over, it may connect until its hold is over.
            LeaseState::Placed | LeaseState::Connecting => self.term_end().max(self.hold_until),
            LeaseState::Active | LeaseState::Suspect | LeaseState::Reclaiming => self.due().unwrap_or(now),
            LeaseState::Ending | LeaseState::Ended => now,
        };
        end.max(now)
    }

    /// Whether its request ends with it, whatever ends it: the user who submitted the request was revoked, or the lease
    /// is drained because of its origin.
    #[must_use]
    pub fn ends_its_request(&self) -> bool {
        self.reclaim.as_ref().is_some_and(|reclaim| {
            matches!(
                reclaim.reason,
                ReclaimReason::UserRevoked { .. } | ReclaimReason::Revoked { side: Side::Origin, .. }
            )
        })
    }

    /// When it is released because it is idle. Idle time counts while the lease is active, so both its clusters are
    /// heard and no reclaim is under way.
    #[must_use]
    pub fn idle_due(&self) -> Option<Timestamp> {
        let since = self.idle_since.filter(|_| self.state == LeaseState::Active)?;
        self.release_idle.map(|limit| since.after(limit))
    }

    /// Counts idle time from `now` on: until now its owner could not use the lease as usual.
    pub fn restart_idle_time(&mut self, now: Timestamp) {
        self.idle_since = self.idle_since.map(|_| now);
    }

    /// Refuses a name for its namespace on the donor that agents do not use, or other than the one it already has. `id`
    /// is its own, `origin_liqo_id` is that of the origin's Liqo, if known.
    pub(crate) fn check_donor_namespace(
        &self,
        id: LeaseId,
        origin_liqo_id: Option<&str>,
        name: &str,
    ) -> Result<(), Refusal> {
        let refused = |reason: &str, remedy: String| Err(Refusal::invalid(DONOR_NAMESPACE, name, reason, remedy));
        if !self.donor_namespace.is_empty() && self.donor_namespace != name {
            return refused("differs from what was reported", format!("report {} again", self.donor_namespace));
        }
        let known = match self.delivery {
            Delivery::Namespace => Some(namespace_name(id)),
            Delivery::VirtualNode => origin_liqo_id.map(|liqo_id| format!("{LIQO_TENANT_PREFIX}{liqo_id}")),
        };
        match known {
            Some(known) if known != name => refused("is not the namespace of this lease", format!("report {known}")),
            None if !(name.starts_with(LIQO_TENANT_PREFIX) && is_dns_label(name)) => {
                refused("is not a tenant's namespace of Liqo", format!("report {LIQO_TENANT_PREFIX}ID"))
            }
            _ => Ok(()),
        }
    }

    /// The documents that permit it, each of which says in `onWithdrawal` what becomes of it without them.
    pub(crate) fn permitted_by(&self) -> impl Iterator<Item = (Kind, &str)> {
        let agreement = self.agreement.as_deref().map(|agreement| (Kind::Agreement, agreement));
        let others = [
            (Kind::Tenant, self.tenant.as_str()),
            (Kind::GpuClass, self.class.as_str()),
            (Kind::Cluster, self.placement.donor.as_str()),
        ];
        let datasets = self.data.iter().map(|need| (Kind::Dataset, need.dataset.as_str()));
        others.into_iter().chain(agreement).chain(datasets)
    }

    /// The lease as policy limits count it.
    #[must_use]
    pub fn as_use(&self) -> LeaseUse<'_> {
        LeaseUse {
            tenant: self.tenant.as_str(),
            user: &self.submitted_by,
            institution: self.institution.as_str(),
            donor: self.placement.donor.as_str(),
            class: self.class.as_str(),
            agreement: self.agreement.as_deref(),
            gpus_milli: self.placement.milli(),
            replaced: self.moved_to.is_some(),
        }
    }
}
