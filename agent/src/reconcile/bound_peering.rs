//! The peering of a lease, checked: what is admitted, sealed or opened for a lease takes a [`BoundPeering`] or a
//! [`BoundEpoch`], and only the checks here make these.
//!
//! ```text
//! lease ──────── names ───▶ peering ── directive ──▶ own side, other cluster = lease's origin or donor
//! own record ─── remembers the peering, the cluster and its key from the first step on
//! own peering ── verified keys of each epoch: of that cluster, by the identity key that this agent knows
//! ```
//!
//! A broker that names another peering, another cluster or another key is contradicted by at least one of them.

use comity_agent_model::desired_state::DesiredState;
use comity_agent_model::lease::Lease;
use comity_agent_model::object_id::ObjectId;
use comity_agent_model::peering::PeeringDirective;
use comity_agent_state::record::{LeasePeer, Records, Trust};
use comity_runtime::IdentityPublicKey;
use comity_types::{PeeringId, PeeringState, Side};

/// What a binding is checked against.
#[derive(Clone, Copy)]
pub struct BindingFacts<'a> {
    /// This cluster.
    pub cluster: &'a str,
    /// Desired state from the broker.
    pub desired: &'a DesiredState,
    /// Own records.
    pub records: &'a Records,
    /// Whether every cluster needs a voucher of a pinned institution.
    pub require_vouchers: bool,
}

/// A lease's peering: its own side and the other cluster are those of the lease, now and since the first step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BoundPeering {
    peering: PeeringId,
    cluster: String,
    identity_key: Option<IdentityPublicKey>,
    institution: Institution,
}

/// The epoch of a lease's peering whose tunnel may carry credentials. Its keys were verified, and are those of the
/// lease's other side.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BoundEpoch {
    peering: BoundPeering,
    epoch: u32,
    identity_key: IdentityPublicKey,
}

/// The institution of the other cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Institution {
    /// Its voucher names it.
    Vouched(String),
    /// The broker names it.
    Claimed(String),
}

/// Why a lease has no peering that it may use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Unbound {
    /// Nothing is wrong: its peering is not ready.
    Pending,
    /// The lease and its peering contradict each other.
    Mismatch(String),
    /// The lease had another peering or another side before.
    Rebound(String),
    /// The other side has another identity key than the one that this agent knows.
    IdentityChanged(String),
    /// The other side needs a voucher and has none.
    NotVouched(String),
}

impl Institution {
    /// Its name.
    #[must_use]
    pub fn name(&self) -> &str {
        match self {
            Self::Vouched(name) | Self::Claimed(name) => name,
        }
    }
}

impl BoundPeering {
    /// Checks the peering that a lease names.
    ///
    /// # Errors
    /// [`Unbound`]; nothing may be done for the lease.
    pub fn of(facts: BindingFacts<'_>, lease: &Lease, side: Side) -> Result<Self, Unbound> {
        let peering = lease.peering;
        let other = match side {
            Side::Donor => lease.origin.as_str(),
            Side::Origin => lease.placement.as_ref().map_or("", |placement| placement.donor.as_str()),
        };
        let remembered = remembered(facts.records, lease, side);
        if let Some(before) = remembered
            && (before.peering, before.cluster.as_str()) != (peering, other)
        {
            return Err(Unbound::Rebound(format!(
                "{} was with cluster {} over {} and is now to be with cluster {other} over {peering}; a lease never \
                 changes sides: ask the federation's maintainers who changed it",
                lease.id, before.cluster, before.peering
            )));
        }
        let Some(directive) = facts.desired.peerings.iter().find(|directive| directive.peering.id == peering) else {
            if facts.desired.skipped.contains(&ObjectId::Peering(peering)) {
                return Err(Unbound::Pending);
            }
            return Err(mismatch(lease, format!("names {peering}, which this cluster does not have")));
        };
        check_sides(facts.cluster, directive, lease, side, other)?;
        for epoch in facts.records.epochs(peering) {
            if let Some(remote) = epoch.remote.as_ref().filter(|remote| epoch.side != side || remote.cluster != other) {
                let reason = format!("is with cluster {other}, and {peering} has the keys of {}", remote.cluster);
                return Err(mismatch(lease, reason));
            }
        }
        let vouched = facts.records.peers.get(other).and_then(|peer| peer.vouched_institution());
        let institution = match vouched {
            Some(institution) => Institution::Vouched(institution.to_owned()),
            None => Institution::Claimed(directive.peer_institution.clone()),
        };
        let identity_key = remembered.and_then(|before| before.identity_key);
        Ok(Self { peering, cluster: other.to_owned(), identity_key, institution })
    }

