//! Calls that compute for long: quotes, explanations, checks and plans of policy bundles.
//!
//! ```text
//!   slot ─▶ turn of the caller, one at a time ─▶ thread of low priority, first come, first served ─▶ copy of the state
//! ```
//!
//! None holds the state's lock while it computes, so they delay neither apply nor the calls of others. One caller has
//! at most one of the threads, and one place in the line for them, however many of its calls wait. The copy shares its
//! records with the state; only its indexes are computed again.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use comity_core::{State, snapshot};
use comity_policy::Bundle;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};

use crate::api::caller::Caller;
use crate::api::rpc_error::RpcError;
use crate::api::shares::caller_slots::{CallLimits, CallerSlot, CallerSlots};
use crate::api::shares::caller_turns::{CallerTurn, CallerTurns};

/// Long calls under way: of each caller one computes, and the others wait.
pub static LONG_CALLS: CallLimits = CallLimits {
    what: "quotes, explanations and checks under way",
    per_caller: 4,
    per_institution: 32,
    per_broker: 128,
    caller_remedy: "wait until one of them is done",
    institution_remedy: "wait until some of them are done",
};
/// Each thread may need a copy of the state with indexes of its own.
const MAX_LONG_CALL_THREADS: usize = 8;
/// Niceness of the computing threads: Linux gives them a tenth of a busy processor.
#[cfg(target_os = "linux")]
const LONG_CALL_NICENESS: i32 = 10;

/// Long calls that compute at once: half of the cores are left to the log, to apply and to short calls.
fn threads() -> usize {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    (cores / 2).clamp(1, MAX_LONG_CALL_THREADS)
}

/// A copy of the state with its indexes.
#[derive(Debug)]
struct IndexedCopy {
    /// Index of the last log entry in it.
    entry: u64,
    state: State,
}

/// The newest copy, which is kept while further calls are under way.
type NewestCopy = Arc<Mutex<Option<Arc<IndexedCopy>>>>;

/// The long calls of this broker. Clones share them.
#[derive(Debug, Clone)]
pub struct LongCalls {
    slots: CallerSlots,
    callers: CallerTurns,
    threads: Arc<Semaphore>,
    newest: NewestCopy,
}

/// A caller's turn: none of its other long calls computes, or waits for a thread.
#[derive(Debug)]
pub struct LongCall {
    slot: CallerSlot,
    turn: CallerTurn,
}

/// A turn that has a thread.
struct OnThread {
    call: LongCall,
    /// `None` if there were no limit: the semaphore is never closed.
    thread: Option<OwnedSemaphorePermit>,
}

impl Default for LongCalls {
    fn default() -> Self {
        Self::with_threads(threads())
    }
}

impl LongCalls {
    fn with_threads(threads: usize) -> Self {
        Self {
            slots: CallerSlots::new(&LONG_CALLS),
            callers: CallerTurns::new(1),
            threads: Arc::new(Semaphore::new(threads)),
            newest: NewestCopy::default(),
        }
    }

    /// Counts a call, and waits for its caller's turn.
    ///
    /// # Errors
    /// [`RpcError::LimitReached`], at once.
    pub async fn begin(&self, caller: &Caller, bundle: Option<&Bundle>) -> Result<LongCall, RpcError> {
        let slot = self.slots.take(caller, bundle)?;
        Ok(LongCall { slot, turn: self.callers.take(caller).await })
    }

    async fn thread_for(&self, call: LongCall) -> OnThread {
        OnThread { call, thread: Arc::clone(&self.threads).acquire_owned().await.ok() }
    }

