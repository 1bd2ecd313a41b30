//! Request options that a pod's annotations set, by the names of a `GpuRequest`'s fields.

use std::collections::BTreeMap;

use comity_proto::v1;
use comity_types::is_dns_label;

use crate::burst::checkpoint_store::checkpoint_secret;
use crate::burst::facts::namespace::duration_ms;
use crate::burst::{CHECKPOINTS, NUMA, NVLINK, PREEMPTIBLE_GRACE, PRIORITY_CLASS, SAME_GPU_TYPE};
use crate::crd::{Numa, NvLink};

/// Longest notice that a request may ask for: a day, the broker's limit.
const MAX_GRACE_MS: u64 = 24 * 3_600 * 1_000;

/// Request options of a pod. Pods with different ones never share a request.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct PodOptions {
    /// Priority class; empty: the federation's default.
    pub(crate) priority: String,
    /// Notice before preemption, in milliseconds; `None`: not preemptible.
    pub(crate) preemptible_grace_ms: Option<u64>,
    /// Whether it reports that its work is saved.
    pub(crate) checkpoints: bool,
    /// Whether what it saved fits only the type of GPUs that it ran on.
    pub(crate) same_gpu_type: bool,
    /// Whether NVLink joins its GPUs; `None`: not asked for.
    pub(crate) nvlink: Option<NvLink>,
    /// Where its CPU and memory come from; `None`: anywhere on the node.
    pub(crate) numa: Option<Numa>,
    /// Secret by which its containers reach their checkpoints.
    pub(crate) checkpoint_secret: Option<String>,
}

impl PodOptions {
    /// Reads the annotations of a pod.
    ///
    /// # Errors
    /// The invalid annotation, and what to write.
    pub(crate) fn from_annotations(annotations: &BTreeMap<String, String>) -> Result<Self, String> {
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
        let same_gpu_type = match get(SAME_GPU_TYPE) {
            None | Some("false") => false,
            Some("true") if checkpoints && grace.is_some() => true,
            Some("true") => {
                let remedy = format!("it also needs {PREEMPTIBLE_GRACE} and {CHECKPOINTS}: \"true\"");
                return Err(wrong(SAME_GPU_TYPE, "true", &remedy));
            }
            Some(text) => return Err(wrong(SAME_GPU_TYPE, text, "write true or false")),
        };
        let nvlink = match get(NVLINK) {
            None => None,
            Some("Preferred") => Some(NvLink::Preferred),
            Some("Required") => Some(NvLink::Required),
            Some(text) => return Err(wrong(NVLINK, text, "write Preferred or Required")),
        };
        let numa = match get(NUMA) {
            None => None,
            Some("Aligned") => Some(Numa::Aligned),
            Some(text) => return Err(wrong(NUMA, text, "write Aligned, or leave it out")),
        };
        Ok(Self {
            priority: priority.to_owned(),
            preemptible_grace_ms: grace,
            // Has no effect without preemption; a reclaim for the donor waits for an answer in any case.
            checkpoints: checkpoints && grace.is_some(),
            same_gpu_type,
            nvlink,
            numa,
            checkpoint_secret: checkpoint_secret(annotations)?.map(str::to_owned),
        })
    }

    /// Reads the options of a request.
    pub(crate) fn from_message(spec: &v1::RequestSpec) -> Self {
        let topology = spec.topology.unwrap_or_default();
        Self {
            priority: spec.priority.clone(),
            preemptible_grace_ms: spec.preemptible.map(|preemptible| preemptible.grace_ms),
            checkpoints: spec.preemptible.is_some_and(|preemptible| preemptible.checkpoint),
            same_gpu_type: spec.preemptible.is_some_and(|preemptible| preemptible.same_gpu_type),
            nvlink: NvLink::from_message(topology.nvlink()),
            numa: Numa::from_message(topology.numa()),
            checkpoint_secret: Some(spec.checkpoint_secret.clone()).filter(|secret| !secret.is_empty()),
        }
    }

    /// Whether the pod left all options to the request, apart from its checkpoint store.
    pub(crate) fn are_unset(&self) -> bool {
        Self { checkpoint_secret: None, ..self.clone() } == Self::default()
    }

    /// Whether a pod with these options reaches the checkpoint store of a request, if that names one.
    pub(crate) fn reach_store_of(&self, requested: &Self) -> bool {
        requested.checkpoint_secret.is_none() || self.checkpoint_secret == requested.checkpoint_secret
    }

    /// Whether a request with the options `requested` suits a pod with these. An unset priority matches any, because
    /// the broker fills in the default; preemptibility must be equal.
    pub(crate) fn are_met_by(&self, requested: &Self) -> bool {
        (self.priority.is_empty() || self.priority == requested.priority)
            && (self.preemptible_grace_ms, self.checkpoints) == (requested.preemptible_grace_ms, requested.checkpoints)
            && self.same_gpu_type == requested.same_gpu_type
            && (self.nvlink.is_none() || self.nvlink == requested.nvlink)
            && (self.numa.is_none() || self.numa == requested.numa)
    }

