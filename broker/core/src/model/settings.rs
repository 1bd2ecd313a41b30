//! Timeouts that policy sets, with the defaults for a federation without a bundle.

use crate::model::policy_record::PolicyRecord;
use crate::model::time::Millis;

/// The timeouts in force.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Default length of a lease.
    pub lease_term: Millis,
    /// How long a lease may take to become active.
    pub hold: Millis,
    /// How long one step of a handshake may take.
    pub handshake_step: Millis,
    /// How long to keep an idle peering.
    pub peering_idle: Millis,
    /// Silence after which an agent counts as disconnected.
    pub silent_after: Millis,
    /// Silence after which the broker gives a donor up and reclaims its leases.
    pub donor_lost_after: Millis,
    /// How long agents keep a lease past its end while no broker is reachable.
    pub outage_grace: Millis,
    /// How long a request waits before the scheduler reserves capacity for it.
    pub reserve_after: Millis,
    /// Half-life of past use.
    pub usage_half_life: Millis,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            lease_term: Millis::from_hours(1),
            hold: Millis::from_mins(2),
            handshake_step: Millis::from_secs(20),
            peering_idle: Millis::from_mins(10),
            silent_after: Millis::from_secs(30),
            donor_lost_after: Millis::from_mins(30),
            outage_grace: Millis::from_hours(24),
            reserve_after: Millis::from_hours(1),
            usage_half_life: Millis::from_hours(24),
        }
    }
}

impl Settings {
    /// The timeouts of the bundle in force, or the defaults.
    #[must_use]
    pub fn of(policy: Option<&PolicyRecord>) -> Self {
        policy.map_or_else(Self::default, |record| Self::from_bundle(&record.bundle))
    }

    fn from_bundle(bundle: &comity_policy::Bundle) -> Self {
        let defaults = &bundle.federation.spec.defaults;
        Self {
            lease_term: Millis(defaults.lease_term_ms),
            hold: Millis(defaults.hold_ms),
            handshake_step: Millis(defaults.peering_step_ms),
            peering_idle: Millis(defaults.peering_idle_ms),
            silent_after: Millis(defaults.heartbeat_timeout_ms),
            donor_lost_after: Millis(defaults.donor_lost_after_ms),
            outage_grace: Millis(defaults.outage_grace_ms),
            reserve_after: Millis(defaults.reserve_after_ms),
            usage_half_life: Millis(defaults.usage_half_life_ms),
        }
    }

    /// Interval between agents' heartbeats: two lost ones in a row do not yet count as silence.
    #[must_use]
    pub fn heartbeat(&self) -> Millis {
        Millis((self.silent_after.0 / 4).max(100))
    }
}

/// Pause before retrying a handshake after `failures` consecutive failures. Doubles from half a second to a minute.
#[must_use]
pub fn retry_pause(failures: u32) -> Millis {
    Millis((500_u64 << failures.saturating_sub(1).min(7)).min(60_000))
}
