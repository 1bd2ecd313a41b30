//! Writers that keep writing while leaders die, and record acknowledged writes.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;

use crate::stores::{Client, MAX_WRITES, MEMBERS, Store};

/// Writers: they begin with different members, so that some are connected to survivors.
const WRITERS: usize = 6;
/// After an acknowledged write: all of them together write 150 times a second at most, which the queue of a broker
/// group takes for as long as fifty kills last.
const PAUSE: Duration = Duration::from_millis(40);
/// After a write that failed.
const AGAIN: Duration = Duration::from_millis(5);
/// For one try. A proposal that a member handed to the leader that died is answered late or never: with a longer limit
/// what is measured is the limit.
const TRY: Duration = Duration::from_millis(250);
/// Without an acknowledgement for so long, the store is stuck.
const STUCK: Duration = Duration::from_secs(60);
/// Acknowledgements that wait to be looked at; the oldest are those that matter.
const NEWS: usize = 1_024;

/// An acknowledged try: when it began and when it was over.
type Acknowledged = (Instant, Instant);

/// Writers of one store.
pub(super) struct Writers {
    open: watch::Sender<bool>,
    shared: Arc<Shared>,
    news: mpsc::Receiver<Acknowledged>,
    tasks: JoinSet<()>,
}

struct Shared {
    next: AtomicU64,
    acknowledged: Mutex<BTreeSet<u64>>,
}

impl Writers {
    /// Makes them; they wait for [`Writers::go`].
    ///
    /// # Errors
    /// When a client cannot be made.
    pub(super) fn start(store: &impl Store) -> Result<Self> {
        let (open, (send, news)) = (watch::Sender::new(false), mpsc::channel(NEWS));
        let shared = Arc::new(Shared { next: AtomicU64::new(0), acknowledged: Mutex::default() });
        let mut tasks = JoinSet::new();
        for number in 0..WRITERS {
            let client = store.client(number % MEMBERS)?;
            tasks.spawn(write(client, Arc::clone(&shared), open.subscribe(), send.clone()));
        }
        Ok(Self { open, shared, news, tasks })
    }

    /// Lets them write.
    pub(super) fn go(&self) {
        self.open.send_replace(true);
    }

    /// Keeps them from writing; what is on its way may still be acknowledged.
    pub(super) async fn rest(&mut self) {
        self.open.send_replace(false);
        tokio::time::sleep(PAUSE).await;
        while self.news.try_recv().is_ok() {}
    }

    /// When the first write was acknowledged of those that began after `killed`.
    pub(super) async fn next_acknowledgement(&mut self, killed: Instant) -> Result<Instant> {
        let first = async {
            loop {
                let (began, ended) = self.news.recv().await.context("the writers have ended")?;
                if began >= killed {
                    return Ok(ended);
                }
            }
        };
        tokio::time::timeout(STUCK, first).await.with_context(|| format!("nothing acknowledged within {STUCK:?}"))?
    }

    /// Ends them; all numbers that were acknowledged.
    pub(super) async fn stop(mut self) -> BTreeSet<u64> {
        self.tasks.shutdown().await;
        std::mem::take(&mut *self.shared.acknowledged.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

async fn write<C: Client>(
    client: C,
    shared: Arc<Shared>,
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
            if client.write(number, TRY).await.is_ok() {
                shared.acknowledged.lock().unwrap_or_else(PoisonError::into_inner).insert(number);
                // Whoever measures looks at each of them after a kill, and empties the rest before the next.
                let _ = news.try_send((began, Instant::now()));
                break;
            }
            tokio::time::sleep(AGAIN).await;
        }
        tokio::time::sleep(PAUSE).await;
    }
}
