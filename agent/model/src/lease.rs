//! A lease as the broker describes it to its agents.

pub mod lease_id;
pub mod placement;
pub mod reclaim;
pub mod target_namespace;

use comity_proto::v1;
use comity_types::{ClusterId, DataNeed, Delivery, EndReason, InvalidId, LeaseId, LeaseState, PeeringId, RequestId};

use self::placement::Placement;
use self::reclaim::Reclaim;
use crate::gpu_demand::GpuDemand;

/// A lease. Times are in milliseconds since 1970.
#[derive(Clone, Debug, PartialEq)]
pub struct Lease {
    /// Its id.
    pub id: LeaseId,
    /// The request that it serves.
    pub request: RequestId,
    /// Tenant charged.
    pub tenant: String,
    /// GPU class by which policy permits it; empty if the broker does not say.
    pub class: String,
    /// Datasets that its work reads.
    pub data: Vec<DataNeed>,
    /// The purpose for which it reads them; empty for none.
    pub purpose: String,
    /// Borrowing cluster.
    pub origin: ClusterId,
    /// Donor, nodes and devices.
    pub placement: Option<Placement>,
    /// The peering that carries it.
    pub peering: PeeringId,
    /// Its state; `None` if this version does not know it.
    pub state: Option<LeaseState>,
    /// Why it ends, once it does and if this version knows it.
    pub end_reason: Option<EndReason>,
    /// Its fencing token.
    pub fencing_token: u64,
    /// Until when its capacity is held before it is active.
    pub hold_until_ms: u64,
    /// When it ends unless renewed; 0 before it is active.
    pub expires_at_ms: u64,
    /// Length of one term in milliseconds.
    pub term_ms: u64,
    /// Whether the donor reported it ready.
    pub donor_ready: bool,
    /// Whether the origin reported it ready.
    pub origin_ready: bool,
    /// Its state, for people.
    pub message: String,
    /// Namespace on the origin for its kubeconfig or pods.
    pub target_namespace: String,
    /// The requested capacity.
    pub gpus: Option<GpuDemand>,
    /// W3C trace context of its submission.
    pub traceparent: String,
    /// How it reaches the origin.
    pub delivery: Delivery,
    /// Its reclaim, if there is one.
    pub reclaim: Option<Reclaim>,
    /// The request's next lease.
    pub moved_to: Option<LeaseId>,
    /// Idle time after which the broker releases it; 0: never.
    pub release_idle_ms: u64,
    /// Since when it has been idle, in log time, as the broker knows it; 0: it is in use.
    pub idle_since_ms: u64,
}

impl Lease {
    /// A lease about which nothing but its parties is known.
    #[must_use]
    pub fn new(id: LeaseId, request: RequestId, origin: ClusterId, peering: PeeringId) -> Self {
        Self {
            id,
            request,
            tenant: String::new(),
            class: String::new(),
            data: Vec::new(),
            purpose: String::new(),
            origin,
            placement: None,
            peering,
            state: None,
            end_reason: None,
            fencing_token: 0,
            hold_until_ms: 0,
            expires_at_ms: 0,
            term_ms: 0,
            donor_ready: false,
            origin_ready: false,
            message: String::new(),
            target_namespace: String::new(),
            gpus: None,
            traceparent: String::new(),
            delivery: Delivery::default(),
            reclaim: None,
            moved_to: None,
            release_idle_ms: 0,
            idle_since_ms: 0,
        }
    }

    /// When the broker releases it because it is idle, in log time; `None` while it is in use or may stay idle.
    #[must_use]
    pub fn idle_release_ms(&self) -> Option<u64> {
        let is_counted = self.state == Some(LeaseState::Active) && self.release_idle_ms > 0 && self.idle_since_ms > 0;
        is_counted.then(|| self.idle_since_ms.saturating_add(self.release_idle_ms))
    }

    /// Whether it is to exist on both sides.
    #[must_use]
    pub fn is_wanted(&self) -> bool {
        self.state.is_some_and(LeaseState::is_wanted)
    }
}

impl TryFrom<v1::Lease> for Lease {
    type Error = InvalidId;

    fn try_from(lease: v1::Lease) -> Result<Self, InvalidId> {
        let moved_to = Some(lease.moved_to.as_str()).filter(|next| !next.is_empty());
        Ok(Self {
            moved_to: moved_to.map(|next| LeaseId::parse(next, "lease.moved_to")).transpose()?,
            state: lease.state().try_into().ok(),
            end_reason: lease.end_reason().try_into().ok(),
            delivery: lease.delivery().try_into().unwrap_or_default(),
            id: LeaseId::parse(&lease.id, "lease.id")?,
            request: RequestId::parse(&lease.request, "lease.request")?,
            tenant: lease.tenant,
            class: lease.class,
            data: DataNeed::parse_all(lease.data.into_iter().map(|need| (need.dataset, need.mib)), "lease.data")?,
            purpose: lease.purpose,
            origin: ClusterId::parse(&lease.origin, "lease.origin")?,
            placement: lease.placement.map(Placement::try_from).transpose()?,
            peering: PeeringId::parse(&lease.peering, "lease.peering")?,
            fencing_token: lease.fencing_token,
            hold_until_ms: lease.hold_until_ms,
            expires_at_ms: lease.expires_at_ms,
            term_ms: lease.term_ms,
            donor_ready: lease.donor_ready,
            origin_ready: lease.origin_ready,
            message: lease.message,
            target_namespace: lease.target_namespace,
            gpus: lease.gpus.map(GpuDemand::from),
            traceparent: lease.traceparent,
            reclaim: lease.reclaim.map(Reclaim::from),
            release_idle_ms: lease.release_idle_ms,
            idle_since_ms: lease.idle_since_ms,
        })
    }
}
