//! The format of a snapshot file.
//!
//! ```text
//!   "COMITYSN" | format u16 | header length u32 | header (JSON: what it covers) | state (zstd) | SHA-256 of all before
//! ```
//!
//! Numbers are big-endian. The state inside has a format of its own, see [`comity_core::snapshot`].

use std::fs::File;
use std::io::{self, BufReader, BufWriter, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use comity_core::{State, snapshot};
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use crate::replication::types::{SnapshotMeta, TypeConfig};
use crate::storage::replica::Replicated;
use crate::storage::storage_error::StorageError;

const MAGIC: &[u8; 8] = b"COMITYSN";
const SNAPSHOT_FORMAT: u16 = 1;
pub(super) const DIGEST_BYTES: usize = 32;
/// Members and a place in the log.
const MAX_HEADER_BYTES: usize = 1 << 20;
/// Maximum bytes of a snapshot file.
pub(crate) const MAX_FILE_BYTES: u64 = 1 << 30;
/// Maximum bytes of a decompressed state, so that a small file cannot exhaust memory.
const MAX_STATE_BYTES: u64 = 4 << 30;
/// Buffer size.
const BUFFER_BYTES: usize = 64 << 10;
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

/// An open snapshot file. Stays readable after the file is deleted.
#[derive(Debug)]
pub struct SnapshotHandle {
    pub(super) file: File,
    pub(super) path: PathBuf,
    /// Delete the file with the handle: a snapshot being received.
    pub(super) temporary: bool,
}

/// A snapshot as openraft passes it on.
pub(crate) type RaftSnapshot = openraft::type_config::alias::SnapshotOf<TypeConfig, SnapshotHandle>;

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
}

impl Drop for SnapshotHandle {
    fn drop(&mut self) {
        if self.temporary {
            // The next start sweeps what stays.
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

/// A writer that counts and hashes bytes, and enforces `MAX_FILE_BYTES`.
struct Digesting<W> {
    to: W,
    digest: Sha256,
    bytes: u64,
}

impl<W: Write> Write for Digesting<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = self.to.write(bytes)?;
        self.digest.update(&bytes[..written]);
        self.bytes += written as u64;
        if self.bytes + DIGEST_BYTES as u64 > MAX_FILE_BYTES {
            let message = format!("the snapshot has more than the {MAX_FILE_BYTES} bytes allowed");
            return Err(io::Error::new(io::ErrorKind::FileTooLarge, message));
        }
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.to.flush()
    }
}

/// Writes a snapshot file as a stream, with little memory.
pub(super) fn write(replicated: &Replicated, to: impl Write) -> io::Result<()> {
    let header = serde_json::to_vec(&Header { covers: replicated.meta() }).map_err(io::Error::other)?;
    let header_len = u32::try_from(header.len()).map_err(io::Error::other)?;
    let mut file = Digesting { to: BufWriter::with_capacity(BUFFER_BYTES, to), digest: Sha256::new(), bytes: 0 };
    file.write_all(MAGIC)?;
    file.write_all(&SNAPSHOT_FORMAT.to_be_bytes())?;
    file.write_all(&header_len.to_be_bytes())?;
    file.write_all(&header)?;
    let packing = zstd::stream::write::Encoder::new(&mut file, ZSTD_LEVEL)?;
    let mut state = BufWriter::with_capacity(BUFFER_BYTES, packing);
    snapshot::write(&replicated.state, &mut state).map_err(io::Error::other)?;
    state.into_inner().map_err(io::IntoInnerError::into_error)?.finish()?;
    let Digesting { mut to, digest, .. } = file;
    to.write_all(&digest.finalize())?;
    to.flush()
}

/// Reads a snapshot file in two passes, the first for its checksum; `path` names it in errors.
pub(super) fn read(path: &Path, mut file: impl Read + Seek) -> Result<Loaded, StorageError> {
    let damaged = |reason: &str| StorageError::damaged(path, reason);
    let unreadable = |error: io::Error| StorageError::of_io(path, &error);
    let len = file.seek(SeekFrom::End(0)).map_err(unreadable)?;
    if len > MAX_FILE_BYTES {
        return Err(damaged("it is larger than any snapshot"));
    }
    let content = len.checked_sub(DIGEST_BYTES as u64).ok_or_else(|| damaged("it is cut off"))?;
    file.rewind().map_err(unreadable)?;
    check_digest(&mut file, content).map_err(unreadable)?;
    file.rewind().map_err(unreadable)?;

    let mut file = BufReader::with_capacity(BUFFER_BYTES, file.take(content));
    let mut prefix = [0; MAGIC.len() + size_of::<u16>() + size_of::<u32>()];
    file.read_exact(&mut prefix).map_err(|_| damaged("it is cut off"))?;
    let [magic @ .., f1, f2, l1, l2, l3, l4] = prefix;
    if magic != *MAGIC {
        return Err(damaged("it is not a snapshot"));
    }
    let found = u16::from_be_bytes([f1, f2]);
    if found > SNAPSHOT_FORMAT {
        return Err(StorageError::FromTheFuture {
            path: path.to_owned(),
            found: found.into(),
            known: SNAPSHOT_FORMAT.into(),
        });
    }
    let len = u32::from_be_bytes([l1, l2, l3, l4]) as usize;
    if len > MAX_HEADER_BYTES {
        return Err(damaged("its header is too long"));
    }
    let mut header = vec![0; len];
    file.read_exact(&mut header).map_err(|_| damaged("its header is too long"))?;
    let Header { covers } = serde_json::from_slice(&header).map_err(|error| StorageError::damaged(path, error))?;
    let unpacked = zstd::stream::read::Decoder::with_buffer(file).map_err(unreadable)?;
    // A larger state is cut off, and so counts as damaged.
    let state = BufReader::with_capacity(BUFFER_BYTES, unpacked.take(MAX_STATE_BYTES));
    match snapshot::read(state) {
        Ok(state) => Ok(Loaded { state, meta: covers }),
        Err(snapshot::SnapshotError::FromTheFuture { found }) => Err(StorageError::FromTheFuture {
            path: path.to_owned(),
            found: found.into(),
            known: snapshot::SNAPSHOT_FORMAT.into(),
        }),
        Err(error) => Err(StorageError::damaged(path, error)),
    }
}

/// Checks the digest of the first `content` bytes against the one that follows.
fn check_digest(file: &mut impl Read, content: u64) -> io::Result<()> {
    let (mut digest, mut buffer, mut left) = (Sha256::new(), vec![0; BUFFER_BYTES], content);
    while left > 0 {
        let chunk = usize::try_from(left).unwrap_or(BUFFER_BYTES).min(BUFFER_BYTES);
        file.read_exact(&mut buffer[..chunk])?;
        digest.update(&buffer[..chunk]);
        left -= chunk as u64;
    }
    let mut written = [0; DIGEST_BYTES];
    file.read_exact(&mut written)?;
    if digest.finalize().as_slice() != written {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "its checksum is wrong"));
    }
    Ok(())
}
