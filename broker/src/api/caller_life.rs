//! How long a caller may go on: until its certificate expires or is void, or its institution is suspended, or this
//! broker would not learn of that, because it knows no leader. Every call that outlives its admission waits for the
//! end, on whichever broker it runs.

use std::time::{Duration, SystemTime};

use comity_core::{Refusal, State};
use comity_runtime::clock::Clock;
use comity_runtime::tls::PeerInfo;
use tokio::sync::watch;

use crate::api::authorize::Rpc;
use crate::api::caller::Caller;
use crate::api::rpc_error::RpcError;
use crate::group::{Consistency, Group};

/// Interval of checks whether a certificate has expired. Revocations are noticed as they are applied.
const EXPIRY_CHECK_INTERVAL: Duration = Duration::from_secs(5);

/// How long a broker that knows no leader serves certificates of users and clusters, which may be void by now. Elections
/// take less. With the 0.8 s after which it knows none, this is within the five seconds after which a revocation is in
/// effect.
const LEADERLESS_TIMEOUT: Duration = Duration::from_secs(4);

/// A caller, by the certificate of its connection.
#[derive(Debug, Clone)]
pub struct CallerLife {
    caller: Caller,
    peer: Option<PeerInfo>,
    rpc: Rpc,
}

/// The time by which the certificate of a caller of `rpc` must not have ended.
fn certificate_time(rpc: Rpc, group: &Group) -> SystemTime {
    match rpc {
        Rpc::RebaseTime | Rpc::GetRaftStatus => group.inner.certificate_time_for_repair(),
        _ => group.inner.certificate_time(),
    }
}

impl CallerLife {
    /// Of the peer of a connection, if it may call now.
    ///
    /// # Errors
    /// [`RpcError::Unauthenticated`], or a refusal with code `revoked`. [`RpcError::Unavailable`] where this broker may
    /// lack the revocation of the caller: until it has caught up with its group once since its start, and while it has
    /// known no leader for 4 s. The status of the group is told all the same, because it says why
    /// there is no leader.
    pub async fn begin(peer: Option<PeerInfo>, rpc: Rpc, group: &Group) -> Result<Self, RpcError> {
        let caller = Caller::of(peer.as_ref(), certificate_time(rpc, group))?;
        if matches!(caller, Caller::Cluster(..) | Caller::User(..)) && rpc != Rpc::GetRaftStatus {
            group.catch_up_since_start().await?;
            if group.is_without_leader_for(LEADERLESS_TIMEOUT) {
                return Err(group.no_leader().into());
            }
        }
        let life = Self { caller, peer, rpc };
        life.check(group).await?;
        Ok(life)
    }

    /// The caller.
    #[must_use]
    pub fn caller(&self) -> &Caller {
        &self.caller
    }

    /// Waits until the call must end, and says why. `revocations` changes with void certificates and suspensions.
    pub async fn ended(&self, group: &Group, clock: &dyn Clock, mut revocations: watch::Receiver<u64>) -> RpcError {
        loop {
            if let Err(ended) = self.check(group).await {
                return ended;
            }
            tokio::select! {
                changed = revocations.changed() => if changed.is_err() {
                    return RpcError::Stopping;
                },
                () = clock.sleep(EXPIRY_CHECK_INTERVAL) => {}
                () = group.without_leader_for(LEADERLESS_TIMEOUT) => return group.no_leader().into(),
            }
        }
    }

    async fn check(&self, group: &Group) -> Result<(), RpcError> {
        Caller::of(self.peer.as_ref(), certificate_time(self.rpc, group))?;
        if self.caller == Caller::Anonymous {
            return Ok(());
        }
        let here = |state: &State| (self.standing(state), self.is_void(state));
        match group.read(Consistency::Stale, here).await? {
            (Ok(()), _) => Ok(()),
            // No later entry makes it valid, so nobody keeps the leader busy with it.
            (Err(refusal), true) => Err(refusal.into()),
            // This broker may lag behind the entry that resumed the institution, or by which the cluster joined again.
            (Err(_), false) => {
                Ok(group.read(Consistency::Linearizable, |state: &State| self.standing(state)).await??)
            }
        }
    }

    fn is_void(&self, state: &State) -> bool {
        state.is_void(&self.caller.actor(), self.caller.generation())
    }

    /// Refuses a caller whose certificate is void, or whose institution is suspended, by a state.
    ///
    /// # Errors
    /// A refusal with code `revoked`.
    pub fn standing(&self, state: &State) -> Result<(), Refusal> {
        state.check_standing(&self.caller.actor(), self.caller.generation())
    }
}
