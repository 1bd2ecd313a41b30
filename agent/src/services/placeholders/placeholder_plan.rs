//! Which placeholders to make and delete. Pure.

use std::collections::BTreeMap;
use std::time::Duration;

use comity_agent_kubernetes::pod_request::Amounts;
use comity_types::LeaseId;

/// A placeholder is made once it was missing for this long: a pod that has just been bound is not seen at once.
const MISSING_FOR: Duration = Duration::from_secs(2);
/// Most placeholders made in one round.
const MADE_AT_ONCE: usize = 64;

/// A placeholder pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Placeholder {
    pub(super) uid: String,
    pub(super) name: String,
    pub(super) lease: LeaseId,
    /// The node that it is for.
    pub(super) node: String,
    pub(super) is_bound: bool,
}

/// A pod of a lease that waits for the scheduler.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct WaitingPod {
    /// The lease of its namespace.
    pub(super) lease: Option<LeaseId>,
    /// The user of Liqo that made it.
    pub(super) liqo_user: Option<String>,
    pub(super) requests: Amounts,
}

/// Placeholders to make, by lease and node, and to delete.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct PlaceholderChanges {
    pub(super) create: Vec<(LeaseId, String)>,
    pub(super) delete: Vec<Placeholder>,
}

/// Remembers since when placeholders are missing.
#[derive(Debug, Default)]
pub(super) struct PlaceholderPlan {
    missing_since: BTreeMap<(LeaseId, String), Duration>,
}

impl PlaceholderPlan {
    /// The changes at a time of the monotonic clock. `unused` are leased GPUs that no pod of the lease uses, by lease and
    /// node; `waiting` are GPUs that pods of a lease wait for, on whichever of its nodes. While `unused` is unknown, as
    /// after the agent's start, placeholders stay as they are: a GPU that is free for a moment is lost.
    pub(super) fn changes(
        &mut self,
        unused: Option<&BTreeMap<(LeaseId, String), u64>>,
        waiting: &BTreeMap<LeaseId, u64>,
        existing: &[&Placeholder],
        now: Duration,
    ) -> PlaceholderChanges {
        let Some(unused) = unused else { return PlaceholderChanges::default() };
        let mut here: BTreeMap<(LeaseId, String), Vec<&Placeholder>> = BTreeMap::new();
        for placeholder in existing {
            here.entry((placeholder.lease, placeholder.node.clone())).or_default().push(placeholder);
        }
        let mut changes = PlaceholderChanges::default();
        let mut missing = BTreeMap::new();
        for (place, gpus) in unused {
            let wanted = gpus.saturating_sub(waiting.get(&place.0).copied().unwrap_or(0));
            let wanted = usize::try_from(wanted).unwrap_or(usize::MAX);
            let mut found = here.remove(place).unwrap_or_default();
            // Those that wait for a GPU go first: they hold nothing.
            found.sort_by_key(|placeholder| (!placeholder.is_bound, &placeholder.uid));
            changes.delete.extend(found.iter().skip(wanted).map(|placeholder| (*placeholder).clone()));
            if found.len() < wanted {
                let since = *self.missing_since.get(place).unwrap_or(&now);
                let is_due = now.saturating_sub(since) >= MISSING_FOR;
                // Those that are made now are not seen at once.
                missing.insert(place.clone(), if is_due { now } else { since });
                if is_due {
                    changes.create.extend(std::iter::repeat_n(place.clone(), (wanted - found.len()).min(MADE_AT_ONCE)));
                }
            }
        }
        self.missing_since = missing;
        changes.create.truncate(MADE_AT_ONCE);
        changes.delete.extend(here.into_values().flatten().cloned());
        changes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn place(lease: u64, node: &str) -> (LeaseId, String) {
        (LeaseId(lease), node.to_owned())
    }

    fn placeholder(uid: &str, node: &str, is_bound: bool) -> Placeholder {
        Placeholder { uid: uid.to_owned(), name: uid.to_owned(), lease: LeaseId(7), node: node.to_owned(), is_bound }
    }

    fn deleted(changes: &PlaceholderChanges) -> Vec<&str> {
        changes.delete.iter().map(|placeholder| placeholder.uid.as_str()).collect()
    }

    #[test]
    fn a_missing_placeholder_is_made_after_a_while() {
        let mut plan = PlaceholderPlan::default();
        let unused = BTreeMap::from([(place(7, "a"), 2)]);
        let nothing = BTreeMap::new();
        assert_eq!(plan.changes(Some(&unused), &nothing, &[], SECOND), PlaceholderChanges::default());
        let changes = plan.changes(Some(&unused), &nothing, &[], SECOND * 3);
        assert_eq!(changes.create, [place(7, "a"), place(7, "a")]);
        let one = placeholder("x", "a", true);
        assert!(plan.changes(Some(&unused), &nothing, &[&one], SECOND * 4).create.is_empty(), "it may not be seen yet");
        assert_eq!(plan.changes(Some(&unused), &nothing, &[&one], SECOND * 5).create, [place(7, "a")]);
        // The pod that uses the GPU was only late.
        plan.changes(Some(&BTreeMap::new()), &nothing, &[], SECOND * 6);
        assert!(plan.changes(Some(&unused), &nothing, &[], SECOND * 7).create.is_empty());
    }

    #[test]
    fn placeholders_give_way_to_waiting_pods_of_their_lease_at_once() {
        let mut plan = PlaceholderPlan::default();
        let unused = BTreeMap::from([(place(7, "a"), 3), (place(7, "b"), 1)]);
        let [x, y, z] = [("x", true), ("y", false), ("z", true)].map(|(uid, bound)| placeholder(uid, "a", bound));
        let other = placeholder("w", "b", true);
        let all = [&x, &y, &z, &other];
        assert!(plan.changes(Some(&unused), &BTreeMap::new(), &all, SECOND).delete.is_empty());
        let waiting = BTreeMap::from([(LeaseId(7), 2)]);
        let changes = plan.changes(Some(&unused), &waiting, &all, SECOND);
        assert_eq!(deleted(&changes), ["z", "y", "w"], "one stays on a, none on b");
        let foreign = BTreeMap::from([(LeaseId(8), 2)]);
        assert!(plan.changes(Some(&unused), &foreign, &all, SECOND).delete.is_empty());
    }

    #[test]
    fn placeholders_of_a_lease_that_ended_go() {
        let gone = placeholder("x", "a", true);
        let changes = PlaceholderPlan::default().changes(Some(&BTreeMap::new()), &BTreeMap::new(), &[&gone], SECOND);
        assert_eq!(deleted(&changes), ["x"]);
    }

    #[test]
    fn placeholders_stay_until_the_leases_are_known() {
        let held = placeholder("x", "a", true);
        let (mut plan, nothing) = (PlaceholderPlan::default(), BTreeMap::new());
        assert_eq!(plan.changes(None, &nothing, &[&held], SECOND), PlaceholderChanges::default());
        // Once they are, one that fits is kept, and none is made beside it.
        let unused = BTreeMap::from([(place(7, "a"), 1)]);
        for second in 2..10 {
            assert_eq!(plan.changes(Some(&unused), &nothing, &[&held], SECOND * second), PlaceholderChanges::default());
        }
    }
}
