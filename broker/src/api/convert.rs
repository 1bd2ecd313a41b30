//! Between the API and the core, one file per service. Parse, don't validate: what comes out of here is well formed,
//! and what is refused names field, value and remedy.

pub mod agent;
pub mod answer;
pub mod cluster;
mod data;
pub mod delivery;
mod fault;
pub mod lease;
pub mod offer;
pub mod peering;
pub mod policy;
pub mod request;
mod wiring;

use comity_core::{Refusal, Timestamp};

/// A time that may not have come: 0 then.
pub(crate) fn time_or_zero(time: Option<Timestamp>) -> u64 {
    time.map_or(0, |time| time.0)
}

/// A count for people; sticks at the largest number.
pub(crate) fn count(len: usize) -> u32 {
    u32::try_from(len).unwrap_or(u32::MAX)
}

/// A message field that must be there.
pub(crate) fn required<T>(value: Option<T>, field: &str, remedy: &str) -> Result<T, Refusal> {
    value.ok_or_else(|| Refusal::invalid(field, "", "is missing", remedy))
}

/// A public key as the API writes it.
pub(crate) fn ed25519_text(key: &[u8; 32]) -> String {
    use base64::Engine as _;
    format!("ed25519:{}", base64::engine::general_purpose::STANDARD.encode(key))
}
