//! Calls that compute for long: quotes, explanations, checks of policy bundles.
//!
//! ```text
//!   slot of the caller ─▶ turn, first come, first served ─▶ copy of the state ─▶ thread of low priority
//! ```
//!
//! They take turns, and none holds the state's lock while it computes, so they delay neither apply nor the calls of
//! others. The copy shares its records with the state; only its indexes are computed again.

use std::sync::Arc;

use comity_core::{State, snapshot};
use comity_policy::Bundle;
use tokio::sync::{Mutex, OwnedMutexGuard, oneshot};

use crate::api::caller::Caller;
use crate::api::rpc_error::RpcError;
use crate::api::shares::caller_slots::{CallLimits, CallerSlot, CallerSlots};

/// Long calls under way, waiting ones included. They take turns, so a caller's share decides how long others wait.
pub static LONG_CALLS: CallLimits = CallLimits {
    what: "quotes, explanations and checks under way",
    per_caller: 8,
    per_institution: 32,
    per_broker: 128,
    caller_remedy: "wait until one of them is done",
    institution_remedy: "wait until some of them are done",
};
/// Niceness of the computing threads: Linux gives them a tenth of a busy processor.
#[cfg(target_os = "linux")]
const LONG_CALL_NICENESS: i32 = 10;

/// A copy of the state with its indexes.
#[derive(Debug)]
struct IndexedCopy {
    /// Index of the last log entry in it.
    entry: u64,
    state: State,
}

/// Held during a turn, with the newest copy, which is kept while further calls wait.
type CopyTurn = OwnedMutexGuard<Option<IndexedCopy>>;

/// The long calls of this broker. Clones share them.
#[derive(Debug, Clone)]
pub struct LongCalls {
    slots: CallerSlots,
    turn: Arc<Mutex<Option<IndexedCopy>>>,
}

impl Default for LongCalls {
    fn default() -> Self {
        Self { slots: CallerSlots::new(&LONG_CALLS), turn: Arc::default() }
    }
}

impl LongCalls {
    /// Counts a call until the result is dropped.
    ///
    /// # Errors
    /// [`RpcError::LimitReached`].
    pub fn begin(&self, caller: &Caller, bundle: Option<&Bundle>) -> Result<CallerSlot, RpcError> {
        self.slots.take(caller, bundle)
    }

