//! The objects in the state, one type per file.

pub mod actor;
pub mod broker_record;
pub mod cluster;
pub mod envelope;
pub mod health;
pub mod idempotency;
pub mod invite;
pub mod keys;
pub mod lease;
pub mod member_certificate;
pub mod meter;
pub mod peering;
pub mod policy_record;
pub mod proposal;
pub mod provenance;
pub mod reclaim;
pub mod reply;
pub mod request;
pub mod revocation;
