//! Index of the stored replies by caller, so that no caller's calls push out the replies to others.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::model::idempotency;
use crate::model::time::Timestamp;

/// Replies of each caller, oldest first, and callers by their number of replies.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct RepliesByCaller {
    of: BTreeMap<Arc<str>, BTreeSet<(Timestamp, Arc<str>)>>,
    by_count: BTreeSet<(usize, Arc<str>)>,
}

impl RepliesByCaller {
    /// Adds the reply of this name, stored `at`.
    pub(crate) fn add(&mut self, name: &str, at: Timestamp) {
        self.change(name, |replies| replies.insert((at, name.into())));
    }

    /// Removes the reply of this name, stored `at`.
    pub(crate) fn remove(&mut self, name: &str, at: Timestamp) {
        self.change(name, |replies| replies.remove(&(at, name.into())));
    }

    /// Name of the oldest reply of the caller with most replies.
    pub(crate) fn oldest_of_most(&self) -> Option<&str> {
        let (_, caller) = self.by_count.last()?;
        let (_, name) = self.of.get(caller)?.first()?;
        Some(name)
    }

    /// Names of the replies to a caller.
    pub(crate) fn of(&self, caller: &str) -> impl Iterator<Item = &str> {
        self.of.get(caller).into_iter().flatten().map(|(_, name)| &**name)
    }

    fn change(&mut self, name: &str, change: impl FnOnce(&mut BTreeSet<(Timestamp, Arc<str>)>) -> bool) {
        let caller = idempotency::caller_of(name);
        let (caller, mut replies) = self.of.remove_entry(caller).unwrap_or_else(|| (caller.into(), BTreeSet::new()));
        self.by_count.remove(&(replies.len(), Arc::clone(&caller)));
        change(&mut replies);
        if !replies.is_empty() {
            self.by_count.insert((replies.len(), Arc::clone(&caller)));
            self.of.insert(caller, replies);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_caller_with_most_replies_loses_its_oldest() {
        let mut replies = RepliesByCaller::default();
        replies.add("alice first", Timestamp(1));
        for number in 2..5 {
            replies.add(&format!("bob {number}"), Timestamp(number));
        }
        assert_eq!(replies.oldest_of_most(), Some("bob 2"));
        replies.remove("bob 2", Timestamp(2));
        replies.remove("bob 3", Timestamp(3));
        replies.add("alice second", Timestamp(9));
        assert_eq!(replies.oldest_of_most(), Some("alice first"));
        for (name, at) in [("alice first", 1), ("alice second", 9), ("bob 4", 4)] {
            replies.remove(name, Timestamp(at));
        }
        assert_eq!(replies, RepliesByCaller::default());
        assert_eq!(replies.oldest_of_most(), None);
    }
}
