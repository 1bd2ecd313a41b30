//! Secrets of join tokens. They are derived, not random: a repeated invitation gives the same token on any broker,
//! while the log holds only a hash.
//!
//! The day is part of it. Otherwise the same key of a call, used again years later, would make the secret of an old
//! token valid once more, wherever that token was kept.

use comity_core::{Timestamp, idempotency};
use comity_runtime::join_token::{SECRET_BYTES, hash_secret};
use comity_runtime::secret::Secret;
use comity_runtime::spiffe::SpiffeKind;

use crate::provision::invitation_key::InvitationKey;

const PURPOSE: &str = "comity-join-secret-v1";

/// A period in which a key of a call gives one secret. Replies are kept for as long, so a call that is repeated finds
/// the secret of the first one in its own period or in a neighbouring one, and a call after that gets another secret.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SecretPeriod(u64);

impl SecretPeriod {
    /// The period of a log time.
    #[must_use]
    pub fn of(now: Timestamp) -> Self {
        Self(now.0 / idempotency::KEPT_FOR.0)
    }

    /// This one, and those in which the first of a repeated call may have been made: another broker's log time may be a
    /// little ahead.
    #[must_use]
    pub const fn with_neighbours(self) -> [Self; 3] {
        [self, Self(self.0.saturating_sub(1)), Self(self.0.saturating_add(1))]
    }
}

/// Derives the secret for an invitation of a cluster, user or broker by `caller` under an idempotency key.
pub fn derive(
    group: &InvitationKey,
    caller: &str,
    invited: &SpiffeKind,
    key: &str,
    period: SecretPeriod,
) -> Secret<[u8; SECRET_BYTES]> {
    let (invited, period) = (invited.to_string(), period.0.to_be_bytes());
    group.derive(PURPOSE, &[caller.as_bytes(), invited.as_bytes(), key.as_bytes(), &period])
}

/// Hash of the secret, for the log.
#[must_use]
pub fn hash_hex(secret: &[u8]) -> String {
    hex::encode(hash_secret(secret))
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use comity_runtime::entropy::SystemEntropy;
    use comity_runtime::spiffe::UserName;

    use super::*;

    const HOUR_MS: u64 = 3_600_000;

    #[test]
    fn an_old_idempotency_key_revives_an_old_join_token() {
        let key = InvitationKey::draw(&SystemEntropy);
        let alice = SpiffeKind::User(UserName::new("alice").unwrap());
        let secret = |period| *derive(&key, "admin", &alice, "invite-alice", period).expose();
        for first in [0, 7 * HOUR_MS, 24 * HOUR_MS - 1, 1_795_745_799_477] {
            let made = secret(SecretPeriod::of(Timestamp(first)));
            // While the reply is kept, a repeated call finds it, also on a broker whose time is behind.
            for later in [0, HOUR_MS, 23 * HOUR_MS] {
                let near = SecretPeriod::of(Timestamp(first + later)).with_neighbours();
                assert!(near.into_iter().any(|period| secret(period) == made), "{later} ms after {first}");
            }
            let behind = SecretPeriod::of(Timestamp(first.saturating_sub(1_000))).with_neighbours();
            assert!(behind.into_iter().any(|period| secret(period) == made));
            // After that the call is a new one, and makes another secret.
            for later in [24 * HOUR_MS, 30 * HOUR_MS, 3 * 365 * 24 * HOUR_MS] {
                assert_ne!(secret(SecretPeriod::of(Timestamp(first + later))), made, "{later} ms after {first}");
            }
        }
    }
}
