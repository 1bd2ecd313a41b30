//! Use of lent leases, as this process has observed it.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use comity_types::LeaseId;

/// Use of one lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeaseUse {
    /// Since when it has been idle, by the monotonic clock; `None` while it is in use.
    pub idle_since: Option<Duration>,
    /// Whether a report says so. After a restart none does.
    pub is_reported: bool,
}

/// Use of each lent lease.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LeaseUses(BTreeMap<LeaseId, LeaseUse>);

impl LeaseUses {
    /// Takes an observation of all lent leases. True if the use of any changed.
    pub(super) fn observe(&mut self, lent: &BTreeSet<LeaseId>, in_use: &BTreeSet<LeaseId>, now: Duration) -> bool {
        let before = self.0.len();
        self.0.retain(|lease, _| lent.contains(lease));
        let mut changed = self.0.len() != before;
        for lease in lent {
            let known = self.0.get(lease).copied();
            let was_idle = known.and_then(|known| known.idle_since);
            let idle_since = (!in_use.contains(lease)).then(|| was_idle.unwrap_or(now));
            if known.is_none_or(|known| known.idle_since != idle_since) {
                self.0.insert(*lease, LeaseUse { idle_since, is_reported: false });
                changed = true;
            }
        }
        changed
    }

    /// Remembers that a report says since when the lease has been idle.
    pub(crate) fn note_reported(&mut self, lease: LeaseId, idle_since: Option<Duration>) {
        if let Some(known) = self.0.get_mut(&lease).filter(|known| known.idle_since == idle_since) {
            known.is_reported = true;
        }
    }

    /// Use of a lease; `None` while nothing is known of it.
    #[must_use]
    pub fn of(&self, lease: LeaseId) -> Option<LeaseUse> {
        self.0.get(&lease).copied()
    }
}

impl FromIterator<(LeaseId, LeaseUse)> for LeaseUses {
    fn from_iter<I: IntoIterator<Item = (LeaseId, LeaseUse)>>(uses: I) -> Self {
        Self(uses.into_iter().collect())
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn set(leases: &[u64]) -> BTreeSet<LeaseId> {
        leases.iter().map(|id| LeaseId(*id)).collect()
    }

    #[test]
    fn idle_time_starts_when_the_last_pod_ends_and_again_after_each_use() {
        let mut uses = LeaseUses::default();
        let since = |uses: &LeaseUses| uses.of(LeaseId(1)).unwrap().idle_since;
        assert!(uses.observe(&set(&[1, 2]), &set(&[1]), SECOND));
        assert_eq!((since(&uses), uses.of(LeaseId(2)).unwrap().idle_since), (None, Some(SECOND)));
        assert!(!uses.observe(&set(&[1, 2]), &set(&[1]), SECOND * 5), "nothing changed");
        assert!(uses.observe(&set(&[1, 2]), &set(&[]), SECOND * 9));
        assert_eq!((since(&uses), uses.of(LeaseId(2)).unwrap().idle_since), (Some(SECOND * 9), Some(SECOND)));
        uses.note_reported(LeaseId(1), Some(SECOND * 9));
        assert!(uses.of(LeaseId(1)).unwrap().is_reported);
        // A short use in between is seen, and reported as a new idle time.
        uses.observe(&set(&[1]), &set(&[1]), SECOND * 20);
        uses.observe(&set(&[1]), &set(&[]), SECOND * 21);
        uses.note_reported(LeaseId(1), Some(SECOND * 9));
        assert_eq!(uses.of(LeaseId(1)), Some(LeaseUse { idle_since: Some(SECOND * 21), is_reported: false }));
        assert_eq!(uses.of(LeaseId(2)), None, "it is no longer lent");
    }
}
