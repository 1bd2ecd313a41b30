//! Converts between API messages and core types, one file per service. Parse, don't validate: results are well formed,
//! and refusals name field, value and remedy.

pub mod agent;
pub mod answer;
pub mod cluster;
pub mod csr;
mod data;
pub mod delivery;
mod fault;
#[cfg(test)]
mod fuzz_calls;
pub mod lease;
pub mod offer;
pub mod peering;
pub mod policy;
pub mod policy_plan;
pub mod policy_repository;
pub mod request;
pub mod rights;
pub mod template;
pub(crate) mod wiring;

use std::time::{SystemTime, UNIX_EPOCH};

use comity_core::{Refusal, Timestamp};

/// Milliseconds of a time; 0 for none.
pub(crate) fn time_or_zero(time: Option<Timestamp>) -> u64 {
    time.map_or(0, |time| time.0)
}

/// A wall-clock time as the API and the log have it.
pub(crate) fn timestamp(time: SystemTime) -> Timestamp {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    Timestamp(u64::try_from(since.as_millis()).unwrap_or(u64::MAX))
}

/// A count as `u32`, saturating.
pub(crate) fn count(len: usize) -> u32 {
    u32::try_from(len).unwrap_or(u32::MAX)
}

/// Unwraps a required message field.
pub(crate) fn required<T>(value: Option<T>, field: &str, remedy: &str) -> Result<T, Refusal> {
    value.ok_or_else(|| Refusal::invalid(field, "", "is missing", remedy))
}

/// Text form of a public key in the API.
pub(crate) fn ed25519_text(key: &[u8; 32]) -> String {
    use base64::Engine as _;
    format!("ed25519:{}", base64::engine::general_purpose::STANDARD.encode(key))
}
