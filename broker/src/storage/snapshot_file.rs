//! The format of a snapshot file.
//!
//! ```text
//!   "COMITYSN" | format u16 | header length u32 | header (JSON: what it covers) | state (zstd) | SHA-256 of all before
//! ```
//!
//! Numbers are big-endian. The state inside has a format of its own, see [`comity_core::snapshot`].

use std::fs::File;
use std::io::{self, Read as _, Seek as _};
use std::path::{Path, PathBuf};

use comity_core::{State, snapshot};
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use super::error::StorageError;
use super::replica::Replicated;
use crate::group::raft_types::SnapshotMeta;

const MAGIC: &[u8; 8] = b"COMITYSN";
const FORMAT: u16 = 1;
const DIGEST_BYTES: usize = 32;
/// Members and a place in the log.
const MAX_HEADER_BYTES: usize = 1 << 20;
/// Bytes of a snapshot file.
pub(crate) const MAX_FILE_BYTES: u64 = 1 << 30;
/// Bytes of a state once unpacked, so that a small file cannot fill the memory.
const MAX_STATE_BYTES: u64 = 4 << 30;
/// Fast, and already a tenth of the JSON.
const ZSTD_LEVEL: i32 = 3;

#[derive(Serialize, Deserialize)]
struct Header {
    covers: SnapshotMeta,
}

/// A snapshot read back.
pub(crate) struct Loaded {
    pub(crate) state: State,
    pub(crate) meta: SnapshotMeta,
}

/// An open snapshot file. Stays readable when the file is deleted meanwhile.
#[derive(Debug)]
pub struct SnapshotHandle {
    pub(super) file: File,
    pub(super) path: PathBuf,
    /// Deleted with the handle: a snapshot on its way in.
    pub(super) temporary: bool,
}

impl SnapshotHandle {
    pub(super) fn open(path: PathBuf) -> io::Result<Self> {
        Ok(Self { file: File::open(&path)?, path, temporary: false })
    }

    /// A second reader of the file, which starts at its beginning.
    pub(crate) fn reader(&self) -> io::Result<File> {
        let mut file = self.file.try_clone()?;
        file.rewind()?;
        Ok(file)
    }

    /// All of it; blocks.
    pub(super) fn read(&self) -> io::Result<Vec<u8>> {
        let mut bytes = Vec::new();
        self.reader()?.take(MAX_FILE_BYTES.saturating_add(1)).read_to_end(&mut bytes)?;
        Ok(bytes)
    }
}

impl Drop for SnapshotHandle {
    fn drop(&mut self) {
        if self.temporary {
            // The next start sweeps what stays.
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

/// The bytes of a snapshot file; takes as long as the state is large.
pub(super) fn encode(replicated: &Replicated) -> io::Result<Vec<u8>> {
    let header = serde_json::to_vec(&Header { covers: replicated.meta() }).map_err(io::Error::other)?;
    let header_len = u32::try_from(header.len()).map_err(io::Error::other)?;
    let state = snapshot::encode(&replicated.state).map_err(io::Error::other)?;
    let mut bytes = Vec::with_capacity(state.len() / 8);
    bytes.extend_from_slice(MAGIC);
    bytes.extend_from_slice(&FORMAT.to_be_bytes());
    bytes.extend_from_slice(&header_len.to_be_bytes());
    bytes.extend_from_slice(&header);
    zstd::stream::copy_encode(state.as_slice(), &mut bytes, ZSTD_LEVEL)?;
    let digest = Sha256::digest(&bytes);
    bytes.extend_from_slice(&digest);
    if bytes.len() as u64 > MAX_FILE_BYTES {
        let message = format!("the snapshot has {} bytes, allowed are {MAX_FILE_BYTES}", bytes.len());
        return Err(io::Error::new(io::ErrorKind::FileTooLarge, message));
    }
    Ok(bytes)
}

/// What the bytes of the file at `path` hold.
pub(super) fn decode(path: &Path, bytes: &[u8]) -> Result<Loaded, StorageError> {
    let damaged = |reason: &str| StorageError::damaged(path, reason);
    if bytes.len() as u64 > MAX_FILE_BYTES {
        return Err(damaged("it is larger than any snapshot"));
    }
    let (content, digest) = bytes.split_last_chunk::<DIGEST_BYTES>().ok_or_else(|| damaged("it is cut off"))?;
    let rest = content.strip_prefix(MAGIC).ok_or_else(|| damaged("it is not a snapshot"))?;
    let (format, rest) = rest.split_first_chunk::<2>().ok_or_else(|| damaged("it is cut off"))?;
    if Sha256::digest(content).as_slice() != digest {
        return Err(damaged("its checksum is wrong"));
    }
    let found = u16::from_be_bytes(*format);
    if found > FORMAT {
        return Err(StorageError::FromTheFuture { path: path.to_owned(), found: found.into(), known: FORMAT.into() });
    }
    let (len, rest) = rest.split_first_chunk::<4>().ok_or_else(|| damaged("it has no header"))?;
    let len = u32::from_be_bytes(*len) as usize;
    if len > MAX_HEADER_BYTES || len > rest.len() {
        return Err(damaged("its header is too long"));
    }
    let (header, packed) = rest.split_at(len);
    let Header { covers } = serde_json::from_slice(header).map_err(|error| StorageError::damaged(path, error))?;
    let state = unpack(packed).map_err(|error| StorageError::damaged(path, error))?;
    let state = match snapshot::decode(&state) {
        Ok(state) => state,
        Err(snapshot::SnapshotError::FromTheFuture { found }) => {
            return Err(StorageError::FromTheFuture {
                path: path.to_owned(),
                found: found.into(),
                known: snapshot::SNAPSHOT_FORMAT.into(),
            });
        }
        Err(error) => return Err(StorageError::damaged(path, error)),
    };
    Ok(Loaded { state, meta: covers })
}

fn unpack(packed: &[u8]) -> io::Result<Vec<u8>> {
    let mut state = Vec::new();
    zstd::stream::read::Decoder::new(packed)?.take(MAX_STATE_BYTES + 1).read_to_end(&mut state)?;
    if state.len() as u64 > MAX_STATE_BYTES {
        return Err(io::Error::new(io::ErrorKind::FileTooLarge, "the state in it is larger than any state"));
    }
    Ok(state)
}
