//! Groups of pods that may share a request, and the ids that identify their request after a restart.

use std::fmt;

use sha2::{Digest as _, Sha256};

use super::facts::demand::Shape;
use super::facts::pod::PodFacts;
use super::facts::pod_options::PodOptions;

/// Longest owner name in a note, which has at most 256 bytes.
const NAME_CHARS: usize = 80;

/// Pods of one owner, shape and class, with the same options: they may share a request.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Group {
    pub(crate) namespace: String,
    pub(crate) class: String,
    pub(crate) shape: Shape,
    pub(crate) owner_uid: String,
    pub(crate) options: PodOptions,
}

impl Group {
    /// A digest that is the same after a restart.
    pub(crate) fn id(&self) -> String {
        let shape = &self.shape;
        let amounts =
            [u64::from(shape.gpus), shape.cpu_milli_per_gpu, shape.memory_mib_per_gpu].map(|it| it.to_string());
        let (options, share) = (self.options.text(), format!("{:?}", shape.share));
        let parts = [
            "group",
            &self.namespace,
            &self.owner_uid,
            &self.class,
            &shape.resource,
            &share,
            &amounts[0],
            &amounts[1],
            &amounts[2],
            &options,
        ];
        digest(&parts)
    }
}

/// The idempotency key of a submission: the same pods after the same earlier requests give the same key.
pub(crate) fn submission_key(group: &str, pods: &[&PodFacts]) -> String {
    let mut parts: Vec<String> =
        pods.iter().map(|pod| format!("{} {}", pod.pod.uid, pod.request.as_deref().unwrap_or_default())).collect();
    parts.sort();
    let mut all = vec!["submission", group];
    all.extend(parts.iter().map(String::as_str));
    format!("burst-{}", digest(&all))
}

/// 32 hex digits over the length-prefixed parts.
fn digest(parts: &[&str]) -> String {
    let mut hash = Sha256::new();
    for part in parts {
        hash.update(u64::try_from(part.len()).unwrap_or(u64::MAX).to_be_bytes());
        hash.update(part.as_bytes());
    }
    hex::encode(&hash.finalize()[..16])
}

/// What the note of a request says: for people, and for this agent after a restart.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BurstNote {
    /// Owner of the pods, as in "job/train".
    pub(crate) owner: String,
    /// GPUs of each pod.
    pub(crate) gpus_per_pod: u32,
    /// Kubernetes resource that the pods ask for.
    pub(crate) resource: String,
    /// The group.
    pub(crate) group: String,
}

impl BurstNote {
    pub(crate) fn of(pod: &PodFacts, group: &Group) -> Self {
        let name: String = pod.owner.name.chars().take(NAME_CHARS).collect();
        Self {
            owner: format!("{}/{name}", pod.owner.kind.chars().take(24).collect::<String>()),
            gpus_per_pod: group.shape.gpus,
            resource: group.shape.resource.clone(),
            group: group.id(),
        }
    }

    /// Reads what [`Display`](fmt::Display) writes; `None` for another text.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let mut words = text.strip_prefix("burst of ")?.split(' ');
        let owner = words.next()?.to_owned();
        let (count, resource) = (words.next()?, words.next()?);
        let group = words.next()?.strip_prefix('#')?;
        let gpus_per_pod = count.strip_suffix('x')?.parse().ok()?;
        let is_whole = words.next().is_none() && group.len() == 32;
        is_whole.then(|| Self { owner, gpus_per_pod, resource: resource.to_owned(), group: group.to_owned() })
    }
}

impl fmt::Display for BurstNote {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { owner, gpus_per_pod, resource, group } = self;
        write!(f, "burst of {owner} {gpus_per_pod}x {resource} #{group}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::burst::fixtures::pod;

    fn group() -> Group {
        let shape = Shape {
            resource: "nvidia.com/mig-1g.10gb.me".to_owned(),
            share: None,
            gpus: 2,
            cpu_milli_per_gpu: 1,
            memory_mib_per_gpu: 2,
        };
        Group {
            namespace: "team-a".to_owned(),
            class: "frontier".to_owned(),
            shape,
            owner_uid: "o".to_owned(),
            options: PodOptions::default(),
        }
    }

    #[test]
    fn a_note_is_read_back_and_fits_a_request() {
        let mut facts = pod("p-1").facts;
        facts.owner.name = "long-".repeat(60);
        let note = BurstNote::of(&facts, &group());
        let text = note.to_string();
        assert!(text.len() <= 256, "{text}");
        assert_eq!(BurstNote::parse(&text), Some(note));
        for other in ["", "burst", "burst of my dog", "burst of job/x 1x nvidia.com/gpu #12", "burst of a b c d"] {
            assert_eq!(BurstNote::parse(other), None, "{other}");
        }
    }

    #[test]
    fn keys_depend_on_pods_and_what_came_before_and_on_nothing_else() {
        let (a, b) = (pod("a").facts, pod("b").facts);
        let id = group().id();
        let key = submission_key(&id, &[&a, &b]);
        assert_eq!(key, submission_key(&id, &[&b, &a]));
        assert_ne!(key, submission_key(&id, &[&a]));
        let mut again = b.clone();
        again.request = Some("req-1".to_owned());
        assert_ne!(key, submission_key(&id, &[&a, &again]));
        let mut other = group();
        other.shape.gpus = 1;
        assert_ne!(id, other.id());
        let options = PodOptions { priority: "urgent".to_owned(), ..PodOptions::default() };
        assert_ne!(id, Group { options, ..group() }.id());
    }
}
