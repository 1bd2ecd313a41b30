//! The thread that writes the store.

use std::path::PathBuf;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use comity_audit::{Hash, SealedRecord};
use redb::Database;
use tracing::error;

use super::tables::{self, Write};

/// How long records wait for others that share their fsync.
const GATHER_FOR: Duration = Duration::from_millis(200);
/// Records in one transaction; a single entry may have more.
const MAX_GATHERED: usize = 4_096;

/// What the writer does.
pub(super) enum Message {
    /// Stores records.
    Append(Vec<SealedRecord>),
    /// Checks that record `size` - 1 has the hash `last`, or notes that the records before are missing.
    Restored { size: u64, last: Hash },
    /// Answers once everything before is on disk.
    Flush(SyncSender<()>),
}

pub(super) struct Writer {
    pub(super) database: Arc<Database>,
    pub(super) path: PathBuf,
    pub(super) fault: Arc<Mutex<Option<String>>>,
    /// Number of the next record.
    pub(super) next: u64,
}

impl Writer {
    /// Writes until the queue is closed, or a write fails: then it only receives, so that nobody waits for it.
    pub(super) fn run(mut self, messages: &Receiver<Message>) {
        let mut is_open = true;
        while is_open {
            let Ok(first) = messages.recv() else { return };
            let (mut writes, mut flushes, mut count) = (Vec::new(), Vec::new(), 0);
            let deadline = Instant::now() + GATHER_FOR;
            let mut next = Some(first);
            while let Some(message) = next.take() {
                match message {
                    Message::Append(records) => {
                        count += records.len();
                        writes.extend(records.into_iter().map(Write::Record));
                    }
                    Message::Restored { size, last } => writes.push(Write::Restored { size, last }),
                    Message::Flush(done) => flushes.push(done),
                }
                if count >= MAX_GATHERED || !flushes.is_empty() {
                    break;
                }
                match messages.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
                    Ok(message) => next = Some(message),
                    Err(RecvTimeoutError::Timeout) => {}
                    Err(RecvTimeoutError::Disconnected) => is_open = false,
                }
            }
            if !self.write(&writes) {
                // Whoever waits for a flush learns of the fault by the end of the channel.
                drop(flushes);
                while messages.recv().is_ok() {}
                return;
            }
            for done in flushes {
                // Whoever waited may be gone.
                let _ = done.send(());
            }
        }
    }

    fn write(&mut self, writes: &[Write]) -> bool {
        if writes.is_empty() {
            return true;
        }
        match tables::write(&self.database, &self.path, self.next, writes) {
            Ok(next) => {
                self.next = next;
                true
            }
            Err(reason) => {
                error!(%reason, "the audit log cannot be written; this broker stops");
                self.fault.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(reason.to_string());
                false
            }
        }
    }
}