    /// Computes an answer without the state, in a turn.
    ///
    /// # Errors
    /// [`RpcError::Internal`] where `compute` panics.
    pub async fn compute<T, F>(&self, slot: CallerSlot, what: &'static str, compute: F) -> Result<T, RpcError>
    where
        T: Send + 'static,
        F: FnOnce() -> T + Send + 'static,
    {
        let turn = Arc::clone(&self.turn).lock_owned().await;
        on_thread(what, move || {
            let _held = (slot, turn);
            compute()
        })
        .await
    }

    /// Computes an answer from a copy of the state, in a turn. `copy` gets the entry of the copy that is held, and
    /// returns a newer copy if there is one.
    ///
    /// # Errors
    /// [`RpcError::Internal`] where `read` panics.
    pub async fn read<T, F>(
        &self,
        slot: CallerSlot,
        copy: impl FnOnce(Option<u64>) -> Option<(u64, State)>,
        what: &'static str,
        read: F,
    ) -> Result<T, RpcError>
    where
        T: Send + 'static,
        F: FnOnce(&State) -> T + Send + 'static,
    {
        let mut turn: CopyTurn = Arc::clone(&self.turn).lock_owned().await;
        // Copied here, not on the thread: at low priority it could be suspended while it holds the state's lock.
        let newer = copy(turn.as_ref().map(|held| held.entry));
        let slots = self.slots.clone();
        let answer = on_thread(what, move || {
            if let Some((entry, copied)) = newer {
                // Frees the older copy before the indexes of the newer one take as much memory.
                *turn = None;
                *turn = Some(IndexedCopy { entry, state: snapshot::with_derived(copied) });
            }
            let answer = turn.as_ref().map(|held| read(&held.state));
            if slots.under_way() <= 1 {
                *turn = None;
            }
            // The slot first: whoever comes next must not count this call.
            drop(slot);
            drop(turn);
            answer
        });
        answer.await?.ok_or(RpcError::Internal { what })
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
        Caller::User(SpiffeId::user(TrustDomain::new("comity.example").unwrap(), UserName::new(name).unwrap()))
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
        caller: &Caller,
        started: mpsc::Sender<()>,
        release: mpsc::Receiver<()>,
    ) -> Result<tokio::task::JoinHandle<u64>, RpcError> {
        let slot = calls.slots.take(caller, None)?;
        let (calls, ledger) = (calls.clone(), ledger.clone());
        let read = move |state: &State| {
            started.send(()).unwrap();
            let _ = release.recv();
            state.revision
        };
        let call = async move { calls.read(slot, |known| ledger.copy_after(known), "testing", read).await.unwrap() };
        Ok(tokio::spawn(call))
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 1)]
    async fn long_calls_hold_no_lock_take_turns_and_share_a_copy() {
        let (calls, ledger) = (LongCalls::default(), Ledger::default());
        let (started, computing) = mpsc::channel();
        let (alice, bob) = (user("alice"), user("bob"));
        let mut releases = Vec::new();
        let mut running = Vec::new();
        let mut begin = |caller: &Caller| {
            let (release, wait) = mpsc::channel();
            let call = start(&calls, &ledger, caller, started.clone(), wait)?;
            releases.push(release);
            running.push(call);
            Ok::<_, RpcError>(())
        };
        for _ in 0..LONG_CALLS.per_caller {
            begin(&alice).unwrap();
        }
        // A storm of one caller is refused, and another is served in its turn.
        let refused = begin(&alice).unwrap_err();
        let expected = "spiffe://comity.example/user/alice has 8 quotes, explanations and checks under way, which is \
                        the limit of one caller";
        assert_eq!(refused.to_string(), expected);
        begin(&bob).unwrap();

        computing.recv_timeout(Duration::from_secs(10)).unwrap();
        assert!(ledger.state.try_write().is_ok(), "a long call holds the lock of the state");
        assert!(computing.recv_timeout(Duration::from_millis(100)).is_err(), "two long calls compute at once");
        drop(releases);
        for call in running {
            assert_eq!(call.await.unwrap(), 0);
        }
        assert_eq!(ledger.copies.load(Ordering::Relaxed), 1, "waiting calls share a copy");
        assert_eq!(calls.slots.under_way(), 0);
        assert!(calls.turn.lock().await.is_none(), "nobody waits, so the copy is gone");
    }

    #[tokio::test]
    async fn a_caller_that_stops_waiting_keeps_its_slot_until_the_thread_is_done() {
        let (calls, ledger) = (LongCalls::default(), Ledger::default());
        let (started, computing) = mpsc::channel();
        let (release, wait) = mpsc::channel();
        let call = start(&calls, &ledger, &user("alice"), started, wait).unwrap();
        let computes = tokio::task::spawn_blocking(move || computing.recv_timeout(Duration::from_secs(10)));
        computes.await.unwrap().unwrap();
        call.abort();
        assert!(call.await.unwrap_err().is_cancelled());
        assert_eq!(calls.slots.under_way(), 1);
        drop(release);
        let _turn = calls.turn.lock().await;
        assert_eq!(calls.slots.under_way(), 0);
    }

    #[tokio::test]
    async fn a_panic_fails_one_call_only() {
        let calls = LongCalls::default();
        let ledger = Ledger::default();
        let read = |calls: &LongCalls, read: fn(&State) -> u64| {
            let (calls, ledger) = (calls.clone(), ledger.clone());
            let slot = calls.slots.take(&user("alice"), None).unwrap();
            async move { calls.read(slot, |known| ledger.copy_after(known), "testing", read).await }
        };
        let failed = read(&calls, |_| panic!("as a bug would")).await.unwrap_err();
        assert_eq!(failed.to_string(), "testing failed in this broker");
        assert_eq!(read(&calls, |state| state.revision).await.unwrap(), 0);
        assert_eq!(calls.slots.under_way(), 0);
    }
}
