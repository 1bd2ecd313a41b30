//! The desired state from the broker, and which local objects it no longer wants.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use crate::desired_state::DesiredState;
use crate::object_id::ObjectId;

/// An object is unwanted once two desired states this far apart lack it.
pub const CONFIRMED_AFTER: Duration = Duration::from_secs(5);
/// Older revisions, from a broker that lags, are ignored this long. Then they count: the group may have been restored
/// from a backup, or the later revision was a lie.
const OLDER_IGNORED_FOR: Duration = Duration::from_secs(60);

/// A desired state as received from a stream.
#[derive(Clone, Debug, Default)]
pub struct Update {
    /// The state; absent before the first.
    pub state: Option<Arc<DesiredState>>,
    /// Whether the stream that brought it is connected.
    pub is_live: bool,
    /// Counts the states received.
    pub number: u64,
}

/// The state in force.
#[derive(Debug, Default)]
pub struct Desired {
    state: Arc<DesiredState>,
    is_live: bool,
    number: u64,
    older_since: Option<Duration>,
    /// Number of the older state that is ignored now.
    ignored: u64,
    missing: BTreeMap<ObjectId, Duration>,
    unwanted: BTreeSet<ObjectId>,
}

impl Desired {
    /// Starts from the stored state, which never makes an object unwanted.
    #[must_use]
    pub fn remembered(state: DesiredState) -> Self {
        Self { state: Arc::new(state), ..Self::default() }
    }

    /// Applies an update at a time of the monotonic clock; `here` are all objects that this agent holds anything of.
    /// Returns whether the state is new.
    pub fn take(&mut self, update: &Update, here: &BTreeSet<ObjectId>, now: Duration) -> bool {
        self.is_live = update.is_live;
        let Some(state) = update.state.as_ref().filter(|_| update.number != self.number) else { return false };
        if state.revision < self.state.revision {
            let since = *self.older_since.get_or_insert(now);
            if !update.is_live || now.saturating_sub(since) < OLDER_IGNORED_FOR {
                if std::mem::replace(&mut self.ignored, update.number) != update.number {
                    let (revision, known) = (state.revision, self.state.revision);
                    tracing::warn!(revision, known, "ignoring an older desired state");
                }
                // It is looked at again later, also if its broker says nothing more.
                self.is_live = false;
                return false;
            }
        }
        self.number = update.number;
        self.older_since = None;
        self.state = Arc::clone(state);
        self.compare(here, now);
        true
    }

    /// Updates which objects are missing from the state, and since when.
    fn compare(&mut self, here: &BTreeSet<ObjectId>, now: Duration) {
        let leases = self.state.leases.iter().map(|lease| ObjectId::Lease(lease.id));
        let peerings = self.state.peerings.iter().map(|directive| ObjectId::Peering(directive.peering.id));
        let wanted: BTreeSet<ObjectId> = leases.chain(peerings).chain(self.state.skipped.iter().copied()).collect();
        self.missing.retain(|object, _| here.contains(object) && !wanted.contains(object));
        for object in here.difference(&wanted) {
            self.missing.entry(*object).or_insert(now);
        }
        let confirmed = |since: &Duration| now.saturating_sub(*since) >= CONFIRMED_AFTER;
        self.unwanted = self.missing.iter().filter(|(_, since)| confirmed(since)).map(|(object, _)| *object).collect();
    }

    /// The state in force.
    #[must_use]
    pub fn state(&self) -> &Arc<DesiredState> {
        &self.state
    }

    /// Whether its stream is connected.
    #[must_use]
    pub fn is_live(&self) -> bool {
        self.is_live
    }

    /// Objects that two desired states, [`CONFIRMED_AFTER`] apart, lack.
    #[must_use]
    pub fn unwanted(&self) -> &BTreeSet<ObjectId> {
        &self.unwanted
    }

    /// Whether a fresh desired state would confirm an unwanted object.
    #[must_use]
    pub fn needs_resync(&self, now: Duration) -> bool {
        let waits = |(object, since): (&ObjectId, &Duration)| {
            !self.unwanted.contains(object) && now.saturating_sub(*since) >= CONFIRMED_AFTER
        };
        self.is_live && self.missing.iter().any(waits)
    }
}

#[cfg(test)]
mod tests {
    use comity_types::{LeaseId, PeeringId, RequestId};

    use super::*;
    use crate::lease::Lease;

    const SECOND: Duration = Duration::from_secs(1);

    fn update(number: u64, revision: u64, leases: &[u64]) -> Update {
        let leases = leases
            .iter()
            .map(|id| Lease::new(LeaseId(*id), RequestId(*id), "west".parse().expect("a label"), PeeringId(1)))
            .collect();
        let state = DesiredState { revision, leases, ..DesiredState::default() };
        Update { state: Some(Arc::new(state)), is_live: true, number }
    }

    fn lease(id: u64) -> ObjectId {
        ObjectId::Lease(LeaseId(id))
    }

    fn here(leases: &[u64]) -> BTreeSet<ObjectId> {
        leases.iter().map(|id| lease(*id)).collect()
    }

    #[test]
    fn missing_once_is_not_gone_and_missing_twice_far_apart_is() {
        let mut desired = Desired::default();
        let here = here(&[1, 2]);
        assert!(desired.take(&update(1, 10, &[2]), &here, SECOND));
        assert!(desired.unwanted().is_empty());
        desired.take(&update(2, 11, &[2]), &here, SECOND * 5);
        assert!(desired.unwanted().is_empty(), "too soon");
        assert!(desired.needs_resync(SECOND * 6));
        desired.take(&update(3, 12, &[2]), &here, SECOND * 7);
        assert_eq!(desired.unwanted().iter().collect::<Vec<_>>(), [&lease(1)]);
        desired.take(&update(4, 13, &[1]), &here, SECOND * 8);
        assert!(!desired.unwanted().contains(&lease(1)), "wanted again");
    }

    #[test]
    fn the_same_state_seen_again_confirms_nothing() {
        let mut desired = Desired::default();
        desired.take(&update(1, 10, &[]), &here(&[1]), SECOND);
        assert!(!desired.take(&update(1, 10, &[]), &here(&[1]), SECOND * 100));
        assert!(desired.unwanted().is_empty());
    }

    /// Whatever number a broker gave its state: an honest one that says its own once is obeyed after a while.
    #[test]
    fn broker_sends_the_highest_revision() {
        let mut desired = Desired::default();
        desired.take(&update(1, u64::MAX, &[1]), &BTreeSet::new(), SECOND);
        let honest = update(2, 9, &[2]);
        for second in 2..62 {
            assert!(!desired.take(&honest, &here(&[1]), SECOND * second));
            assert!(!desired.is_live(), "nothing is torn down for the state that is in force");
        }
        assert!(!desired.take(&Update { is_live: false, ..honest.clone() }, &here(&[1]), SECOND * 70), "disconnected");
        assert!(desired.take(&honest, &here(&[1]), SECOND * 71));
        assert!(desired.is_live() && desired.state().revision == 9);
        assert!(desired.take(&update(3, 10, &[2]), &here(&[1]), SECOND * 72), "the next one counts at once");
    }

    #[test]
    fn an_older_state_is_ignored_for_a_while() {
        let mut desired = Desired::default();
        desired.take(&update(1, 10, &[1]), &BTreeSet::new(), SECOND);
        assert!(!desired.take(&update(2, 9, &[]), &BTreeSet::new(), SECOND * 2));
        assert!(!desired.is_live() && desired.state().leases.len() == 1);
        assert!(desired.take(&update(3, 9, &[]), &BTreeSet::new(), SECOND * 63));
    }
}
