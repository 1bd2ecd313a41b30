//! The state as bytes. The broker compresses and checksums them; here is only the format.

use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use crate::state::State;

/// Version of the format. Readers take this and all earlier ones.
///
/// Format 2 adds `delivery` to leases, `deliveries` to offers and `network` to key bundles. A state of format 1 has leases
/// by namespace only, from clusters that can deliver nothing else. Format 3 adds `fairness`, `last_overdue`, to requests
/// priority and start window, to MIG devices `layout`, and `slots` to placements on them: states of earlier formats have kept no
/// account of what was held, and MIG devices without a layout are lent by number. Format 4 adds wiring to offers, requests and
/// placements, to requests members, `preemptible` and `room_at`, and to leases their call back, what they replace or are replaced
/// by, and when their work was saved and their end began: of earlier formats nothing is known of all that, and nobody asks for it.
/// Format 5 adds `spread_donors` and `parts` to requests and `joins` to leases: before, a request had one lease. It also adds to
/// clusters what is remembered of what failed, to devices of offers what is wrong with them, and to nodes whether they answer:
/// in earlier formats nothing has failed.
pub const SNAPSHOT_FORMAT: u16 = 5;

#[derive(Serialize)]
struct Writing<'a> {
    format: u16,
    state: &'a State,
}

#[derive(Deserialize)]
struct Format {
    format: u16,
}

#[derive(Deserialize)]
struct Reading {
    state: State,
}

/// Why bytes are not a state.
#[derive(Debug, thiserror::Error)]
pub enum SnapshotError {
    /// Not JSON, or not of this shape.
    #[error("snapshot cannot be read: {0}")]
    Malformed(#[from] serde_json::Error),
    /// Written by a later release.
    #[error("snapshot has format {found}, this broker reads up to {SNAPSHOT_FORMAT}; install the newer release")]
    FromTheFuture {
        /// Its format.
        found: u16,
    },
}

/// Canonical bytes: equal states give equal bytes, on every replica.
pub fn encode(state: &State) -> Result<Vec<u8>, SnapshotError> {
    Ok(serde_json::to_vec(&Writing { format: SNAPSHOT_FORMAT, state })?)
}

/// The state that [`encode`] wrote.
pub fn decode(bytes: &[u8]) -> Result<State, SnapshotError> {
    let Format { format } = serde_json::from_slice(bytes)?;
    if format > SNAPSHOT_FORMAT {
        return Err(SnapshotError::FromTheFuture { found: format });
    }
    let Reading { mut state } = serde_json::from_slice(bytes)?;
    state.rebuild_derived();
    Ok(state)
}

/// SHA-256 of the canonical bytes, in hex.
pub fn digest(state: &State) -> Result<String, SnapshotError> {
    Ok(hex::encode(Sha256::digest(encode(state)?)))
}
