//! Sends the audit log to the collector of `--audit-otlp`, in order and without gaps. The state remembers how far it got,
//! so that the next leader goes on from there. What was sent and not recorded is sent again: at least once.

use std::io;
use std::time::Duration;

use comity_audit::SealedRecord;
use comity_core::command::RecordAuditExport;
use comity_core::{Command, State};
use opentelemetry_proto::tonic::collector::logs::v1::ExportLogsServiceRequest;

use crate::audit_collector::{AuditCollector, Connection, Exported, NotExported, request_of};
use crate::context::Context;
use crate::group::Unavailable;
use crate::metrics::AuditLag;
use crate::storage::AuditStore;

/// How soon a new record is noticed.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);
/// Records of one call, and their bytes.
const MAX_BATCH: usize = 512;
const MAX_BATCH_BYTES: usize = 1 << 20;
/// Records that a long export may send before it records how far it got.
const RECORD_EVERY: u64 = 8_192;
/// Pauses between tries while the collector does not answer.
const MIN_RETRY: Duration = Duration::from_secs(1);
const MAX_RETRY: Duration = Duration::from_secs(60);

/// Exports while this broker leads, if it has a collector.
pub(super) async fn run(context: &Context) {
    let Some(collector) = &context.audit_collector else { return };
    let sent = context.group.peek(|state| state.audit_exported);
    let lag = context.metrics.audit_export_lag();
    let mut exporter = Exporter { context, collector, connection: None, sent, lag };
    let mut retry = MIN_RETRY;
    loop {
        let pause = match exporter.step().await {
            Ok(Step::Sent) => {
                retry = MIN_RETRY;
                continue;
            }
            Ok(Step::Idle) => LOOK_INTERVAL,
            Ok(Step::Failed(error)) => {
                context.metrics.audit_export_failed();
                let pause = retry;
                retry = (retry * 2).min(MAX_RETRY);
                tracing::warn!(%error, retry_in = ?pause, "the audit log is not exported");
                pause
            }
            Err(error) => {
                tracing::debug!(%error, "the export of the audit log is not recorded yet");
                super::RETRY_INTERVAL
            }
        };
        context.clock.sleep(pause).await;
    }
}

/// What a step did.
enum Step {
    /// Records were sent.
    Sent,
    /// The collector has all records.
    Idle,
    /// The collector has not got them.
    Failed(NotExported),
}

/// Records for one call.
struct RecordBatch {
    /// Number after the last one.
    until: u64,
    request: ExportLogsServiceRequest,
}

struct Exporter<'c> {
    context: &'c Context,
    collector: &'c AuditCollector,
    connection: Option<Connection>,
    /// Number after the last record that the collector acknowledged.
    sent: u64,
    lag: AuditLag,
}

impl Exporter<'_> {
    async fn step(&mut self) -> Result<Step, Unavailable> {
        let (size, recorded) = self.context.group.peek(|state: &State| (state.audit.size(), state.audit_exported));
        self.lag.set(size.saturating_sub(self.sent));
        let exported = if self.sent < size { self.export(size).await } else { Ok(()) };
        let pauses = exported.is_err() || self.sent >= size;
        if self.sent > recorded && (pauses || self.sent - recorded >= RECORD_EVERY) {
            let command = RecordAuditExport { until: self.sent };
            super::propose(self.context, Command::RecordAuditExport(command)).await?;
        }
        Ok(match exported {
            Err(error) => Step::Failed(error),
            Ok(()) if pauses => Step::Idle,
            Ok(()) => Step::Sent,
        })
    }

    /// Sends the next records.
    async fn export(&mut self, size: u64) -> Result<(), NotExported> {
        let (store, from, now_ms) = (self.context.group.audit_store(), self.sent, self.context.clock.unix_ms());
        let federation = self.context.ca.trust_domain().to_string();
        // Parsing the records takes time, which the leader's other tasks need.
        let read = tokio::task::spawn_blocking(move || next_batch(&store, &federation, from..size, now_ms));
        let batch = read.await.map_err(io::Error::other).flatten();
        let batch = batch.map_err(|error| NotExported(format!("the audit log cannot be read: {error}")))?;
        let Some(RecordBatch { until, request }) = batch else {
            let lacking = format!("this broker lacks record {from} of the audit log, and gets it from the others");
            return Err(NotExported(lacking));
        };
        let mut connection = match self.connection.take() {
            Some(connection) => connection,
            None => self.collector.connect().await?,
        };
        let Exported { rejected, reason } = connection.export(request).await?;
        self.connection = Some(connection);
        self.sent = until;
        if rejected > 0 {
            self.context.metrics.audit_records_rejected(rejected);
            tracing::error!(rejected, reason, "the collector rejects records of the audit log for good");
        }
        Ok(())
    }
}

/// The first records of a range without a gap; `None` if even the first is missing here. Blocks.
fn next_batch(
    store: &AuditStore,
    federation: &str,
    range: std::ops::Range<u64>,
    now_ms: u64,
) -> io::Result<Option<RecordBatch>> {
    store.flush()?;
    let mut records: Vec<SealedRecord> = store.read(range.start, range.end, MAX_BATCH)?;
    let (mut next, mut bytes) = (range.start, 0);
    let fitting = records.iter().take_while(|record| {
        let fits = record.index == next && (bytes == 0 || bytes + record.line.len() <= MAX_BATCH_BYTES);
        next += 1;
        bytes += record.line.len();
        fits
    });
    let count = fitting.count();
    records.truncate(count);
    let Some(last) = records.last() else { return Ok(None) };
    Ok(Some(RecordBatch { until: last.index + 1, request: request_of(federation, &records, now_ms) }))
}
