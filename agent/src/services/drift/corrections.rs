//! When which drifted pod is evicted. Pure.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use crate::observe::DriftedPod;

/// Drift must last this long: two observations so far apart agree.
const DRIFT_CONFIRMED_AFTER: Duration = Duration::from_secs(5);
/// How long PodDisruptionBudgets may refuse an eviction; then the pod is deleted.
const REFUSED_FOR_AT_MOST: Duration = Duration::from_secs(60);
/// Pause after an attempt.
const ATTEMPT_INTERVAL: Duration = Duration::from_secs(5);
/// Most attempts within [`PACE_WINDOW`]: an error of this agent must not empty a cluster.
const ATTEMPTS_PER_WINDOW: usize = 10;
const PACE_WINDOW: Duration = Duration::from_secs(60);

/// How a pod is removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Means {
    /// Through the Eviction API, which PodDisruptionBudgets may refuse.
    Evict,
    /// By deletion.
    Delete,
}

/// One attempt to remove a pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Correction {
    pub(super) pod: DriftedPod,
    pub(super) means: Means,
    /// Whether it is the first attempt for this pod.
    pub(super) is_first: bool,
}

/// How an attempt ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    /// The pod ends.
    Done,
    /// It is gone, or has moved.
    Gone,
    /// A PodDisruptionBudget refused it.
    Refused,
    /// The call failed.
    Failed,
}

/// Drifted pods, by UID.
#[derive(Debug, Default)]
pub(super) struct Corrections {
    pods: BTreeMap<String, Progress>,
    /// Times of the last attempts.
    attempts: VecDeque<Duration>,
}

#[derive(Debug)]
struct Progress {
    seen: Duration,
    next_attempt: Duration,
    refused_since: Option<Duration>,
    is_told: bool,
}

impl Corrections {
    /// Attempts that are due at a time of the monotonic clock, for the pods that are drifted now.
    pub(super) fn due(&mut self, drifted: &[DriftedPod], now: Duration) -> Vec<Correction> {
        let uids: BTreeSet<&str> = drifted.iter().map(|pod| pod.uid.as_str()).collect();
        self.pods.retain(|uid, _| uids.contains(uid.as_str()));
        self.attempts.retain(|at| now.saturating_sub(*at) < PACE_WINDOW);
        let mut due = Vec::new();
        for pod in drifted {
            let progress = self.pods.entry(pod.uid.clone()).or_insert(Progress {
                seen: now,
                next_attempt: now,
                refused_since: None,
                is_told: false,
            });
            let is_confirmed = now.saturating_sub(progress.seen) >= DRIFT_CONFIRMED_AFTER;
            if !is_confirmed || now < progress.next_attempt || self.attempts.len() >= ATTEMPTS_PER_WINDOW {
                continue;
            }
            let is_overdue =
                progress.refused_since.is_some_and(|since| now.saturating_sub(since) >= REFUSED_FOR_AT_MOST);
            let means = if is_overdue { Means::Delete } else { Means::Evict };
            due.push(Correction { pod: pod.clone(), means, is_first: !progress.is_told });
            (progress.is_told, progress.next_attempt) = (true, now.saturating_add(ATTEMPT_INTERVAL));
            self.attempts.push_back(now);
        }
        due
    }

    /// Records how an attempt ended.
    pub(super) fn note(&mut self, uid: &str, outcome: Outcome, now: Duration) {
        let Some(progress) = self.pods.get_mut(uid) else { return };
        match outcome {
            Outcome::Refused => {
                progress.refused_since.get_or_insert(now);
            }
            // The observation was late: it begins again.
            Outcome::Gone => progress.seen = now,
            Outcome::Done | Outcome::Failed => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use comity_types::LeaseId;

    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn drifted(uids: &[&str]) -> Vec<DriftedPod> {
        let pod = |uid: &&str| DriftedPod {
            lease: LeaseId(7),
            namespace: "comity-lease-7".to_owned(),
            name: (*uid).to_owned(),
            uid: (*uid).to_owned(),
            node: "b".to_owned(),
            resource: "nvidia.com/gpu".to_owned(),
            allowed: 0,
            held: 1,
        };
        uids.iter().map(pod).collect()
    }

    fn means(due: &[Correction]) -> Vec<(&str, Means)> {
        due.iter().map(|correction| (correction.pod.uid.as_str(), correction.means)).collect()
    }

    #[test]
    fn drift_is_corrected_once_it_lasts() {
        let mut corrections = Corrections::default();
        let one = drifted(&["x"]);
        assert!(corrections.due(&one, SECOND).is_empty());
        assert!(corrections.due(&one, SECOND * 5).is_empty());
        // It went and came again: the time begins again.
        assert!(corrections.due(&[], SECOND * 6).is_empty());
        assert!(corrections.due(&one, SECOND * 7).is_empty());
        let due = corrections.due(&one, SECOND * 12);
        assert_eq!(means(&due), [("x", Means::Evict)]);
        assert!(due[0].is_first);
        corrections.note("x", Outcome::Failed, SECOND * 12);
        assert!(corrections.due(&one, SECOND * 13).is_empty(), "a pause between attempts");
        let again = corrections.due(&one, SECOND * 17);
        assert!(means(&again) == [("x", Means::Evict)] && !again[0].is_first);
    }

    #[test]
    fn a_budget_delays_an_eviction_and_does_not_prevent_it() {
        let mut corrections = Corrections::default();
        let one = drifted(&["x"]);
        corrections.due(&one, SECOND);
        for second in (6..66).step_by(5) {
            assert_eq!(means(&corrections.due(&one, SECOND * second)), [("x", Means::Evict)], "{second}");
            corrections.note("x", Outcome::Refused, SECOND * second);
            // Each minute has room for a dozen attempts at most.
            corrections.attempts.clear();
        }
        assert_eq!(means(&corrections.due(&one, SECOND * 66)), [("x", Means::Delete)]);
    }

    #[test]
    fn evictions_are_bounded() {
        let mut corrections = Corrections::default();
        let names: Vec<String> = (0..25).map(|number| format!("pod-{number:02}")).collect();
        let many = drifted(&names.iter().map(String::as_str).collect::<Vec<_>>());
        corrections.due(&many, SECOND);
        assert_eq!(corrections.due(&many, SECOND * 6).len(), 10);
        assert!(corrections.due(&many, SECOND * 20).is_empty());
        assert_eq!(corrections.due(&many, SECOND * 66).len(), 10, "a minute later");
    }
}
