//! Reports that a broker acknowledged just now, and the desired state may not show yet.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use comity_agent_state::record::ReportKey;

/// Acknowledged reports, each with the monotonic time until which it counts as on its way.
#[derive(Default)]
pub struct Settling(Mutex<BTreeMap<ReportKey, Duration>>);

impl Settling {
    /// Counts a report as on its way until a time.
    pub(crate) fn note(&self, key: ReportKey, until: Duration) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).insert(key, until);
    }

    /// Reports of some kind no longer count as on their way.
    pub(crate) fn forget(&self, is_forgotten: impl Fn(&ReportKey) -> bool) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).retain(|key, _| !is_forgotten(key));
    }

    /// Reports on their way at a time; forgets the others.
    #[must_use]
    pub(crate) fn at(&self, now: Duration) -> BTreeSet<ReportKey> {
        let mut settling = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        settling.retain(|_, until| *until > now);
        settling.keys().cloned().collect()
    }
}
