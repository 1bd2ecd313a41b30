//! Commands that invite users and brokers, use join tokens and revoke them.

pub(crate) mod invite_broker;
pub(crate) mod invite_user;
pub(crate) mod join_broker;
pub(crate) mod join_user;
pub(crate) mod open_invitations;
pub(crate) mod revoke_invite;
