//! Request options that a pod's annotations set, by the names of a `GpuRequest`'s fields.

use std::collections::BTreeMap;

use comity_proto::v1;
use comity_types::is_dns_label;

use crate::burst::facts::namespace::duration_ms;
use crate::burst::{CHECKPOINTS, NUMA, NVLINK, PREEMPTIBLE_GRACE, PRIORITY_CLASS};

/// Longest notice that a request may ask for: a day, as the broker says.
const MAX_GRACE_MS: u64 = 24 * 3_600 * 1_000;

/// Request options of a pod. Pods with different ones never share a request. Its `Debug` form is part of group ids.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Wishes {
    /// Priority class; empty: the federation's default.
    pub(crate) priority: String,
    /// Notice before preemption, in milliseconds; `None`: not preemptible.
    pub(crate) preemptible_grace_ms: Option<u64>,
    /// Whether it reports that its work is saved.
    pub(crate) checkpoints: bool,
    /// As in `v1::NvLink`.
    pub(crate) nvlink: i32,
    /// As in `v1::Numa`.
    pub(crate) numa: i32,
}

impl Wishes {
    /// Reads the annotations of a pod.
    ///
    /// # Errors
    /// The invalid annotation, and what to write.
    pub(crate) fn of(annotations: &BTreeMap<String, String>) -> Result<Self, String> {
        let wrong = |key: &str, text: &str, remedy: &str| format!("its annotation {key} is {text:?}; {remedy}");
        let get = |key: &str| annotations.get(key).map(String::as_str);
        let priority = get(PRIORITY_CLASS).unwrap_or_default();
        if !priority.is_empty() && !is_dns_label(priority) {
            return Err(wrong(PRIORITY_CLASS, priority, "name a priority class of the policy"));
        }
        let grace = match get(PREEMPTIBLE_GRACE) {
            None => None,
            Some(text) => {
                let grace = duration_ms(text).filter(|ms| *ms <= MAX_GRACE_MS);
                let remedy = "write the notice that it needs, as in 90s or 10m, a day at most";
                Some(grace.ok_or_else(|| wrong(PREEMPTIBLE_GRACE, text, remedy))?)
            }
        };
        let checkpoints = match get(CHECKPOINTS) {
            None | Some("false") => false,
            Some("true") => true,
            Some(text) => return Err(wrong(CHECKPOINTS, text, "write true or false")),
        };
        let nvlink = match get(NVLINK) {
            None => v1::NvLink::Unspecified,
            Some("Preferred") => v1::NvLink::Preferred,
            Some("Required") => v1::NvLink::Required,
            Some(text) => return Err(wrong(NVLINK, text, "write Preferred or Required")),
        };
        let numa = match get(NUMA) {
            None => v1::Numa::Unspecified,
            Some("Aligned") => v1::Numa::Aligned,
            Some(text) => return Err(wrong(NUMA, text, "write Aligned, or leave it out")),
        };
        Ok(Self {
            priority: priority.to_owned(),
            preemptible_grace_ms: grace,
            // Means nothing without preemption; a reclaim for the donor waits for an answer anyway.
            checkpoints: checkpoints && grace.is_some(),
            nvlink: nvlink.into(),
            numa: numa.into(),
        })
    }

    /// Reads the options of a request.
    pub(crate) fn asked(spec: &v1::RequestSpec) -> Self {
        let topology = spec.topology.unwrap_or_default();
        Self {
            priority: spec.priority.clone(),
            preemptible_grace_ms: spec.preemptible.map(|preemptible| preemptible.grace_ms),
            checkpoints: spec.preemptible.is_some_and(|preemptible| preemptible.checkpoint),
            nvlink: topology.nvlink,
            numa: topology.numa,
        }
    }

    /// Whether a request with the options `asked` suits a pod with these. An unset priority matches any, because the
    /// broker fills in the default; preemptibility must be equal.
    pub(crate) fn are_met_by(&self, asked: &Self) -> bool {
        (self.priority.is_empty() || self.priority == asked.priority)
            && (self.preemptible_grace_ms, self.checkpoints) == (asked.preemptible_grace_ms, asked.checkpoints)
            && (self.nvlink == 0 || self.nvlink == asked.nvlink)
            && (self.numa == 0 || self.numa == asked.numa)
    }

    /// Writes them into a request.
    pub(crate) fn ask(&self, spec: &mut v1::RequestSpec) {
        spec.priority.clone_from(&self.priority);
        spec.preemptible =
            self.preemptible_grace_ms.map(|grace_ms| v1::Preemptible { grace_ms, checkpoint: self.checkpoints });
        let topology = spec.topology.get_or_insert_default();
        (topology.nvlink, topology.numa) = (self.nvlink, self.numa);
    }

    /// Unambiguous text for group ids; empty for the default.
    pub(crate) fn name(&self) -> String {
        if *self == Self::default() { String::new() } else { format!("{self:?}") }
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    fn of(list: &[(&str, &str)]) -> Result<Wishes, String> {
        Wishes::of(&list.iter().map(|(key, text)| ((*key).to_owned(), (*text).to_owned())).collect())
    }

    #[test]
    fn what_is_wished_is_asked_for_and_read_back() {
        let said = [
            (PRIORITY_CLASS, "batch"),
            (PREEMPTIBLE_GRACE, "10m"),
            (CHECKPOINTS, "true"),
            (NVLINK, "Preferred"),
            (NUMA, "Aligned"),
        ];
        let wishes = of(&said).unwrap();
        let mut spec = v1::RequestSpec {
            topology: Some(v1::Topology { same_node: true, ..v1::Topology::default() }),
            ..v1::RequestSpec::default()
        };
        wishes.ask(&mut spec);
        assert_eq!(spec.preemptible, Some(v1::Preemptible { grace_ms: 600_000, checkpoint: true }));
        assert_eq!((spec.priority.as_str(), spec.topology.unwrap().same_node), ("batch", true));
        assert_eq!(Wishes::asked(&spec), wishes);
        assert!(!wishes.name().is_empty() && of(&[]).unwrap().name().is_empty());
    }

    #[test]
    fn who_wishes_for_nothing_takes_what_cannot_be_preempted() {
        let (nothing, urgent) = (Wishes::default(), of(&[(PRIORITY_CLASS, "urgent")]).unwrap());
        let preemptible = of(&[(PREEMPTIBLE_GRACE, "0s")]).unwrap();
        assert!(nothing.are_met_by(&urgent) && !urgent.are_met_by(&nothing));
        assert!(!nothing.are_met_by(&preemptible) && !preemptible.are_met_by(&nothing));
        let joined = of(&[(NVLINK, "Required"), (NUMA, "Aligned")]).unwrap();
        assert!(nothing.are_met_by(&joined) && !joined.are_met_by(&nothing));
    }

    #[test]
    fn what_cannot_be_read_is_named() {
        for (key, text) in [
            (PRIORITY_CLASS, "Very High"),
            (PREEMPTIBLE_GRACE, "soon"),
            (PREEMPTIBLE_GRACE, "2d"),
            (CHECKPOINTS, "yes"),
            (NVLINK, "required"),
            (NUMA, "true"),
        ] {
            let error = of(&[(key, text)]).unwrap_err();
            assert!(error.contains(key) && error.contains(text), "{error}");
        }
    }
}
