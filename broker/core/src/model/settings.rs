//! Times that policy sets, with what is in force until a bundle is.

use crate::model::policy_record::PolicyRecord;
use crate::model::time::Millis;

/// Times in force.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Length of a lease that does not say.
    pub lease_term: Millis,
    /// How long capacity is held for a lease that is not yet active.
    pub hold: Millis,
    /// How long one step of a handshake may take.
    pub handshake_step: Millis,
    /// How long a peering without leases is kept warm.
    pub peering_idle: Millis,
    /// After how much silence an agent counts as not heard.
    pub silent_after: Millis,
    /// After how much silence a donor is given up, and its leases are being reclaimed.
    pub donor_lost_after: Millis,
    /// How long agents go on by themselves after a lease's end while no broker can be reached.
    pub outage_grace: Millis,
    /// How long a request waits before capacity is reserved for it.
    pub reserve_after: Millis,
    /// After how long what a tenant used counts half.
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
    /// Those of the bundle in force.
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

    /// How often agents send something: often enough that losing two in a row is not silence.
    #[must_use]
    pub fn heartbeat(&self) -> Millis {
        Millis((self.silent_after.0 / 4).max(100))
    }
}

/// Pause before a handshake that failed `failures` times in a row is tried again: doubling from half a second to a
/// minute.
#[must_use]
pub fn retry_pause(failures: u32) -> Millis {
    Millis((500_u64 << failures.saturating_sub(1).min(7)).min(60_000))
}
