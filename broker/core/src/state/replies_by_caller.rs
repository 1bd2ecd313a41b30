//! Index of the stored replies by institution and caller, so that nobody's calls push out the replies to others.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::model::idempotency::{self, StoredReply};
use crate::model::time::Timestamp;

/// Replies to the callers of each institution, and institutions by their number of replies. Those who act for the
/// federation count together, under an empty name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct RepliesByCaller {
    of: BTreeMap<Arc<str>, OneInstitution>,
    by_count: BTreeSet<(usize, Arc<str>)>,
}

/// Replies of each caller of an institution, oldest first, and callers by their number of replies.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct OneInstitution {
    of: BTreeMap<Arc<str>, BTreeSet<(Timestamp, Arc<str>)>>,
    by_count: BTreeSet<(usize, Arc<str>)>,
    count: usize,
}

impl RepliesByCaller {
    /// Adds the reply of this name.
    pub(crate) fn add(&mut self, name: &str, reply: &StoredReply) {
        self.change(name, reply, |replies| replies.insert((reply.at, name.into())));
    }

    /// Removes the reply of this name.
    pub(crate) fn remove(&mut self, name: &str, reply: &StoredReply) {
        self.change(name, reply, |replies| replies.remove(&(reply.at, name.into())));
    }

    /// Name of the oldest reply of the caller with most replies, in the institution with most.
    pub(crate) fn oldest_of_most(&self) -> Option<&str> {
        let (_, institution) = self.by_count.last()?;
        let OneInstitution { of, by_count, .. } = self.of.get(institution)?;
        let (_, caller) = by_count.last()?;
        let (_, name) = of.get(caller)?.first()?;
        Some(name)
    }

    /// Names of the replies to a caller.
    pub(crate) fn of(&self, caller: &str) -> impl Iterator<Item = &str> {
        self.of.values().filter_map(move |replies| replies.of.get(caller)).flatten().map(|(_, name)| &**name)
    }

    fn change(
        &mut self,
        name: &str,
        reply: &StoredReply,
        change: impl FnOnce(&mut BTreeSet<(Timestamp, Arc<str>)>) -> bool,
    ) {
        let institution = reply.institution.as_deref().unwrap_or_default();
        let (institution, mut replies) =
            self.of.remove_entry(institution).unwrap_or_else(|| (institution.into(), OneInstitution::default()));
        self.by_count.remove(&(replies.count, Arc::clone(&institution)));
        replies.change(name, change);
        if replies.count > 0 {
            self.by_count.insert((replies.count, Arc::clone(&institution)));
            self.of.insert(institution, replies);
        }
    }
}

impl OneInstitution {
    fn change(&mut self, name: &str, change: impl FnOnce(&mut BTreeSet<(Timestamp, Arc<str>)>) -> bool) {
        let caller = idempotency::caller_of(name);
        let (caller, mut replies) = self.of.remove_entry(caller).unwrap_or_else(|| (caller.into(), BTreeSet::new()));
        self.by_count.remove(&(replies.len(), Arc::clone(&caller)));
        self.count -= replies.len();
        change(&mut replies);
        self.count += replies.len();
        if !replies.is_empty() {
            self.by_count.insert((replies.len(), Arc::clone(&caller)));
            self.of.insert(caller, replies);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::reply::ReplyBody;

    fn reply(institution: &str, at: u64) -> StoredReply {
        let institution = Some(institution.to_owned()).filter(|name| !name.is_empty());
        StoredReply { institution, body_sha256: String::new(), reply: Ok(ReplyBody::Done), at: Timestamp(at) }
    }

    #[test]
    fn the_caller_with_most_replies_loses_its_oldest() {
        let mut replies = RepliesByCaller::default();
        replies.add("alice first", &reply("", 1));
        for number in 2..5 {
            replies.add(&format!("bob {number}"), &reply("", number));
        }
        assert_eq!(replies.oldest_of_most(), Some("bob 2"));
        replies.remove("bob 2", &reply("", 2));
        replies.remove("bob 3", &reply("", 3));
        replies.add("alice second", &reply("", 9));
        assert_eq!(replies.oldest_of_most(), Some("alice first"));
        for (name, at) in [("alice first", 1), ("alice second", 9), ("bob 4", 4)] {
            replies.remove(name, &reply("", at));
        }
        assert_eq!(replies, RepliesByCaller::default());
        assert_eq!(replies.oldest_of_most(), None);
    }

    #[test]
    fn the_institution_with_most_replies_makes_room_whoever_of_it_called() {
        let mut replies = RepliesByCaller::default();
        for number in 1..=4 {
            replies.add(&format!("user-{number} call"), &reply("many", number));
        }
        for number in 5..=7 {
            replies.add(&format!("alone {number}"), &reply("one", number));
        }
        assert_eq!(replies.oldest_of_most(), Some("user-4 call"));
        replies.remove("user-4 call", &reply("many", 4));
        replies.add("alone 8", &reply("one", 8));
        assert_eq!(replies.oldest_of_most(), Some("alone 5"));
        assert_eq!(replies.of("alone").count(), 4);
        // Policy may have moved a caller meanwhile.
        replies.add("alone 9", &reply("many", 9));
        replies.add("alone 10", &reply("many", 10));
        assert_eq!(replies.oldest_of_most(), Some("alone 9"));
    }
}