    /// Computes an answer without the state.
    ///
    /// # Errors
    /// [`RpcError::Internal`] where `compute` panics.
    pub async fn compute<T, F>(&self, call: LongCall, what: &'static str, compute: F) -> Result<T, RpcError>
    where
        T: Send + 'static,
        F: FnOnce() -> T + Send + 'static,
    {
        let held = self.thread_for(call).await;
        on_thread(what, move || {
            let _held = held;
            compute()
        })
        .await
    }

    /// Computes an answer from a copy of the state. `copy` gets the entry of the newest copy that is held, and returns
    /// a newer one if there is one.
    ///
    /// # Errors
    /// [`RpcError::Internal`] where `read` panics.
    pub async fn read<T, F>(
        &self,
        call: LongCall,
        copy: impl FnOnce(Option<u64>) -> Option<(u64, State)>,
        what: &'static str,
        read: F,
    ) -> Result<T, RpcError>
    where
        T: Send + 'static,
        F: FnOnce(&State) -> T + Send + 'static,
    {
        let held = self.thread_for(call).await;
        let mut known = self.newest().clone();
        // Copied here, not on the thread: at low priority it could be suspended while it holds the state's lock.
        let newer = copy(known.as_ref().map(|known| known.entry));
        let calls = self.clone();
        let answer = on_thread(what, move || {
            if let Some((entry, copied)) = newer {
                // Frees the older copy before the indexes of the newer one take as much memory, and outside the lock.
                let older = calls.newest().take_if(|newest| newest.entry < entry);
                drop((known.take(), older));
                let indexed = Arc::new(IndexedCopy { entry, state: snapshot::with_derived(copied) });
                calls.newest().get_or_insert_with(|| Arc::clone(&indexed));
                known = Some(indexed);
            }
            let answer = known.take().map(|known| read(&known.state));
            let OnThread { call: LongCall { slot, turn }, thread } = held;
            // The slot first: whoever comes next must not count this call.
            drop(slot);
            if calls.slots.under_way() == 0 {
                let unused = calls.newest().take();
                drop(unused);
            }
            drop((turn, thread));
            answer
        });
        answer.await?.ok_or(RpcError::Internal { what })
    }

    fn newest(&self) -> MutexGuard<'_, Option<Arc<IndexedCopy>>> {
        // Each change is one value, so a panic elsewhere leaves nothing half done.
        self.newest.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Runs `compute` to its end on a thread of low priority, even if the caller stops waiting.
async fn on_thread<T: Send + 'static>(
    what: &'static str,
    compute: impl FnOnce() -> T + Send + 'static,
) -> Result<T, RpcError> {
    let (sender, answer) = oneshot::channel();
    let work = move || {
        lower_priority();
        // Nobody waits if the caller is gone.
        let _ = sender.send(compute());
    };
    let failed = RpcError::Internal { what };
    match std::thread::Builder::new().name("long-call".to_owned()).spawn(work) {
        // A panic drops the sender.
        Ok(_) => answer.await.map_err(|_| failed),
        Err(error) => {
            tracing::error!(%error, "cannot start a thread");
            Err(failed)
        }
    }
}

/// Lowers the priority of this thread.
fn lower_priority() {
    #[cfg(target_os = "linux")]
    if let Err(error) = rustix::process::setpriority_process(None, LONG_CALL_NICENESS) {
        tracing::debug!(%error, "cannot lower the priority of a thread");
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use std::sync::RwLock;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::sync::mpsc;
    use std::time::Duration;

    use comity_runtime::spiffe::{SpiffeId, TrustDomain, UserName};

    use super::*;

    fn user(name: &str) -> Caller {
        Caller::User(SpiffeId::user(TrustDomain::new("comity.example").unwrap(), UserName::new(name).unwrap()), 0)
    }

    /// A state behind a lock, whose copies are counted.
    #[derive(Clone, Default)]
    struct Ledger {
        state: Arc<RwLock<State>>,
        copies: Arc<AtomicUsize>,
    }

    impl Ledger {
        fn copy_after(&self, known: Option<u64>) -> Option<(u64, State)> {
            let state = self.state.read().unwrap();
            (known != Some(7)).then(|| {
                self.copies.fetch_add(1, Ordering::Relaxed);
                (7, snapshot::copy(&state))
            })
        }
    }

    /// Starts a long call that ends once `release` sends or is dropped; `started` tells that it computes.
    fn start(
        calls: &LongCalls,
        ledger: &Ledger,
        caller: &str,
        started: mpsc::Sender<String>,
        release: mpsc::Receiver<()>,
    ) -> tokio::task::JoinHandle<Result<u64, RpcError>> {
        let (calls, ledger, name) = (calls.clone(), ledger.clone(), caller.to_owned());
        tokio::spawn(async move {
            let call = calls.begin(&user(&name), None).await?;
            let read = move |state: &State| {
                started.send(name).unwrap();
                let _ = release.recv();
                state.revision
            };
            calls.read(call, |known| ledger.copy_after(known), "testing", read).await
        })
    }

    const PATIENCE: Duration = Duration::from_secs(10);
    const MOMENT: Duration = Duration::from_millis(100);

    #[tokio::test(flavor = "multi_thread", worker_threads = 1)]
    async fn long_calls_hold_no_lock_share_a_copy_and_take_turns_by_caller() {
        let (calls, ledger) = (LongCalls::with_threads(2), Ledger::default());
        let (started, computing) = mpsc::channel();
        let mut releases = Vec::new();
        let mut begin = |caller: &str| {
            let (release, wait) = mpsc::channel();
            releases.push(release);
            start(&calls, &ledger, caller, started.clone(), wait)
        };
        let counted = async |number: usize| {
            while calls.slots.under_way() < number {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        };
        let mut running = Vec::new();
        for number in 1..=LONG_CALLS.per_caller {
            running.push(begin("alice"));
            counted(number).await;
        }
        // A storm of one caller is refused, and the rest of it has one thread.
        let refused = begin("alice").await.unwrap().unwrap_err();
        let expected = "spiffe://comity.example/user/alice has 4 quotes, explanations and checks under way, which is \
                        the limit of one caller";
        assert_eq!(refused.to_string(), expected);
        assert_eq!(computing.recv_timeout(PATIENCE).unwrap(), "alice");
        assert!(computing.recv_timeout(MOMENT).is_err(), "one caller has two threads");
        assert!(ledger.state.try_write().is_ok(), "a long call holds the lock of the state");
        // Another caller passes those of the first that wait.
        for other in ["bob", "carol"] {
            running.push(begin(other));
            counted(running.len()).await;
        }
        assert_eq!(computing.recv_timeout(PATIENCE).unwrap(), "bob");
        assert!(computing.recv_timeout(MOMENT).is_err(), "three long calls compute at once");
        drop(releases);
        for call in running {
            assert_eq!(call.await.unwrap().unwrap(), 0);
        }
        assert_eq!(ledger.copies.load(Ordering::Relaxed), 1, "calls share a copy");
        assert_eq!(calls.slots.under_way(), 0);
        assert!(calls.newest().is_none(), "nobody waits, so the copy is gone");
    }

    #[tokio::test]
    async fn a_caller_that_stops_waiting_keeps_its_slot_until_the_thread_is_done() {
        let (calls, ledger) = (LongCalls::with_threads(1), Ledger::default());
        let (started, computing) = mpsc::channel();
        let (release, wait) = mpsc::channel();
        let call = start(&calls, &ledger, "alice", started, wait);
        let computes = tokio::task::spawn_blocking(move || computing.recv_timeout(PATIENCE));
        computes.await.unwrap().unwrap();
        call.abort();
        assert!(call.await.unwrap_err().is_cancelled());
        assert_eq!(calls.slots.under_way(), 1);
        drop(release);
        let _thread = calls.threads.acquire().await.unwrap();
        assert_eq!(calls.slots.under_way(), 0);
    }

    #[tokio::test]
    async fn a_panic_fails_one_call_only() {
        let calls = LongCalls::default();
        let ledger = Ledger::default();
        let read = |calls: &LongCalls, read: fn(&State) -> u64| {
            let (calls, ledger) = (calls.clone(), ledger.clone());
            async move {
                let call = calls.begin(&user("alice"), None).await?;
                calls.read(call, |known| ledger.copy_after(known), "testing", read).await
            }
        };
        let failed = read(&calls, |_| panic!("as a bug would")).await.unwrap_err();
        assert_eq!(failed.to_string(), "testing failed in this broker");
        assert_eq!(read(&calls, |state| state.revision).await.unwrap(), 0);
        assert_eq!(calls.slots.under_way(), 0);
    }

    #[cfg(target_os = "linux")]
    #[tokio::test]
    async fn they_compute_at_a_low_priority() {
        let calls = LongCalls::default();
        let call = calls.begin(&user("alice"), None).await.unwrap();
        let niceness = || rustix::process::getpriority_process(None).unwrap();
        let before = niceness();
        let computing = calls.compute(call, "testing", niceness).await.unwrap();
        assert!(computing >= LONG_CALL_NICENESS, "{computing}");
        assert_eq!(niceness(), before, "this thread's");
    }
}
