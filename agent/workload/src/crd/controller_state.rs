//! State of the controller: watched objects, own writes and events.

use std::collections::{BTreeMap, BTreeSet};

use comity_agent_kubernetes::failure_log::FailureLog;
use comity_agent_kubernetes::watch_cache::WatchCache;
use kube::runtime::watcher::{self, Event};

use super::copies::{Copies, Work};
use super::remarks::Remarks;
use super::{GpuLease, GpuRequest};

#[derive(Default)]
pub(super) struct ControllerState {
    pub(super) requests: WatchCache<GpuRequest>,
    pub(super) leases: WatchCache<GpuLease>,
    /// Leases as they were written last, until they have settled: each change of a lease is written once.
    pub(super) written_leases: BTreeMap<String, GpuLease>,
    /// When requests without an object were first seen.
    pub(super) orphans: BTreeMap<String, u64>,
    /// Written requests that no watch has shown yet.
    copies: Copies,
    /// Events that were written.
    pub(super) remarks: Remarks,
    /// When the next warning about the end of a lease is due.
    pub(super) next_warning_ms: Option<u64>,
    /// When refused submissions are retried, by UID.
    retry_refused_ms: BTreeMap<String, u64>,
    /// Why objects wait, and when the broker was asked that, by UID.
    why: BTreeMap<String, (String, u64)>,
    /// Failures of objects, leases and requests.
    pub(super) failures: FailureLog,
    /// Whether a failing watch was logged: once, because the definitions may not be installed.
    is_failure_logged: bool,
}

impl ControllerState {
    pub(super) fn ok_or_log<K>(&mut self, what: &str, event: watcher::Result<Event<K>>) -> Option<Event<K>> {
        event
            .inspect_err(|error| {
                if !std::mem::replace(&mut self.is_failure_logged, true) {
                    tracing::warn!(what, %error, "cannot be watched yet; apply deploy/crds and \
                        deploy/agent/burst.yaml");
                }
            })
            .ok()
    }

    pub(super) fn forget_deleted(&mut self) {
        self.copies.forget(self.requests.facts());
        let there: BTreeSet<&str> = self.requests.facts().filter_map(|object| object.metadata.uid.as_deref()).collect();
        let leases: BTreeSet<&str> = self.leases.facts().filter_map(|object| object.metadata.uid.as_deref()).collect();
        self.remarks.forget(|uid| there.contains(uid) || leases.contains(uid));
        self.retry_refused_ms.retain(|uid, _| there.contains(uid.as_str()));
        self.why.retain(|uid, _| there.contains(uid.as_str()));
    }

    /// Starts work on an object.
    pub(super) fn begin(&self, object: &GpuRequest) -> Work {
        let mut work = self.copies.begin(object);
        let uid = work.uid();
        work.retry_refused_ms = self.retry_refused_ms.get(&uid).copied().unwrap_or(0);
        work.why = self.why.get(&uid).cloned();
        work
    }

    /// Records the state after work on an object.
    pub(super) fn end(&mut self, work: Work) {
        let uid = work.uid();
        self.retry_refused_ms.insert(uid.clone(), work.retry_refused_ms);
        if let Some(why) = &work.why {
            self.why.insert(uid, why.clone());
        }
        self.copies.keep(work);
    }
}
