//! Which canaries to make and delete, and which nodes are not proved. Pure.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::canary_pod::{CanaryPod, CanaryResult, WantedCanary, plain};

/// Most canaries that have not finished at the same time.
const RUNNING_AT_ONCE: usize = 16;
/// When a canary that saw devices, or broke, is repeated.
const CANARY_RETRY: Duration = Duration::from_secs(300);
/// When a canary that does not finish is replaced.
const FINISH_PATIENCE: Duration = Duration::from_secs(600);

/// A node that lends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct LendingNode {
    pub(super) name: String,
    /// Its boot and its container runtime: a proof is for both.
    pub(super) environment: String,
}

/// What to do, and what is known.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct CanaryPlan {
    pub(super) make: Vec<WantedCanary>,
    pub(super) delete: Vec<CanaryPod>,
    /// Nodes that may not lend, with the reason.
    pub(super) unproved: BTreeMap<String, String>,
    /// Those of them whose last verdict is that a container sees GPUs.
    pub(super) exposed: BTreeSet<String>,
}

impl CanaryPlan {
    /// Gives the nodes whose canary could not be made that reason, except those whose last canary saw GPUs.
    pub(super) fn note_refused(&mut self, refused: &BTreeMap<String, String>) {
        for (node, reason) in refused.iter().filter(|(node, _)| !self.exposed.contains(*node)) {
            if let Some(known) = self.unproved.get_mut(node) {
                *known = format!("its canary cannot be made: {}", plain(reason));
            }
        }
    }
}

/// The plan at a time in milliseconds since 1970; a proof is renewed after `every`, and counts twice as long.
pub(super) fn plan(nodes: &[LendingNode], pods: &[&CanaryPod], now_ms: u64, every: Duration) -> CanaryPlan {
    let mut of_node: BTreeMap<&str, Vec<&CanaryPod>> = BTreeMap::new();
    for pod in pods {
        of_node.entry(&pod.node).or_default().push(pod);
    }
    let mut plan = CanaryPlan::default();
    let is_waiting = |pod: &&&CanaryPod| matches!(pod.result, CanaryResult::Waiting(_));
    let mut room = RUNNING_AT_ONCE.saturating_sub(pods.iter().filter(is_waiting).count());
    for node in nodes {
        let canaries = Canaries::of(node, of_node.remove(node.name.as_str()).unwrap_or_default(), now_ms);
        plan.delete.extend(canaries.surplus.iter().map(|pod| (*pod).clone()));
        plan.unproved.extend(canaries.objection(every, now_ms).map(|reason| (node.name.clone(), reason)));
        if canaries.verdict.is_some_and(|pod| matches!(pod.result, CanaryResult::Exposed { .. })) {
            plan.exposed.insert(node.name.clone());
        }
        if room > 0 && canaries.is_due(every, now_ms) {
            room -= 1;
            plan.make.push(WantedCanary {
                node: node.name.clone(),
                environment: node.environment.clone(),
                after: canaries.last.map(|pod| pod.uid.clone()),
            });
        }
    }
    plan.delete.extend(of_node.into_values().flatten().cloned());
    plan
}

/// The canaries of one node that count: those of its present environment.
struct Canaries<'a> {
    waiting: Option<&'a CanaryPod>,
    /// The last one that ended.
    last: Option<&'a CanaryPod>,
    /// The last one that looked.
    verdict: Option<&'a CanaryPod>,
    surplus: Vec<&'a CanaryPod>,
}

impl<'a> Canaries<'a> {
    fn of(node: &LendingNode, pods: Vec<&'a CanaryPod>, now_ms: u64) -> Self {
        let current = || pods.iter().copied().filter(|pod| pod.environment == node.environment);
        let is_waiting = |pod: &&CanaryPod| matches!(pod.result, CanaryResult::Waiting(_));
        let has_looked =
            |pod: &&CanaryPod| matches!(pod.result, CanaryResult::Clear { .. } | CanaryResult::Exposed { .. });
        let waiting = current().find(|pod| is_waiting(pod) && age(pod.made_ms, now_ms) < FINISH_PATIENCE);
        let last = current().filter(|pod| !is_waiting(pod)).max_by_key(|pod| (ended_ms(pod), &pod.uid));
        let verdict = current().filter(has_looked).max_by_key(|pod| (ended_ms(pod), &pod.uid));
        let counts = |pod: &&CanaryPod| [waiting, last, verdict].into_iter().flatten().any(|kept| kept.uid == pod.uid);
        let surplus = pods.iter().copied().filter(|pod| !counts(pod)).collect();
        Self { waiting, last, verdict, surplus }
    }

