//! Leases.

use comity_proto::v1;
use serde::Serialize;

use super::list::Row;
use super::placement::Placement;
use super::spec::Gpus;
use super::{text, time};
use crate::output::{Answer, fields};
use crate::units::{age, format_duration};

/// Where a lease stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum LeaseState {
    /// A state that this version of `comity` does not know.
    Unknown,
    /// Capacity is held.
    Placed,
    /// The clusters shake hands.
    Connecting,
    /// The origin holds a working credential.
    Active,
    /// One side is silent.
    Suspect,
    /// Both sides take it down.
    Ending,
    /// Both sides are clean.
    Ended,
}

impl LeaseState {
    /// As in JSON.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Unknown => "unknown",
            Self::Placed => "placed",
            Self::Connecting => "connecting",
            Self::Active => "active",
            Self::Suspect => "suspect",
            Self::Ending => "ending",
            Self::Ended => "ended",
        }
    }
}

/// A lease.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Lease {
    /// "lease-N".
    pub id: String,
    /// Request it serves.
    pub request: String,
    /// Tenant.
    pub tenant: String,
    /// Origin.
    pub origin: String,
    /// Donor.
    pub donor: Option<String>,
    /// Where it is.
    pub placement: Option<Placement>,
    /// What was asked for.
    pub gpus: Gpus,
    /// Peering it runs over.
    pub peering: Option<String>,
    /// Where it stands.
    pub state: LeaseState,
    /// Why it ends: `released`, `expired`, `cancelled`, `hold-expired`, `donor-failed`, `origin-failed`.
    pub end_reason: Option<&'static str>,
    /// What is waited for, or what went wrong.
    pub message: Option<String>,
    /// Whether the donor's side is prepared.
    pub donor_ready: bool,
    /// Whether the origin reached the donor.
    pub origin_ready: bool,
    /// Namespace on the donor.
    pub donor_namespace: Option<String>,
    /// Namespace on the origin that holds the Secret.
    pub target_namespace: Option<String>,
    /// The Secret with the kubeconfig.
    pub secret_name: Option<String>,
    /// Length of one term.
    pub term_ms: u64,
    /// When it was placed.
    pub placed_at_ms: Option<u64>,
    /// When the hold ends if it is not active by then.
    pub hold_until_ms: Option<u64>,
    /// When it became active.
    pub active_at_ms: Option<u64>,
    /// When it ends unless renewed.
    pub expires_at_ms: Option<u64>,
    /// When both sides were clean.
    pub ended_at_ms: Option<u64>,
    /// Fencing token.
    pub fencing_token: u64,
    /// Revision that last changed it.
    pub revision: u64,
}

impl From<v1::Lease> for Lease {
    fn from(lease: v1::Lease) -> Self {
        let state = match lease.state() {
            v1::LeaseState::Unspecified => LeaseState::Unknown,
            v1::LeaseState::Placed => LeaseState::Placed,
            v1::LeaseState::Connecting => LeaseState::Connecting,
            v1::LeaseState::Active => LeaseState::Active,
            v1::LeaseState::Suspect => LeaseState::Suspect,
            v1::LeaseState::Ending => LeaseState::Ending,
            v1::LeaseState::Ended => LeaseState::Ended,
        };
        let end_reason = match lease.end_reason() {
            v1::EndReason::Unspecified => None,
            v1::EndReason::Released => Some("released"),
            v1::EndReason::Expired => Some("expired"),
            v1::EndReason::Cancelled => Some("cancelled"),
            v1::EndReason::HoldExpired => Some("hold-expired"),
            v1::EndReason::DonorFailed => Some("donor-failed"),
            v1::EndReason::OriginFailed => Some("origin-failed"),
        };
        Self {
            id: lease.id,
            request: lease.request,
            tenant: lease.tenant,
            origin: lease.origin,
            donor: lease.placement.as_ref().map(|placement| placement.donor.clone()),
            placement: lease.placement.map(Placement::from),
            gpus: lease.gpus.into(),
            peering: text(lease.peering),
            state,
            end_reason,
            message: text(lease.message),
            donor_ready: lease.donor_ready,
            origin_ready: lease.origin_ready,
            donor_namespace: text(lease.donor_namespace),
            target_namespace: text(lease.target_namespace),
            secret_name: text(lease.secret_name),
            term_ms: lease.term_ms,
            placed_at_ms: time(lease.placed_at_ms),
            hold_until_ms: time(lease.hold_until_ms),
            active_at_ms: time(lease.active_at_ms),
            expires_at_ms: time(lease.expires_at_ms),
            ended_at_ms: time(lease.ended_at_ms),
            fencing_token: lease.fencing_token,
            revision: lease.revision,
        }
    }
}

impl Lease {
    fn standing(&self) -> String {
        match self.end_reason {
            Some(reason) => format!("{} ({reason})", self.state.as_str()),
            None => self.state.as_str().to_owned(),
        }
    }
}

impl Row for Lease {
    const HEADS: &'static [&'static str] =
        &["lease", "request", "tenant", "origin", "donor", "gpus", "state", "expires", "message"];
    const NONE: &'static str = "no leases";

    fn rows(&self, now_ms: u64) -> Vec<Vec<String>> {
        vec![vec![
            self.id.clone(),
            self.request.clone(),
            self.tenant.clone(),
            self.origin.clone(),
            self.donor.clone().unwrap_or_else(|| "-".to_owned()),
            self.gpus.summary(),
            self.standing(),
            age(self.expires_at_ms.unwrap_or(0), now_ms),
            self.message.clone().unwrap_or_default(),
        ]]
    }
}

impl Answer for Lease {
    fn table(&self, now_ms: u64) -> String {
        let side = |ready: bool| if ready { "ready" } else { "not ready" };
        let secret = self.secret_name.as_ref().map(|secret| {
            format!("{}/{secret} on {}", self.target_namespace.as_deref().unwrap_or_default(), self.origin)
        });
        let at = |time: Option<u64>| time.map(|at| age(at, now_ms)).unwrap_or_default();
        fields(&[
            ("Lease", self.id.clone()),
            ("State", self.standing()),
            ("Message", self.message.clone().unwrap_or_default()),
            ("Request", self.request.clone()),
            ("Tenant", self.tenant.clone()),
            ("Origin", format!("{} ({})", self.origin, side(self.origin_ready))),
            ("Donor", format!("{} ({})", self.donor.as_deref().unwrap_or("-"), side(self.donor_ready))),
            ("GPUs", self.gpus.summary()),
            ("Placement", self.placement.as_ref().map(Placement::summary).unwrap_or_default()),
            ("Peering", self.peering.clone().unwrap_or_default()),
            ("Namespace", self.donor_namespace.clone().unwrap_or_default()),
            ("Secret", secret.unwrap_or_default()),
            ("Term", format_duration(self.term_ms)),
            ("Placed", at(self.placed_at_ms)),
            ("Active", at(self.active_at_ms)),
            ("Expires", at(self.expires_at_ms)),
            ("Ended", at(self.ended_at_ms)),
            ("Fencing token", self.fencing_token.to_string()),
        ])
    }
}