    /// Sets them in a request.
    pub(crate) fn write_to(&self, spec: &mut v1::RequestSpec) {
        spec.priority.clone_from(&self.priority);
        spec.preemptible = self.preemptible_grace_ms.map(|grace_ms| v1::Preemptible {
            grace_ms,
            checkpoint: self.checkpoints,
            same_gpu_type: self.same_gpu_type,
        });
        let topology = spec.topology.get_or_insert_default();
        topology.set_nvlink(NvLink::to_message(self.nvlink));
        topology.set_numa(Numa::to_message(self.numa));
        spec.checkpoint_secret = self.checkpoint_secret.clone().unwrap_or_default();
    }

    /// Unambiguous text for group ids, which requests carry: the same in all versions. Empty for the default.
    pub(crate) fn text(&self) -> String {
        if *self == Self::default() {
            return String::new();
        }
        let Self { priority, preemptible_grace_ms, checkpoints, same_gpu_type, nvlink, numa, checkpoint_secret } = self;
        format!("{:?}", (priority, preemptible_grace_ms, checkpoints, same_gpu_type, nvlink, numa, checkpoint_secret))
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;
    use crate::burst::CHECKPOINT_SECRET;

    fn of(list: &[(&str, &str)]) -> Result<PodOptions, String> {
        PodOptions::from_annotations(&list.iter().map(|(key, text)| ((*key).to_owned(), (*text).to_owned())).collect())
    }

    #[test]
    fn options_survive_the_message_of_their_request() {
        let annotations = [
            (PRIORITY_CLASS, "batch"),
            (PREEMPTIBLE_GRACE, "10m"),
            (CHECKPOINTS, "true"),
            (SAME_GPU_TYPE, "true"),
            (NVLINK, "Preferred"),
            (NUMA, "Aligned"),
            (CHECKPOINT_SECRET, "bucket"),
        ];
        let options = of(&annotations).unwrap();
        let mut spec = v1::RequestSpec {
            topology: Some(v1::Topology { same_node: true, ..v1::Topology::default() }),
            ..v1::RequestSpec::default()
        };
        options.write_to(&mut spec);
        assert_eq!(
            spec.preemptible,
            Some(v1::Preemptible { grace_ms: 600_000, checkpoint: true, same_gpu_type: true })
        );
        assert_eq!((spec.priority.as_str(), spec.topology.unwrap().same_node), ("batch", true));
        assert_eq!(PodOptions::from_message(&spec), options);
        assert_eq!(spec.checkpoint_secret, "bucket");
        let text = r#"("batch", Some(600000), true, true, Some(Preferred), Some(Aligned), Some("bucket"))"#;
        assert_eq!(options.text(), text);
        assert_eq!(of(&[]).unwrap().text(), "");
    }

    #[test]
    fn a_pod_without_options_fits_any_request_that_is_not_preemptible() {
        let (none, urgent) = (PodOptions::default(), of(&[(PRIORITY_CLASS, "urgent")]).unwrap());
        let preemptible = of(&[(PREEMPTIBLE_GRACE, "0s")]).unwrap();
        assert!(none.are_met_by(&urgent) && !urgent.are_met_by(&none));
        assert!(!none.are_met_by(&preemptible) && !preemptible.are_met_by(&none));
        let joined = of(&[(NVLINK, "Required"), (NUMA, "Aligned")]).unwrap();
        assert!(none.are_met_by(&joined) && !joined.are_met_by(&none));
    }

    #[test]
    fn a_pod_fits_a_request_whose_checkpoint_store_it_reaches() {
        let of = |secret: &str| of(&[(CHECKPOINT_SECRET, secret)]).unwrap();
        let (none, bucket, other) = (PodOptions::default(), of("bucket"), of("other"));
        assert!(bucket.reach_store_of(&bucket) && bucket.reach_store_of(&none));
        assert!(!none.reach_store_of(&bucket) && !other.reach_store_of(&bucket));
        assert!(bucket.are_unset() && !PodOptions { checkpoints: true, ..bucket }.are_unset());
    }

    #[test]
    fn an_invalid_annotation_is_named() {
        for (key, text) in [
            (PRIORITY_CLASS, "Very High"),
            (PREEMPTIBLE_GRACE, "soon"),
            (PREEMPTIBLE_GRACE, "2d"),
            (CHECKPOINTS, "yes"),
            (SAME_GPU_TYPE, "true"),
            (NVLINK, "required"),
            (NUMA, "true"),
            (CHECKPOINT_SECRET, "My Bucket"),
        ] {
            let error = of(&[(key, text)]).unwrap_err();
            assert!(error.contains(key) && error.contains(text), "{error}");
        }
    }
}
