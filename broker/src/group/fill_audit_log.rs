//! Gets the records of the audit log that this broker lacks, because it joined later or got a snapshot, from the other
//! brokers. The hash of the record after a gap proves them, so it does not matter who sends them.

use std::io;
use std::sync::Weak;
use std::time::Duration;

use comity_proto::raft::v1::{ReadAuditRecordsRequest, ReadAuditRecordsResponse};
use openraft::async_runtime::WatchReceiver as _;
use tokio_util::sync::CancellationToken;
use tonic::Status;
use tracing::{debug, info};

use crate::group::{Group, Inner};
use crate::storage::AuditStore;

/// Between two looks for gaps.
const FILL_INTERVAL: Duration = Duration::from_secs(1);
/// Time for one answer.
const READ_TIMEOUT: Duration = Duration::from_secs(10);
/// Records of one answer.
pub(crate) const MAX_RECORDS: u64 = 1_024;
/// Bytes of one answer.
const MAX_BYTES: usize = 2 << 20;

/// Runs until the group stops or its last handle is gone.
pub(crate) async fn run(group: Weak<Inner>, stop: CancellationToken) {
    loop {
        tokio::select! {
            () = tokio::time::sleep(FILL_INTERVAL) => {}
            () = stop.cancelled() => return,
        }
        loop {
            let Some(inner) = group.upgrade() else { return };
            if stop.is_cancelled() || !inner.fill_gap().await {
                break;
            }
        }
    }
}

impl Inner {
    /// Fills the end of the last gap; false if there is none, or nobody sent its records.
    async fn fill_gap(&self) -> bool {
        let store = self.audit.clone();
        let Ok(Some(gap)) = blocking(move || Ok(store.gaps()?.pop())).await else { return false };
        let membership = self.raft.server_metrics().borrow_watched().membership_config.clone();
        for (id, node) in membership.nodes().filter(|(id, _)| **id != self.config.id) {
            let from = gap.start.max(gap.end.saturating_sub(MAX_RECORDS));
            let request = ReadAuditRecordsRequest { from, until: gap.end };
            let lines = match self.peers.read_audit_records(*id, node, request, READ_TIMEOUT).await {
                Ok(lines) if !lines.is_empty() => lines,
                Ok(_) => continue,
                Err(error) => {
                    debug!(%error, "no records of the audit log");
                    continue;
                }
            };
            let (store, filled, count) = (self.audit.clone(), gap.clone(), lines.len());
            match blocking(move || store.fill(&filled, &lines)).await {
                Ok(()) => {
                    info!(broker = id, records = count, before = gap.end, "records of the audit log received");
                    return true;
                }
                Err(error) => tracing::warn!(broker = id, %error, "another broker sent wrong records of the audit log"),
            }
        }
        false
    }
}

impl Group {
    /// The records that another broker asks for, as many as end at `until`, up to the first that is missing here.
    pub(crate) async fn serve_audit_records(
        &self,
        request: ReadAuditRecordsRequest,
    ) -> Result<ReadAuditRecordsResponse, Status> {
        let ReadAuditRecordsRequest { from, until } = request;
        if until.saturating_sub(from) > MAX_RECORDS {
            return Err(Status::invalid_argument(format!("until: ask for at most {MAX_RECORDS} records at once")));
        }
        let store = self.audit_store();
        let read = move || {
            store.flush()?;
            last_ones(&store, from, until)
        };
        let lines = blocking(read).await.map_err(|error| Status::internal(error.to_string()))?;
        Ok(ReadAuditRecordsResponse { lines })
    }
}

/// The last records before `until`, without a gap between them.
fn last_ones(store: &AuditStore, from: u64, until: u64) -> io::Result<Vec<String>> {
    let records = store.read(from, until, usize::try_from(MAX_RECORDS).unwrap_or(usize::MAX))?;
    let (mut index, mut bytes, mut lines) = (until, 0, Vec::new());
    for record in records.into_iter().rev() {
        bytes += record.line.len();
        if Some(record.index) != index.checked_sub(1) || (bytes > MAX_BYTES && !lines.is_empty()) {
            break;
        }
        index = record.index;
        lines.push(record.line);
    }
    lines.reverse();
    Ok(lines)
}

async fn blocking<T: Send + 'static>(f: impl FnOnce() -> io::Result<T> + Send + 'static) -> io::Result<T> {
    tokio::task::spawn_blocking(f).await.map_err(io::Error::other)?
}