    fn is_due(&self, every: Duration, now_ms: u64) -> bool {
        let is_over = |last: &CanaryPod| {
            let pause = if matches!(last.result, CanaryResult::Clear { .. }) { every } else { CANARY_RETRY };
            age(ended_ms(last), now_ms) >= pause
        };
        self.waiting.is_none() && self.last.is_none_or(is_over)
    }

    /// Why the node may not lend; `None` if it is proved.
    fn objection(&self, every: Duration, now_ms: u64) -> Option<String> {
        match self.verdict.map(|pod| &pod.result) {
            Some(CanaryResult::Clear { at_ms }) if age(*at_ms, now_ms) <= every * 2 => return None,
            Some(CanaryResult::Exposed { devices, .. }) => {
                return Some(format!(
                    "a container that asks for no GPU sees {devices}; set \
                     accept-nvidia-visible-devices-envvar-when-unprivileged = false in the node's \
                     /etc/nvidia-container-runtime/config.toml"
                ));
            }
            _ => {}
        }
        let waits_for = match self.waiting.map(|pod| &pod.result) {
            Some(CanaryResult::Waiting(Some(reason))) => Some(format!("its canary waits: {reason}")),
            _ => None,
        };
        let broke = match self.last.map(|pod| &pod.result) {
            Some(CanaryResult::Broken { reason, .. }) => Some(reason.clone()),
            _ => None,
        };
        Some(waits_for.or(broke).unwrap_or_else(|| "its canary has not finished yet".to_owned()))
    }
}

/// When a canary ended; of one that did not, when it was made.
fn ended_ms(pod: &CanaryPod) -> u64 {
    match pod.result {
        CanaryResult::Waiting(_) => pod.made_ms,
        CanaryResult::Clear { at_ms } | CanaryResult::Exposed { at_ms, .. } | CanaryResult::Broken { at_ms, .. } => {
            at_ms
        }
    }
}

/// Zero for a time that a node's clock has put into the future.
fn age(at_ms: u64, now_ms: u64) -> Duration {
    Duration::from_millis(now_ms.saturating_sub(at_ms))
}

#[cfg(test)]
mod tests {
    use super::*;

    const MINUTE: u64 = 60_000;
    const HOUR: u64 = 60 * MINUTE;
    const DAY: Duration = Duration::from_secs(86_400);

    fn node(environment: &str) -> LendingNode {
        LendingNode { name: "a".to_owned(), environment: environment.to_owned() }
    }

    fn pod(uid: &str, result: CanaryResult) -> CanaryPod {
        let (uid, name) = (uid.to_owned(), uid.to_owned());
        CanaryPod { uid, name, node: "a".to_owned(), environment: "boot-1".to_owned(), made_ms: 0, result }
    }

    fn at(environment: &str, pods: &[&CanaryPod], now_ms: u64) -> CanaryPlan {
        plan(&[node(environment)], pods, now_ms, DAY)
    }

    fn names(pods: &[CanaryPod]) -> Vec<&str> {
        pods.iter().map(|pod| pod.name.as_str()).collect()
    }

    #[test]
    fn a_node_lends_once_its_canary_saw_nothing() {
        let none = at("boot-1", &[], 0);
        assert_eq!((none.make.len(), none.unproved["a"].as_str()), (1, "its canary has not finished yet"));
        let waiting = pod("x", CanaryResult::Waiting(Some("ErrImagePull".to_owned())));
        let waits = at("boot-1", &[&waiting], MINUTE);
        assert!(waits.make.is_empty() && waits.unproved["a"].ends_with("ErrImagePull") && waits.exposed.is_empty());
        let clear = pod("x", CanaryResult::Clear { at_ms: MINUTE });
        assert_eq!(at("boot-1", &[&clear], 2 * MINUTE), CanaryPlan::default());
    }

