//! `GpuRequest`s as this agent last wrote them, because a watch lags and an old copy must not be processed again.

use std::collections::{BTreeMap, BTreeSet};

use super::GpuRequest;

/// Most superseded versions remembered of an object; more accumulate only while its watch is stuck.
const MAX_VERSIONS: usize = 32;

/// One object while it is worked on.
#[derive(Debug)]
pub(super) struct Work {
    /// Its current state.
    pub(super) object: GpuRequest,
    /// Overwritten resource versions.
    superseded: BTreeSet<String>,
    /// Events about it that are due.
    pub(super) remarks: Vec<super::remarks::Remark>,
    /// When a refused submission is retried; 0 if none was refused.
    pub(super) retry_refused_ms: u64,
    /// Why it waits, and when the broker was asked that.
    pub(super) why: Option<(String, u64)>,
}

impl Work {
    pub(super) fn uid(&self) -> String {
        uid(&self.object)
    }

    /// The API server's answer to a write.
    pub(super) fn written(&mut self, object: GpuRequest) {
        let before = std::mem::replace(&mut self.object, object);
        if before.metadata.resource_version != self.object.metadata.resource_version {
            self.superseded.extend(before.metadata.resource_version);
        }
    }
}

/// Writes that no watch has shown yet, by UID.
#[derive(Debug, Default)]
pub(super) struct Copies {
    written: BTreeMap<String, (GpuRequest, BTreeSet<String>)>,
}

impl Copies {
    /// Starts work on an object from a watch.
    pub(super) fn begin(&self, watched: &GpuRequest) -> Work {
        let (object, superseded) = match self.written.get(&uid(watched)) {
            Some((object, superseded)) if is_among(watched, superseded) => (object.clone(), superseded.clone()),
            _ => (watched.clone(), BTreeSet::new()),
        };
        Work { object, superseded, remarks: Vec::new(), retry_refused_ms: 0, why: None }
    }

    /// Remembers the object's writes.
    pub(super) fn keep(&mut self, work: Work) {
        if !work.superseded.is_empty() && work.superseded.len() <= MAX_VERSIONS {
            self.written.insert(uid(&work.object), (work.object, work.superseded));
        }
    }

    /// Forgets deleted objects, and those whose watch caught up.
    pub(super) fn forget<'a>(&mut self, watched: impl Iterator<Item = &'a GpuRequest>) {
        let watched: BTreeMap<String, &GpuRequest> = watched.map(|object| (uid(object), object)).collect();
        self.written
            .retain(|uid, (_, superseded)| watched.get(uid).is_some_and(|watched| is_among(watched, superseded)));
    }
}

fn is_among(object: &GpuRequest, versions: &BTreeSet<String>) -> bool {
    object.metadata.resource_version.as_ref().is_some_and(|version| versions.contains(version))
}

fn uid(object: &GpuRequest) -> String {
    object.metadata.uid.clone().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::crd::GpuRequestSpec;

    fn at(version: &str) -> GpuRequest {
        let mut object = GpuRequest::new("train", GpuRequestSpec { gpus: Some(1), ..GpuRequestSpec::default() });
        object.metadata.uid = Some("u".to_owned());
        object.metadata.resource_version = Some(version.to_owned());
        object
    }

    fn version(work: &Work) -> &str {
        work.object.metadata.resource_version.as_deref().unwrap_or_default()
    }

    #[test]
    fn an_old_copy_is_not_worked_on_and_a_newer_one_is() {
        let mut copies = Copies::default();
        let mut work = copies.begin(&at("1"));
        work.written(at("2"));
        work.written(at("3"));
        copies.keep(work);
        for old in ["1", "2"] {
            copies.forget([at(old)].iter());
            assert_eq!(version(&copies.begin(&at(old))), "3");
        }
        // Somebody else wrote after us.
        assert_eq!(version(&copies.begin(&at("4"))), "4");
        copies.forget([at("4")].iter());
        assert!(copies.written.is_empty());
    }

    #[test]
    fn a_write_that_changed_nothing_is_no_new_copy() {
        let mut copies = Copies::default();
        let mut work = copies.begin(&at("1"));
        work.written(at("1"));
        copies.keep(work);
        assert!(copies.written.is_empty());
    }
}