    /// The peering.
    #[must_use]
    pub fn peering(&self) -> PeeringId {
        self.peering
    }

    /// The institution of the other cluster.
    #[must_use]
    pub fn institution(&self) -> &Institution {
        &self.institution
    }

    /// What the lease's record remembers of it.
    #[must_use]
    pub fn to_record(&self) -> LeasePeer {
        LeasePeer { peering: self.peering, cluster: self.cluster.clone(), identity_key: self.identity_key }
    }

    /// Checks the epoch over which credentials may go now.
    ///
    /// # Errors
    /// [`Unbound`]; no credential may be sealed or opened.
    pub fn epoch(&self, facts: BindingFacts<'_>) -> Result<BoundEpoch, Unbound> {
        let directive = facts.desired.peerings.iter().find(|directive| directive.peering.id == self.peering);
        let directive = directive.ok_or(Unbound::Pending)?;
        let state = directive.peering.state;
        let stands = matches!(state, Some(PeeringState::Establishing | PeeringState::Established));
        let epoch = directive.peering.epoch;
        let record = facts.records.peering(self.peering, epoch).filter(|record| stands && record.is_complete());
        let remote = record.and_then(|record| record.remote.as_ref()).ok_or(Unbound::Pending)?;
        let peer = facts.records.peers.get(&self.cluster);
        let known = peer.map(|peer| peer.identity_key);
        let changed = |shown: &str| {
            let known = known.or(self.identity_key).map_or_else(|| "no identity key".to_owned(), |key| key.to_string());
            Unbound::IdentityChanged(format!(
                "cluster {} shows identity key {shown} in epoch {epoch} of {}, and this agent knows it by {known}; see \
                 comity-agent peers list",
                self.cluster, self.peering
            ))
        };
        let shown = remote.identity_key.to_string();
        if known != Some(remote.identity_key) {
            return Err(changed(&shown));
        }
        if directive.peer_identity_key != shown {
            return Err(changed(&directive.peer_identity_key));
        }
        // A voucher or a person may have replaced the key since the lease began; a first use may not.
        let is_decided = peer.is_some_and(|peer| peer.trust != Trust::FirstUse);
        if self.identity_key.is_some_and(|before| before != remote.identity_key) && !is_decided {
            return Err(changed(&shown));
        }
        if facts.require_vouchers && remote.institution.is_none() {
            return Err(Unbound::NotVouched(format!(
                "no pinned institution vouches for cluster {} (requireVouchers)",
                self.cluster
            )));
        }
        Ok(BoundEpoch { peering: self.clone(), epoch, identity_key: remote.identity_key })
    }
}

impl BoundEpoch {
    /// The peering.
    #[must_use]
    pub fn peering(&self) -> PeeringId {
        self.peering.peering
    }

    /// The epoch.
    #[must_use]
    pub fn epoch(&self) -> u32 {
        self.epoch
    }

    /// Identity key of the other side.
    #[must_use]
    pub fn identity_key(&self) -> IdentityPublicKey {
        self.identity_key
    }

    /// What the lease's record remembers of it, with the identity key.
    #[must_use]
    pub fn to_record(&self) -> LeasePeer {
        LeasePeer { identity_key: Some(self.identity_key), ..self.peering.to_record() }
    }
}

fn remembered<'a>(records: &'a Records, lease: &Lease, side: Side) -> Option<&'a LeasePeer> {
    match side {
        Side::Donor => records.donors.get(&lease.id)?.peer.as_ref(),
        Side::Origin => records.origins.get(&lease.id)?.peer.as_ref(),
    }
}

fn mismatch(lease: &Lease, reason: String) -> Unbound {
    Unbound::Mismatch(format!("{} {reason}", lease.id))
}

/// Whether the peering's two sides are the lease's.
fn check_sides(
    cluster: &str,
    directive: &PeeringDirective,
    lease: &Lease,
    side: Side,
    other: &str,
) -> Result<(), Unbound> {
    let peering = &directive.peering;
    let (origin, donor) = match side {
        Side::Donor => (other, cluster),
        Side::Origin => (cluster, other),
    };
    if lease.origin.as_str() == origin && (peering.origin.as_str(), peering.donor.as_str()) == (origin, donor) {
        return Ok(());
    }
    let reason = format!(
        "is of origin {} and donor {donor}, and {} is of origin {} and donor {}",
        lease.origin, peering.id, peering.origin, peering.donor
    );
    Err(mismatch(lease, reason))
}