    #[test]
    fn a_node_whose_canary_saw_devices_does_not_lend_and_is_tried_again() {
        let exposed = pod("x", CanaryResult::Exposed { at_ms: 0, devices: "/dev/nvidia0".to_owned() });
        let soon = at("boot-1", &[&exposed], MINUTE);
        assert!(soon.make.is_empty() && soon.unproved["a"].contains("/dev/nvidia0"), "{soon:?}");
        assert!(soon.exposed.contains("a"));
        assert_eq!(at("boot-1", &[&exposed], 5 * MINUTE).make[0].after.as_deref(), Some("x"));
        let earlier = pod("w", CanaryResult::Clear { at_ms: 0 });
        let exposed = pod("x", CanaryResult::Exposed { at_ms: 1, devices: String::new() });
        let plan = at("boot-1", &[&exposed, &earlier], MINUTE);
        assert_eq!((plan.unproved.len(), names(&plan.delete)), (1, vec!["w"]), "the last one counts");
    }

    #[test]
    fn a_canary_that_cannot_be_made_says_why() {
        let refused = BTreeMap::from([("a".to_owned(), "RuntimeClass \"kata\" not found".to_owned())]);
        let mut first = at("boot-1", &[], 0);
        first.note_refused(&refused);
        assert_eq!(first.unproved["a"], "its canary cannot be made: RuntimeClass \"kata\" not found");
        let exposed = pod("x", CanaryResult::Exposed { at_ms: 0, devices: "/dev/nvidia0".to_owned() });
        let mut again = at("boot-1", &[&exposed], 5 * MINUTE);
        again.note_refused(&refused);
        assert!(again.unproved["a"].contains("sees /dev/nvidia0"), "{again:?}");
        // A proof that still counts needs no other one.
        let clear = pod("x", CanaryResult::Clear { at_ms: 0 });
        let mut late = at("boot-1", &[&clear], 24 * HOUR);
        late.note_refused(&refused);
        assert!(late.unproved.is_empty());
    }

    #[test]
    fn a_proof_is_for_one_boot_and_runtime() {
        let clear = pod("x", CanaryResult::Clear { at_ms: 0 });
        let rebooted = at("boot-2", &[&clear], MINUTE);
        assert_eq!((rebooted.make[0].environment.as_str(), names(&rebooted.delete)), ("boot-2", vec!["x"]));
        assert!(rebooted.unproved.contains_key("a"));
    }

    #[test]
    fn a_proof_is_renewed_daily_and_survives_a_canary_that_broke() {
        let clear = pod("x", CanaryResult::Clear { at_ms: 0 });
        let late = at("boot-1", &[&clear], 24 * HOUR);
        assert!(late.make.len() == 1 && late.unproved.is_empty());
        let broken = pod("y", CanaryResult::Broken { at_ms: 24 * HOUR, reason: "evicted".to_owned() });
        let plan = at("boot-1", &[&clear, &broken], 24 * HOUR + MINUTE);
        assert_eq!(plan, CanaryPlan::default(), "both are kept");
        let plan = at("boot-1", &[&clear, &broken], 48 * HOUR + 1);
        assert_eq!(plan.unproved["a"], "evicted");
    }

    #[test]
    fn a_canary_that_never_finishes_is_replaced_and_those_of_other_nodes_go() {
        let stuck = pod("x", CanaryResult::Waiting(None));
        let plan = at("boot-1", &[&stuck], 11 * MINUTE);
        assert_eq!((names(&plan.delete), plan.make.len()), (vec!["x"], 1));
        let foreign = CanaryPod { node: "gone".to_owned(), ..pod("y", CanaryResult::Clear { at_ms: 0 }) };
        assert_eq!(names(&at("boot-1", &[&foreign], 0).delete), ["y"]);
    }

    #[test]
    fn only_some_nodes_are_proved_at_once() {
        let nodes: Vec<LendingNode> =
            (0..100).map(|at| LendingNode { name: format!("n{at}"), environment: String::new() }).collect();
        let first = plan(&nodes, &[], 0, DAY);
        assert_eq!((first.make.len(), first.unproved.len()), (RUNNING_AT_ONCE, 100));
        let waiting =
            CanaryPod { node: "n0".to_owned(), environment: String::new(), ..pod("x", CanaryResult::Waiting(None)) };
        assert_eq!(plan(&nodes, &[&waiting], 0, DAY).make.len(), RUNNING_AT_ONCE - 1);
    }
}
