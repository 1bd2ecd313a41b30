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
use tokio::sync::{Mutex, OwnedMutexGuard, oneshot};

use crate::api::caller::Caller;
use crate::api::caller_slots::{CallLimits, CallerSlot, CallerSlots};
use crate::api::rpc_error::RpcError;
use crate::context::Context;
use crate::group::Group;

/// Long calls under way, waiting ones included. They take turns, so a caller's share decides how long others wait.
pub static LONG_CALLS: CallLimits = CallLimits {
    what: "quotes, explanations and checks under way",
    per_caller: 4,
    per_institution: 16,
    per_broker: 64,
    caller_remedy: "wait until one of them is done",
    institution_remedy: "wait until some of them are done",
};
/// Niceness of the computing threads: Linux gives them a tenth of a busy processor.
#[cfg(target_os = "linux")]
const LONG_CALL_NICENESS: i32 = 10;

/// A copy of the state with its indexes, and the last log entry in it.
#[derive(Debug)]
struct IndexedCopy {
    index: u64,
    state: Arc<State>,
}

/// The newest copy, kept while further calls wait. Locked during a turn.
type Turn = OwnedMutexGuard<Option<IndexedCopy>>;

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

impl Context {
    /// Computes an answer from a copy of the state that includes everything acknowledged before the call.
    ///
    /// # Errors
    /// [`RpcError::LimitReached`] where the caller, its institution or this broker has too many long calls under way;
    /// otherwise as [`Group::read`].
    pub async fn read_long<T, F>(&self, caller: &Caller, what: &'static str, read: F) -> Result<T, RpcError>
    where
        T: Send + 'static,
        F: FnOnce(&State) -> T + Send + 'static,
    {
        let slot = self.long_calls.slots.take(caller, self.hub.policy().as_deref())?;
        self.group.catch_up().await?;
        self.long_calls.read(slot, &self.group, what, read).await
    }

    /// Computes an answer without the state.
    ///
    /// # Errors
    /// As [`read_long`](Self::read_long).
    pub async fn compute_long<T, F>(&self, caller: &Caller, what: &'static str, compute: F) -> Result<T, RpcError>
    where
        T: Send + 'static,
        F: FnOnce() -> T + Send + 'static,
    {
        let slot = self.long_calls.slots.take(caller, self.hub.policy().as_deref())?;
        let turn = Arc::clone(&self.long_calls.turn).lock_owned().await;
        on_thread(what, move || {
            let _held = (slot, turn);
            compute()
        })
        .await
    }
}

impl LongCalls {
    async fn read<T, F>(&self, slot: CallerSlot, group: &Group, what: &'static str, read: F) -> Result<T, RpcError>
    where
        T: Send + 'static,
        F: FnOnce(&State) -> T + Send + 'static,
    {
        let mut turn: Turn = Arc::clone(&self.turn).lock_owned().await;
        let held = turn.as_ref().map(|copy| copy.index);
        // Copied here, not on the thread: at low priority it could be suspended while it holds the lock.
        let (index, copied) = group.copy_after(held);
        let slots = self.slots.clone();
        on_thread(what, move || {
            let held = turn.take().map(|copy| copy.state);
            let state = match (copied, held) {
                (Some(copied), held) => {
                    // Frees the older copy before its successor's indexes take as much memory.
                    drop(held);
                    Arc::new(snapshot::with_derived(copied))
                }
                (None, Some(held)) => held,
                (None, None) => Arc::default(),
            };
            let answer = read(&state);
            if slots.under_way() > 1 {
                *turn = Some(IndexedCopy { index, state });
            }
            drop((turn, slot));
            answer
        })
        .await
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
