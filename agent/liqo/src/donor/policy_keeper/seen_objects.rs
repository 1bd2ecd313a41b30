//! The policies as the API server has them, and which of their differences others made. Pure.

use std::collections::BTreeMap;

use comity_agent_kubernetes::object_content::first_difference;
use serde_json::Value;

use super::TERMS;

/// Kind and name.
type ObjectKey = (String, String);

#[derive(Debug, Default)]
pub(super) struct SeenObjects {
    /// With their versions: events may show versions older than our last write.
    objects: BTreeMap<ObjectKey, (u64, Value)>,
    /// The ConfigMap as this agent last wrote it, or found it to be right: any difference was made by others.
    terms_agreed: Option<Value>,
}

impl SeenObjects {
    pub(super) fn remember(&mut self, key: ObjectKey, version: u64, content: Value) {
        if self.objects.get(&key).is_none_or(|(known, _)| version >= *known) {
            self.objects.insert(key, (version, content));
        }
    }

    pub(super) fn forget(&mut self, key: &ObjectKey) {
        self.objects.remove(key);
    }

    pub(super) fn forget_kind(&mut self, kind: &str) {
        self.objects.retain(|(of, _), _| of != kind);
    }

    /// Remembers an object as this agent wrote it.
    pub(super) fn note_write(&mut self, wanted: &Value, version: u64, content: Value) {
        if kind(wanted) == TERMS {
            self.terms_agreed = Some(content.clone());
        }
        self.remember(key(wanted), version, content);
    }

    /// Remembers the ConfigMap if it is as wanted.
    pub(super) fn note_agreement(&mut self, terms: &Value) {
        if self.holds(terms) {
            self.terms_agreed = self.objects.get(&key(terms)).map(|(_, seen)| seen.clone());
        }
    }

    /// Whether an object is as wanted.
    pub(super) fn holds(&self, wanted: &Value) -> bool {
        self.objects.get(&key(wanted)).is_some_and(|(_, seen)| is_as_wanted(seen, wanted))
    }

    /// Whether the ConfigMap is as it was right before, and only the leases changed.
    pub(super) fn is_our_own_change(&self, wanted: &Value) -> bool {
        kind(wanted) == TERMS
            && self.objects.get(&key(wanted)).is_some_and(|(_, seen)| Some(seen) == self.terms_agreed.as_ref())
    }
}

pub(super) fn text<'a>(object: &'a Value, pointer: &str) -> &'a str {
    object.pointer(pointer).and_then(Value::as_str).unwrap_or_default()
}

pub(super) fn kind(object: &Value) -> &str {
    text(object, "/kind")
}

fn key(object: &Value) -> ObjectKey {
    (kind(object).to_owned(), text(object, "/metadata/name").to_owned())
}

/// Whether an object's content is exactly as wanted; empty fields do not count.
pub(super) fn is_as_wanted(seen: &Value, wanted: &Value) -> bool {
    let wanted = wanted.get("spec").or_else(|| wanted.get("data"));
    wanted.is_some_and(|wanted| first_difference(seen, wanted).is_none())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn terms(lease: &str) -> Value {
        json!({ "kind": TERMS, "metadata": { "name": "grants" }, "data": { "lease": lease } })
    }

    fn see(seen: &mut SeenObjects, object: &Value, version: u64) {
        let content = object.get("data").cloned().unwrap_or_default();
        seen.remember(key(object), version, content);
    }

    #[test]
    fn leases_that_change_after_a_start_with_everything_in_place_alter_nothing() {
        let mut seen = SeenObjects::default();
        let (before, after) = (terms("lease-2"), terms("lease-3"));
        see(&mut seen, &before, 1);
        seen.note_agreement(&before);
        assert!(!seen.holds(&after) && seen.is_our_own_change(&after));
        see(&mut seen, &terms("somebody's"), 2);
        assert!(!seen.is_our_own_change(&after), "altered by others");
    }
}
