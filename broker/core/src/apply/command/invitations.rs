//! Commands that invite users and brokers, and that use join tokens.

pub(crate) mod invite_broker;
pub(crate) mod invite_user;
pub(crate) mod join_broker;
pub(crate) mod join_user;
pub(crate) mod outstanding;
