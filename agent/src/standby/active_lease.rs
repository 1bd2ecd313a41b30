//! The Lease of the active replica: waits for it, renews it, and gives it back.

use std::time::Duration;

use comity_agent_fabric::Fence;
use comity_agent_kubernetes::failure_log::FailureLog;
use comity_agent_kubernetes::leader_lease::{LeaderLease, LeaderLeaseError, Renewed};
use comity_agent_model::boot_time::BootTime;
use comity_runtime::Shutdown;
use tokio::sync::{mpsc, oneshot, watch};

use super::ACTIVE_LEASE;

/// How long giving the Lease back may take.
const RELEASE_TIMEOUT: Duration = Duration::from_secs(2);

/// Tries until the Lease is held; `None` if the process stops first.
pub(super) async fn win(lease: &mut LeaderLease, shutdown: &Shutdown) -> Option<BootTime> {
    let (mut known_holder, mut failures) = (None, FailureLog::default());
    loop {
        match lease.try_take().await {
            Ok(Some(until)) => {
                tracing::info!("this replica is the active agent");
                return Some(until);
            }
            Ok(None) => {
                failures.cleared(ACTIVE_LEASE);
                if known_holder.as_deref() != Some(lease.holder()) {
                    match lease.holder() {
                        "" => tracing::info!("the Lease has no holder; this replica takes it after a term"),
                        active => tracing::info!(active, "this replica is a standby"),
                    }
                    known_holder = Some(lease.holder().to_owned());
                }
            }
            Err(error) => warn_once(&mut failures, &error),
        }
        tokio::select! {
            () = shutdown.triggered() => return None,
            () = tokio::time::sleep(lease.interval()) => {}
        }
    }
}

fn warn_once(failures: &mut FailureLog, error: &LeaderLeaseError) {
    if failures.is_new(ACTIVE_LEASE, &error.to_string()) {
        tracing::warn!(%error, "the Lease cannot be used; is deploy/agent/standby/rbac.yaml applied?");
    }
}

/// A Lease that this replica holds, and the task that renews it.
pub(super) struct HeldLease {
    release: oneshot::Sender<()>,
    /// Closed when the task has ended.
    renewing: mpsc::Sender<()>,
}

impl HeldLease {
    /// Renews it until it is given back or dropped, or another replica has it, whose name goes to `replaced`.
    pub(super) fn keep(lease: LeaderLease, fence: Fence, replaced: watch::Sender<Option<String>>) -> Self {
        let (release, released) = oneshot::channel();
        let (renewing, ended) = mpsc::channel(1);
        tokio::spawn(LeaseRenewal { lease, fence, replaced, _ended: ended }.run(released));
        Self { release, renewing }
    }

    /// Gives it back, so that a standby takes over at once.
    pub(super) async fn give_back(self) {
        let Self { release, renewing } = self;
        if release.send(()).is_ok() && tokio::time::timeout(RELEASE_TIMEOUT, renewing.closed()).await.is_err() {
            tracing::warn!("the Lease {ACTIVE_LEASE} could not be given back in time; it ends by itself");
        }
    }
}

struct LeaseRenewal {
    lease: LeaderLease,
    fence: Fence,
    replaced: watch::Sender<Option<String>>,
    /// Dropped at the end, which the holder notices.
    _ended: mpsc::Receiver<()>,
}

impl LeaseRenewal {
    /// While no renewal succeeds the fence closes by itself; it opens again if this replica still holds the Lease then.
    async fn run(mut self, mut released: oneshot::Receiver<()>) {
        let mut failures = FailureLog::default();
        loop {
            tokio::select! {
                // Also if the holder was dropped: the agent did not start.
                _ = &mut released => {
                    self.fence.close();
                    if let Err(error) = self.lease.release().await {
                        tracing::warn!(%error, "the Lease was not given back; it ends by itself");
                    }
                    return;
                }
                () = tokio::time::sleep(self.lease.interval()) => {}
            }
            match self.lease.renew().await {
                Ok(Renewed::Until(until)) => {
                    self.fence.extend_until(until);
                    failures.cleared(ACTIVE_LEASE);
                }
                Ok(Renewed::Lost(holder)) => {
                    self.fence.close();
                    let holder = Some(holder).filter(|holder| !holder.is_empty());
                    let holder = holder.unwrap_or_else(|| "another replica".to_owned());
                    tracing::error!(active = holder, "another replica is the active agent now");
                    self.replaced.send_replace(Some(holder));
                    return;
                }
                Err(error) => warn_once(&mut failures, &error),
            }
        }
    }
}
