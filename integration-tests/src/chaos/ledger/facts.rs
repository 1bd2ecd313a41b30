//! A lease as printed by `comity lease list -o json`.

use anyhow::{Context as _, Result};
use serde_json::Value;

/// A part of one device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Part {
    /// Node.
    pub node: String,
    /// Number of the device on it.
    pub device: u64,
    /// Thousandths.
    pub milli: u64,
}

/// The fields of a lease that the ledger checks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeaseFacts {
    /// "lease-N".
    pub id: String,
    /// N.
    pub number: u64,
    /// Its request.
    pub request: String,
    /// Its donor.
    pub donor: String,
    /// Its devices.
    pub parts: Vec<Part>,
    /// Its number of GPUs in Kubernetes.
    pub count: u64,
    /// Its fencing token.
    pub fencing_token: u64,
    /// Its state.
    pub state: String,
    /// Why it ends.
    pub end_reason: Option<String>,
    /// Why it was reclaimed.
    pub reclaim_reason: Option<String>,
    /// Whether it was ever active.
    pub was_active: bool,
}

impl LeaseFacts {
    /// Parses a lease.
    ///
    /// # Errors
    /// Names the missing field.
    pub fn read(lease: &Value) -> Result<Self> {
        let text = |value: &Value, name: &str| value[name].as_str().map(str::to_owned);
        let id = text(lease, "id").context("a lease has an id")?;
        let placement = &lease["placement"];
        let mut parts = Vec::new();
        for node in placement["nodes"].as_array().into_iter().flatten() {
            let name = text(node, "node").context("a placement names its nodes")?;
            for share in node["devices"].as_array().into_iter().flatten() {
                let device = share["device"].as_u64().context("a share names its device")?;
                let milli = share["milli"].as_u64().context("a share has a size")?;
                parts.push(Part { node: name.clone(), device, milli });
            }
        }
        Ok(Self {
            number: id.strip_prefix("lease-").and_then(|number| number.parse().ok()).context("a lease is numbered")?,
            request: text(lease, "request").context("a lease has a request")?,
            donor: text(placement, "donor").context("a lease has a donor")?,
            count: placement["resourceCount"].as_u64().context("a placement counts its GPUs")?,
            fencing_token: lease["fencingToken"].as_u64().context("a lease has a fencing token")?,
            state: text(lease, "state").context("a lease has a state")?,
            end_reason: text(lease, "endReason"),
            reclaim_reason: text(&lease["reclaim"], "reason"),
            was_active: lease["activeAtMs"].as_u64().is_some(),
            parts,
            id,
        })
    }

    /// Whether its GPUs are certainly in use. While it ends, the donor may already have freed them.
    #[must_use]
    pub fn is_held(&self) -> bool {
        !matches!(self.state.as_str(), "ending" | "ended")
    }

    /// Whether its pods may run and it is not called back. While it is set up, nobody has a credential for it; brokers
    /// call it back when it becomes active.
    #[must_use]
    pub fn is_promised(&self) -> bool {
        matches!(self.state.as_str(), "active" | "suspect") && self.reclaim_reason.is_none()
    }

    /// Progress of its state, which never decreases; `None` for an unknown state.
    fn progress(&self) -> Option<u8> {
        match self.state.as_str() {
            "placed" => Some(0),
            "connecting" => Some(1),
            // A lease being reclaimed is still active, and may stay active.
            "active" | "suspect" | "reclaiming" => Some(2),
            "ending" => Some(3),
            "ended" => Some(4),
            _ => None,
        }
    }

    /// Contradictions between this and a later observation of the same lease.
    pub(super) fn contradicts(&self, later: &Self) -> Vec<String> {
        let mut found = Vec::new();
        if (&self.donor, &self.parts, self.fencing_token, &self.request)
            != (&later.donor, &later.parts, later.fencing_token, &later.request)
        {
            found.push(format!("{} changed: {self:?}, then {later:?}", self.id));
        }
        if later.progress().is_none() {
            found.push(format!("{} is {}, a state that is not known", later.id, later.state));
        }
        if later.progress() < self.progress() || (self.was_active && !later.was_active) {
            found.push(format!("{} went back from {} to {}", self.id, self.state, later.state));
        }
        let needs_reason = match later.state.as_str() {
            "reclaiming" => later.reclaim_reason.is_none(),
            _ => later.progress() >= Some(3) && later.end_reason.is_none(),
        };
        if needs_reason {
            found.push(format!("{} is {} without a reason", later.id, later.state));
        }
        found
    }
}
