//! The snapshot format: the state as canonical JSON. The broker compresses and checksums it.

use std::fmt;
use std::io::{self, BufWriter, Read, Write};

use serde::de::{DeserializeSeed, Deserializer, Error as _, IgnoredAny, MapAccess, Visitor};
use serde::{Deserialize, Serialize};
use serde_json::de::{IoRead, Read as JsonRead, SliceRead};
use sha2::{Digest as _, Sha256};

use crate::state::{Derived, Records, State};

/// Version of the snapshot format. A broker refuses to read another one.
pub const SNAPSHOT_FORMAT: u16 = 1;

/// Bytes to digest at once.
const CHUNK_BYTES: usize = 64 << 10;

#[derive(Serialize)]
struct SnapshotOut<'a> {
    format: u16,
    state: &'a State,
}

#[derive(Deserialize)]
#[serde(field_identifier, rename_all = "lowercase")]
enum SnapshotField {
    Format,
    State,
    #[serde(other)]
    Unknown,
}

/// Reads format and state in one pass. Reports the format even if the rest is unreadable.
struct SnapshotIn<'f> {
    format: &'f mut Option<u16>,
}

impl<'de> DeserializeSeed<'de> for SnapshotIn<'_> {
    type Value = State;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<State, D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for SnapshotIn<'_> {
    type Value = State;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a format and a state")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<State, A::Error> {
        let mut state = None;
        while let Some(field) = map.next_key()? {
            match field {
                SnapshotField::Format => {
                    let found = map.next_value()?;
                    *self.format = Some(found);
                    if found > SNAPSHOT_FORMAT {
                        return Err(A::Error::custom("the format is a later one"));
                    }
                }
                SnapshotField::State => state = Some(map.next_value()?),
                SnapshotField::Unknown => {
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

/// Why a snapshot cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum SnapshotError {
    /// Not JSON, or JSON of another shape.
    #[error("snapshot cannot be read: {0}")]
    Malformed(#[from] serde_json::Error),
    /// Written by a later release.
    #[error("snapshot has format {found}, this broker reads up to {SNAPSHOT_FORMAT}; install the newer release")]
    FromTheFuture {
        /// The snapshot's format.
        found: u16,
    },
}

/// Copies the records that a snapshot contains, without derived data. The copy shares tables with `state` (see
/// [`crate::collections::cow_map`]), so it takes only a millisecond or two, during which the broker applies nothing.
#[must_use]
pub fn copy(state: &State) -> State {
    let records = Records {
        revision: state.revision,
        log_time: state.log_time,
        policy: state.policy.clone(),
        provenance: state.provenance.clone(),
        clusters: state.clusters.clone(),
        invites: state.invites.clone(),
        requests: state.requests.clone(),
        leases: state.leases.clone(),
        peerings: state.peerings.clone(),
        envelopes: state.envelopes.clone(),
        idempotency: state.idempotency.clone(),
        fairness: state.fairness.clone(),
        reclaims: state.reclaims.clone(),
        gpu_time: state.gpu_time.clone(),
        last_overdue: state.last_overdue,
        brokers: state.brokers.clone(),
        certificate_generation: state.certificate_generation,
        revoked_users: state.revoked_users.clone(),
        certificates: state.certificates.clone(),
        suspensions: state.suspensions.clone(),
        time_shift_ms: state.time_shift_ms,
        term_began: state.term_began,
        audit: state.audit.clone(),
        audit_exported: state.audit_exported,
        nonce_key: state.nonce_key,
        next_request: state.next_request,
        next_lease: state.next_lease,
        next_peering: state.next_peering,
        derived: Derived::default(),
    };
    State { records }
}

/// Computes the derived data that a [`copy()`] lacks.
#[must_use]
pub fn with_derived(copy: State) -> State {
    State::from(copy.records)
}

/// Writes the canonical bytes in many small writes. Equal states give equal bytes on every replica.
pub fn write(state: &State, to: impl Write) -> Result<(), SnapshotError> {
    Ok(serde_json::to_writer(to, &SnapshotOut { format: SNAPSHOT_FORMAT, state })?)
}

/// Reads the state that [`write()`] wrote. Reads byte by byte, so `from` should be buffered.
pub fn read(from: impl Read) -> Result<State, SnapshotError> {
    read_json(IoRead::new(from))
}

/// Returns the bytes that [`write()`] writes.
pub fn encode(state: &State) -> Result<Vec<u8>, SnapshotError> {
    let mut bytes = Vec::new();
    write(state, &mut bytes)?;
    Ok(bytes)
}

/// Reads the state that [`encode`] returned.
pub fn decode(bytes: &[u8]) -> Result<State, SnapshotError> {
    read_json(SliceRead::new(bytes))
}

fn read_json<'de>(json: impl JsonRead<'de>) -> Result<State, SnapshotError> {
    let mut json = serde_json::Deserializer::new(json);
    let mut format = None;
    let read = SnapshotIn { format: &mut format }.deserialize(&mut json);
    if let Some(found) = format.filter(|found| *found > SNAPSHOT_FORMAT) {
        return Err(SnapshotError::FromTheFuture { found });
    }
    let mut state = read?;
    json.end()?;
    state.rebuild_derived();
    Ok(state)
}

struct DigestWriter(Sha256);

impl Write for DigestWriter {
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
    let mut buffered = BufWriter::with_capacity(CHUNK_BYTES, DigestWriter(Sha256::new()));
    write(state, &mut buffered)?;
    let digesting = buffered.into_inner().map_err(|error| serde_json::Error::io(error.into_error()))?;
    Ok(hex::encode(digesting.0.finalize()))
}
