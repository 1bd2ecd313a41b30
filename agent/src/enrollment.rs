//! How the agent joins its federation, and renews its certificate.

pub mod join;
pub mod join_error;
pub mod member_brokers;
pub mod renew;
pub mod token_source;
