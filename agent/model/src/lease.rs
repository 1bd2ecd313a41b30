//! A lease as the broker describes it to its agents.

use comity_proto::v1;

use crate::delivery_kind::DeliveryKind;

/// How far a lease has come.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LeaseState {
    /// This version does not know it.
    #[default]
    Unknown,
    /// Placed; the peering is being set up.
    Placed,
    /// Both sides prepare.
    Connecting,
    /// Usable.
    Active,
    /// A side is silent; nothing is torn down.
    Suspect,
    /// Ends at a deadline, or once its work is saved.
    Reclaiming,
    /// Being taken down.
    Ending,
    /// Taken down on both sides.
    Ended,
}

impl LeaseState {
    /// Whether the lease is to exist on both sides.
    #[must_use]
    pub const fn is_wanted(self) -> bool {
        matches!(self, Self::Placed | Self::Connecting | Self::Active | Self::Suspect | Self::Reclaiming)
    }
}

impl From<v1::LeaseState> for LeaseState {
    fn from(state: v1::LeaseState) -> Self {
        match state {
            v1::LeaseState::Unspecified => Self::Unknown,
            v1::LeaseState::Placed => Self::Placed,
            v1::LeaseState::Connecting => Self::Connecting,
            v1::LeaseState::Active => Self::Active,
            v1::LeaseState::Suspect => Self::Suspect,
            v1::LeaseState::Reclaiming => Self::Reclaiming,
            v1::LeaseState::Ending => Self::Ending,
            v1::LeaseState::Ended => Self::Ended,
        }
    }
}

/// A lease. Times are in milliseconds since 1970.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Lease {
    /// "lease-N".
    pub id: String,
    /// "req-N".
    pub request: String,
    /// Tenant charged.
    pub tenant: String,
    /// Borrowing cluster.
    pub origin: String,
    /// Donor, nodes and devices.
    pub placement: Option<v1::Placement>,
    /// "peer-N".
    pub peering: String,
    /// How far it has come.
    pub state: LeaseState,
    /// Why it ended.
    pub end_reason: v1::EndReason,
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
    pub gpus: Option<v1::GpuDemand>,
    /// W3C trace context of its submission.
    pub traceparent: String,
    /// How it reaches the origin.
    pub delivery: DeliveryKind,
    /// Its reclaim, if there is one.
    pub reclaim: Option<v1::Reclaim>,
    /// The request's next lease; empty if there is none.
    pub moved_to: String,
}

impl From<v1::Lease> for Lease {
    fn from(lease: v1::Lease) -> Self {
        Self {
            state: lease.state().into(),
            end_reason: lease.end_reason(),
            delivery: lease.delivery().into(),
            id: lease.id,
            request: lease.request,
            tenant: lease.tenant,
            origin: lease.origin,
            placement: lease.placement,
            peering: lease.peering,
            fencing_token: lease.fencing_token,
            hold_until_ms: lease.hold_until_ms,
            expires_at_ms: lease.expires_at_ms,
            term_ms: lease.term_ms,
            donor_ready: lease.donor_ready,
            origin_ready: lease.origin_ready,
            message: lease.message,
            target_namespace: lease.target_namespace,
            gpus: lease.gpus,
            traceparent: lease.traceparent,
            reclaim: lease.reclaim,
            moved_to: lease.moved_to,
        }
    }
}
