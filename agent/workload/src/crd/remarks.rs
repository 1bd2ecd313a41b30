//! Deduplicates events on a `GpuRequest`.

use std::collections::BTreeMap;

use kube::runtime::events::EventType;

/// The same event is repeated after this time.
const REPEAT_MS: u64 = 10 * 60_000;

/// An event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Remark {
    pub(super) type_: EventType,
    /// CamelCase, stable.
    pub(super) reason: String,
    /// One sentence.
    pub(super) text: String,
}

/// Written events by UID and reason.
#[derive(Debug, Default)]
pub(super) struct Remarks {
    written: BTreeMap<(String, String), (String, u64)>,
}

impl Remarks {
    /// Whether the event is due; marks it as written.
    pub(super) fn is_due(&mut self, uid: &str, remark: &Remark, now_ms: u64) -> bool {
        let key = (uid.to_owned(), remark.reason.clone());
        let is_fresh = |(text, at): &(String, u64)| *text == remark.text && now_ms.saturating_sub(*at) < REPEAT_MS;
        if self.written.get(&key).is_some_and(is_fresh) {
            return false;
        }
        self.written.insert(key, (remark.text.clone(), now_ms));
        true
    }

    /// Forgets deleted objects.
    pub(super) fn forget(&mut self, is_there: impl Fn(&str) -> bool) {
        self.written.retain(|(uid, _), _| is_there(uid));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_event_waits_ten_minutes_whatever_came_between() {
        let remark =
            |reason: &str| Remark { type_: EventType::Normal, reason: reason.to_owned(), text: "no donor".to_owned() };
        let mut remarks = Remarks::default();
        assert!(remarks.is_due("u", &remark("ComityQueued"), 0));
        assert!(remarks.is_due("u", &remark("ComitySubmitting"), 1_000));
        assert!(!remarks.is_due("u", &remark("ComityQueued"), 2_000));
        assert!(remarks.is_due("other", &remark("ComityQueued"), 2_000));
        assert!(remarks.is_due("u", &Remark { text: "no room".to_owned(), ..remark("ComityQueued") }, 3_000));
        assert!(remarks.is_due("u", &remark("ComitySubmitting"), 601_000));
        remarks.forget(|uid| uid == "other");
        assert_eq!(remarks.written.len(), 1);
    }
}
