//! The state as bytes. The broker compresses and checksums them; here is only the format.

use std::fmt;
use std::io::{self, BufWriter, Read, Write};

use serde::de::{DeserializeSeed, Deserializer, Error as _, IgnoredAny, MapAccess, Visitor};
use serde::{Deserialize, Serialize};
use serde_json::de::{IoRead, Read as JsonRead, SliceRead};
use sha2::{Digest as _, Sha256};

use crate::state::{Derived, State};

/// Version of the format. Readers take this and all earlier ones.
///
/// Format 2 adds `delivery` to leases, `deliveries` to offers and `network` to key bundles. A state of format 1 has
/// leases by namespace only, from clusters that can deliver nothing else. Format 3 adds `fairness`, `last_overdue`, to
/// requests priority and start window, to MIG devices `layout`, and `slots` to placements on them: states of earlier
/// formats have kept no account of what was held, and MIG devices without a layout are lent by number. Format 4 adds
/// wiring to offers, requests and placements, to requests members, `preemptible` and `room_at`, and to leases their
/// reclaim, what they replace or are replaced by, and when their work was saved and their end began: of earlier formats
/// nothing is known of all that, and nobody asks for it. Format 5 adds `spread_donors` and `parts` to requests and
/// `joins` to leases: before, a request had one lease. It also adds to clusters what is remembered of what failed, to
/// devices of offers what is wrong with them, and to nodes whether they answer: in earlier formats nothing has failed.
/// It has `time_shift_ms` and `term_began`: in earlier formats time was never re-based. And its offers hold each kind
/// of device once (`inventory/stored_offer.rs`).
pub const SNAPSHOT_FORMAT: u16 = 5;

/// Bytes that are digested at once.
const CHUNK_BYTES: usize = 64 << 10;

#[derive(Serialize)]
struct Writing<'a> {
    format: u16,
    state: &'a State,
}

#[derive(Deserialize)]
#[serde(field_identifier, rename_all = "lowercase")]
enum Field {
    Format,
    State,
    #[serde(other)]
    Unknown,
}

/// Reads format and state in one pass; the format is told even where the rest cannot be read.
struct Reading<'f> {
    format: &'f mut Option<u16>,
}

impl<'de> DeserializeSeed<'de> for Reading<'_> {
    type Value = State;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<State, D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for Reading<'_> {
    type Value = State;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a format and a state")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<State, A::Error> {
        let mut state = None;
        while let Some(field) = map.next_key()? {
            match field {
                Field::Format => {
                    let found = map.next_value()?;
                    *self.format = Some(found);
                    if found > SNAPSHOT_FORMAT {
                        return Err(A::Error::custom("the format is a later one"));
                    }
                }
                Field::State => state = Some(map.next_value()?),
                Field::Unknown => {
                    let IgnoredAny = map.next_value()?;
                }
            }
        }
        if self.format.is_none() {
            return Err(A::Error::missing_field("format"));
        }
        state.ok_or_else(|| A::Error::missing_field("state"))
    }
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

/// A copy of all that a snapshot holds, without what is derived. It shares tables with `state` (see
/// [`crate::collections::cow_map`]), so that it takes a millisecond or two while everybody waits.
#[must_use]
pub fn copy(state: &State) -> State {
    State {
        revision: state.revision,
        log_time: state.log_time,
        policy: state.policy.clone(),
        clusters: state.clusters.clone(),
        invites: state.invites.clone(),
        requests: state.requests.clone(),
        leases: state.leases.clone(),
        peerings: state.peerings.clone(),
        envelopes: state.envelopes.clone(),
        idempotency: state.idempotency.clone(),
        fairness: state.fairness.clone(),
        last_overdue: state.last_overdue,
        brokers: state.brokers.clone(),
        time_shift_ms: state.time_shift_ms,
        term_began: state.term_began,
        next_request: state.next_request,
        next_lease: state.next_lease,
        next_peering: state.next_peering,
        derived: Derived::default(),
    }
}

/// Writes the canonical bytes, in many small pieces: equal states give equal bytes, on every replica.
pub fn write(state: &State, to: impl Write) -> Result<(), SnapshotError> {
    Ok(serde_json::to_writer(to, &Writing { format: SNAPSHOT_FORMAT, state })?)
}

/// The state that [`write()`] wrote. Reads byte by byte, so `from` should have a buffer.
pub fn read(from: impl Read) -> Result<State, SnapshotError> {
    read_json(IoRead::new(from))
}

/// What [`write()`] writes.
pub fn encode(state: &State) -> Result<Vec<u8>, SnapshotError> {
    let mut bytes = Vec::new();
    write(state, &mut bytes)?;
    Ok(bytes)
}

/// The state that [`encode`] gave.
pub fn decode(bytes: &[u8]) -> Result<State, SnapshotError> {
    read_json(SliceRead::new(bytes))
}

fn read_json<'de>(json: impl JsonRead<'de>) -> Result<State, SnapshotError> {
    let mut json = serde_json::Deserializer::new(json);
    let mut format = None;
    let read = Reading { format: &mut format }.deserialize(&mut json);
    if let Some(found) = format.filter(|found| *found > SNAPSHOT_FORMAT) {
        return Err(SnapshotError::FromTheFuture { found });
    }
    let mut state = read?;
    json.end()?;
    state.rebuild_derived();
    Ok(state)
}

struct Digesting(Sha256);

impl Write for Digesting {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.update(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// SHA-256 of the canonical bytes, in hex.
pub fn digest(state: &State) -> Result<String, SnapshotError> {
    let mut buffered = BufWriter::with_capacity(CHUNK_BYTES, Digesting(Sha256::new()));
    write(state, &mut buffered)?;
    let digesting = buffered.into_inner().map_err(|error| serde_json::Error::io(error.into_error()))?;
    Ok(hex::encode(digesting.0.finalize()))
}
