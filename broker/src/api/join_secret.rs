//! Secrets of join tokens. Derived rather than drawn, so that a repeated invitation gives the same token from any
//! broker, while the log holds no more than a hash.

use comity_core::ClusterId;
use comity_runtime::ca::CertificateAuthority;
use comity_runtime::join_token::{SECRET_BYTES, hash_secret};
use comity_runtime::secret::Secret;

const PURPOSE: &str = "comity-join-secret-v1";

/// The secret for an invitation of `cluster` by `caller` under an idempotency key. Whoever lacks the authority's
/// private key cannot compute it.
pub fn derive(ca: &CertificateAuthority, caller: &str, cluster: &ClusterId, key: &str) -> Secret<[u8; SECRET_BYTES]> {
    ca.derive_secret(PURPOSE, &[caller.as_bytes(), cluster.as_str().as_bytes(), key.as_bytes()])
}

/// What goes into the log.
#[must_use]
pub fn hash_hex(secret: &[u8]) -> String {
    hex::encode(hash_secret(secret))
}
