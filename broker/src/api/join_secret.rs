//! Secrets of join tokens. They are derived, not random: a repeated invitation gives the same token on any broker,
//! while the log holds only a hash.

use comity_runtime::join_token::{SECRET_BYTES, hash_secret};
use comity_runtime::secret::Secret;
use comity_runtime::spiffe::SpiffeKind;

use crate::provision::invitation_key::InvitationKey;

const PURPOSE: &str = "comity-join-secret-v1";

/// Derives the secret for an invitation of a cluster, user or broker by `caller` under an idempotency key.
pub fn derive(group: &InvitationKey, caller: &str, invited: &SpiffeKind, key: &str) -> Secret<[u8; SECRET_BYTES]> {
    group.derive(PURPOSE, &[caller.as_bytes(), invited.to_string().as_bytes(), key.as_bytes()])
}

/// Hash of the secret, for the log.
#[must_use]
pub fn hash_hex(secret: &[u8]) -> String {
    hex::encode(hash_secret(secret))
}
