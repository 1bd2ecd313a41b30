//! Receives a snapshot from the leader.

use std::io;
use std::time::Duration;

use comity_proto::raft::v1::SnapshotChunk;
use openraft::Snapshot;
use tonic::{Status, Streaming};

use crate::replication::types::Vote;
use crate::storage::{IncomingSnapshot, RaftSnapshot, SnapshotDir};
use crate::transport::calling_broker::CallingBroker;
use crate::transport::frame::{self, SnapshotHeader};

/// Timeout of the next chunk.
const CHUNK_TIMEOUT: Duration = Duration::from_secs(30);

/// Writes the chunks to a temporary file; installation checks its checksum.
pub(crate) async fn receive(
    caller: CallingBroker,
    mut chunks: Streaming<SnapshotChunk>,
    dir: &SnapshotDir,
) -> Result<(Vote, RaftSnapshot), Status> {
    let first = next(&mut chunks).await?.ok_or_else(|| Status::invalid_argument("the snapshot has no header"))?;
    let SnapshotHeader { vote, meta } = frame::decode(&first.header)?;
    caller.vouch(&vote)?;
    let dir = dir.clone();
    let mut incoming = blocking(move || dir.receive()).await?;
    let mut data = first.data;
    loop {
        if data.len() > frame::SNAPSHOT_CHUNK_BYTES {
            let text = format!("data: {} bytes in one chunk, allowed are {}", data.len(), frame::SNAPSHOT_CHUNK_BYTES);
            return Err(Status::invalid_argument(text));
        }
        incoming = append(incoming, data).await?;
        match next(&mut chunks).await? {
            Some(chunk) => data = chunk.data,
            None => return Ok((vote, Snapshot { meta, snapshot: incoming.finish() })),
        }
    }
}

async fn next(chunks: &mut Streaming<SnapshotChunk>) -> Result<Option<SnapshotChunk>, Status> {
    tokio::time::timeout(CHUNK_TIMEOUT, chunks.message())
        .await
        .map_err(|_| Status::deadline_exceeded(format!("no chunk within {} s", CHUNK_TIMEOUT.as_secs())))?
}

async fn append(mut incoming: IncomingSnapshot, data: Vec<u8>) -> Result<IncomingSnapshot, Status> {
    blocking(move || incoming.write(&data).map(|()| incoming)).await
}

async fn blocking<T: Send + 'static>(f: impl FnOnce() -> io::Result<T> + Send + 'static) -> Result<T, Status> {
    tokio::task::spawn_blocking(f)
        .await
        .map_err(io::Error::other)
        .flatten()
        .map_err(|error| Status::internal(format!("the snapshot cannot be written: {error}")))
}
