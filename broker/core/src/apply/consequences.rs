//! Changes that commands share, each with everything that follows from it.

mod chain_changes;
pub(crate) mod exclusions;
pub(crate) mod handshakes;
mod lease_ends;
mod metering;
mod request_parts;
pub(crate) mod user_requests;
