//! Writers that keep writing while leaders die, and record acknowledged writes.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;

use crate::stores::{Client, MAX_WRITES, MEMBERS, Store};

/// Number of writers; they start with different members, so that some are connected to survivors.
const FAILOVER_WRITERS: usize = 6;
/// Pause after an acknowledged write, which limits all writers to 150 writes per second, so that the queue of a broker
/// group lasts for fifty kills.
const WRITE_INTERVAL: Duration = Duration::from_millis(40);
/// Pause after a failed write.
const WRITE_RETRY_INTERVAL: Duration = Duration::from_millis(5);
/// Timeout of one try. Proposals forwarded to the dead leader are answered late or never, so a longer timeout would
/// dominate the measurement.
const TRY_TIMEOUT: Duration = Duration::from_millis(250);
/// Time without an acknowledgement after which the store counts as stuck.
const ACKNOWLEDGEMENT_TIMEOUT: Duration = Duration::from_secs(60);
/// Queue length of acknowledgements; the oldest ones matter.
const QUEUE_LENGTH: usize = 1_024;

/// Start and end of an acknowledged try.
type Acknowledged = (Instant, Instant);

/// Writers of one store.
pub(super) struct Writers {
    open: watch::Sender<bool>,
    shared: Arc<WriterState>,
    news: mpsc::Receiver<Acknowledged>,
    tasks: JoinSet<()>,
}

struct WriterState {
    next: AtomicU64,
    acknowledged: Mutex<BTreeSet<u64>>,
}

impl Writers {
    /// Creates the writers, which wait for [`Writers::go`].
    ///
    /// # Errors
    /// When a client cannot be created.
    pub(super) fn start(store: &impl Store) -> Result<Self> {
        let (open, (send, news)) = (watch::Sender::new(false), mpsc::channel(QUEUE_LENGTH));
        let shared = Arc::new(WriterState { next: AtomicU64::new(0), acknowledged: Mutex::default() });
        let mut tasks = JoinSet::new();
        for number in 0..FAILOVER_WRITERS {
            let client = store.client(number % MEMBERS)?;
            tasks.spawn(write(client, Arc::clone(&shared), open.subscribe(), send.clone()));
        }
        Ok(Self { open, shared, news, tasks })
    }

    /// Resumes writing.
    pub(super) fn go(&self) {
        self.open.send_replace(true);
    }

    /// Pauses writing; pending writes may still be acknowledged.
    pub(super) async fn rest(&mut self) {
        self.open.send_replace(false);
        tokio::time::sleep(WRITE_INTERVAL).await;
        while self.news.try_recv().is_ok() {}
    }

    /// Waits for the first acknowledgement of a write that began after `killed`; returns its time.
    pub(super) async fn next_acknowledgement(&mut self, killed: Instant) -> Result<Instant> {
        let first = async {
            loop {
                let (began, ended) = self.news.recv().await.context("the writers have ended")?;
                if began >= killed {
                    return Ok(ended);
                }
            }
        };
        tokio::time::timeout(ACKNOWLEDGEMENT_TIMEOUT, first)
            .await
            .with_context(|| format!("nothing acknowledged within {ACKNOWLEDGEMENT_TIMEOUT:?}"))?
    }

    /// Stops the writers; returns all acknowledged numbers.
    pub(super) async fn stop(mut self) -> BTreeSet<u64> {
        self.tasks.shutdown().await;
        std::mem::take(&mut *self.shared.acknowledged.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

async fn write<C: Client>(
    client: C,
    shared: Arc<WriterState>,
    mut open: watch::Receiver<bool>,
    news: mpsc::Sender<Acknowledged>,
) {
    loop {
        let number = shared.next.fetch_add(1, Ordering::Relaxed);
        if number >= MAX_WRITES {
            return;
        }
        loop {
            if open.wait_for(|open| *open).await.is_err() {
                return;
            }
            let began = Instant::now();
            if client.write(number, TRY_TIMEOUT).await.is_ok() {
                shared.acknowledged.lock().unwrap_or_else(PoisonError::into_inner).insert(number);
                // The measurement reads each of them after a kill, and drains the rest before the next kill.
                let _ = news.try_send((began, Instant::now()));
                break;
            }
            tokio::time::sleep(WRITE_RETRY_INTERVAL).await;
        }
        tokio::time::sleep(WRITE_INTERVAL).await;
    }
}
