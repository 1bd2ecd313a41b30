//! Counts pods of the donor's own that wait for leased GPUs as local use, so that the broker reclaims leases for them.
//!
//! A pod counts on one node once the scheduler has found too few GPUs for the configured time. The pod may use this
//! node, its GPUs are too few now, and they would be enough without the pods of leases. A pod that fits on some node
//! now waits for something else, and does not count.
//!
//! A counted pod keeps its node: GPUs that become free for it must not be lent again before the scheduler tries again.
//! If the scheduler leaves them unused for a minute, the pod waits for something that the agent cannot see, and counts
//! no more.

pub(crate) mod node_terms;
pub(crate) mod pending_pod;
mod places;

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::time::Duration;

use comity_agent_model::local_policy::ReclaimForPending;
use tokio::time::Instant;

use super::pod_facts::PodFacts;
use pending_pod::PendingPod;
use places::Places;

pub(crate) use places::ClusterFacts;

/// Pods that are considered at a time, those of the highest priority first.
const MAX_PENDING_PODS: usize = 256;
/// How long a pod may fit on its node without being placed there. The scheduler tries again within seconds of the end
/// of another pod.
const MAX_ROOM_UNUSED: Duration = Duration::from_secs(60);

/// Remembers how long pods wait, and where they count.
#[derive(Debug)]
pub(crate) struct PendingPods {
    settings: ReclaimForPending,
    /// By UID.
    waits: BTreeMap<String, Wait>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Wait {
    /// It does not count.
    Since(Instant),
    /// It counts on this node; if it fits there now, since when.
    On { node: String, fits_since: Option<Instant> },
    /// It fitted, and the scheduler did not place it.
    NotForGpus,
}

impl PendingPods {
    pub(crate) const fn new(settings: ReclaimForPending) -> Self {
        Self { settings, waits: BTreeMap::new() }
    }

    /// The pods that count, as if their nodes ran them.
    pub(crate) fn counted<'a>(
        &mut self,
        pending: impl Iterator<Item = &'a PendingPod>,
        pods: impl Iterator<Item = &'a PodFacts> + Clone,
        cluster: &ClusterFacts<'a>,
        now: Instant,
    ) -> Vec<PodFacts> {
        let pending = self.considered(pending);
        let mut known = std::mem::take(&mut self.waits);
        for pod in &pending {
            self.waits.insert(pod.uid.clone(), known.remove(&pod.uid).unwrap_or(Wait::Since(now)));
        }
        let due: Vec<&PendingPod> = pending.into_iter().filter(|pod| self.is_due(pod, now)).collect();
        if due.is_empty() {
            return Vec::new();
        }
        let mut places = Places::of(cluster, pods);
        let mut counted = Vec::new();
        for pod in due {
            let Some(before) = self.waits.remove(&pod.uid) else { continue };
            let wait = next_wait(pod, before, &places, now);
            if let Wait::On { node, .. } = &wait {
                places.take(node, pod);
                counted.push(pod.on_node(node));
            }
            self.waits.insert(pod.uid.clone(), wait);
        }
        counted
    }

    /// When the pods that count may change without an event.
    pub(crate) fn next_due(&self, now: Instant) -> Option<Instant> {
        let due = |wait: &Wait| match wait {
            Wait::Since(since) => Some(*since + self.settings.after()),
            Wait::On { fits_since, .. } => fits_since.map(|since| since + MAX_ROOM_UNUSED),
            Wait::NotForGpus => None,
        };
        self.waits.values().filter_map(due).filter(|due| *due > now).min()
    }

    /// The pods for which the donor wants leases reclaimed, in the order in which they get GPUs.
    fn considered<'a>(&self, pending: impl Iterator<Item = &'a PendingPod>) -> Vec<&'a PendingPod> {
        if !self.settings.enabled {
            return Vec::new();
        }
        let namespaces = &self.settings.namespaces;
        let is_wanted = |pod: &&PendingPod| {
            pod.priority >= self.settings.min_priority && (namespaces.is_empty() || namespaces.contains(&pod.namespace))
        };
        let mut wanted: Vec<&PendingPod> = pending.filter(is_wanted).collect();
        wanted.sort_by_key(|pod| (Reverse(pod.priority), pod.created_ms, &pod.namespace, &pod.name));
        wanted.truncate(MAX_PENDING_PODS);
        wanted
    }

    fn is_due(&self, pod: &PendingPod, now: Instant) -> bool {
        match self.waits.get(&pod.uid) {
            Some(Wait::Since(since)) => *since + self.settings.after() <= now,
            Some(Wait::On { .. }) => true,
            Some(Wait::NotForGpus) | None => false,
        }
    }
}

/// Where a pod that has waited long enough counts from now on.
fn next_wait(pod: &PendingPod, before: Wait, places: &Places<'_>, now: Instant) -> Wait {
    let (namespace, name) = (&pod.namespace, &pod.name);
    if let Wait::On { node, fits_since } = &before
        && let Some(place) = places.suitable(node, pod)
    {
        let fits_since = place.fits_now(pod).then(|| fits_since.unwrap_or(now));
        if fits_since.is_some_and(|since| since + MAX_ROOM_UNUSED <= now) {
            tracing::info!(
                namespace,
                name,
                node,
                "the scheduler does not place a pod where it fits: it counts no more"
            );
            return Wait::NotForGpus;
        }
        return Wait::On { node: node.clone(), fits_since };
    }
    match (places.best(pod), before) {
        (Some(node), _) => {
            tracing::info!(namespace, name, node, "a pod waits for leased GPUs and counts as local use");
            Wait::On { node: node.to_owned(), fits_since: None }
        }
        (None, Wait::On { .. }) => Wait::Since(now),
        (None, before) => before,
    }
}

#[cfg(test)]
mod tests;
