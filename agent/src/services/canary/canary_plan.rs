//! Which canaries to make and delete, and which nodes are not proved. Pure.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::canary_pair::{CanaryPair, Finding, PairResult};
use super::canary_pod::{CanaryPod, CanaryResult, Role, WantedCanary, pair_name, plain};

/// Most nodes whose canaries have not finished at the same time.
const RUNNING_AT_ONCE: usize = 64;
/// When canaries that found something, or broke, are repeated.
const CANARY_RETRY: Duration = Duration::from_secs(300);
/// When canaries that do not finish are replaced.
const FINISH_PATIENCE: Duration = Duration::from_secs(600);

/// A node that lends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct LendingNode {
    pub(super) name: String,
    /// Its boot and its container runtime: a proof is for both.
    pub(super) environment: String,
}

/// What proves a node.
#[derive(Clone, Copy, Debug)]
pub(super) struct ProofRules {
    /// A proof is renewed after this time, and counts twice as long.
    pub(super) every: Duration,
    /// The canaries of a pair.
    pub(super) roles: &'static [Role],
}

/// What to do, and what is known.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct CanaryPlan {
    pub(super) make: Vec<WantedCanary>,
    pub(super) delete: Vec<CanaryPod>,
    /// Nodes that may not lend, with the reason.
    pub(super) unproved: BTreeMap<String, String>,
    /// Those of them whose last verdict is a finding.
    pub(super) findings: BTreeMap<String, Finding>,
}

impl CanaryPlan {
    /// Gives the nodes whose canaries could not be made that reason, except those with a finding.
    pub(super) fn note_refused(&mut self, refused: &BTreeMap<String, String>) {
        for (node, reason) in refused.iter().filter(|(node, _)| !self.findings.contains_key(*node)) {
            if let Some(known) = self.unproved.get_mut(node) {
                *known = format!("its canary cannot be made: {}", plain(reason));
            }
        }
    }
}

/// The plan at a time in milliseconds since 1970.
pub(super) fn plan(nodes: &[LendingNode], pods: &[&CanaryPod], now_ms: u64, rules: ProofRules) -> CanaryPlan {
    let mut of_node: BTreeMap<&str, Vec<&CanaryPod>> = BTreeMap::new();
    for pod in pods {
        of_node.entry(&pod.node).or_default().push(pod);
    }
    let mut plan = CanaryPlan::default();
    let waiting = pods.iter().filter(|pod| matches!(pod.result, CanaryResult::Waiting(_)));
    let running: BTreeSet<&str> = waiting.map(|pod| pod.node.as_str()).collect();
    let mut room = RUNNING_AT_ONCE.saturating_sub(running.len());
    for node in nodes {
        let canaries = NodeCanaries::of(node, of_node.remove(node.name.as_str()).unwrap_or_default(), now_ms, rules);
        plan.delete.extend(canaries.surplus.iter().map(|pod| (*pod).clone()));
        plan.unproved.extend(canaries.objection(rules.every, now_ms).map(|reason| (node.name.clone(), reason)));
        if let Some(PairResult::Found { finding, .. }) = canaries.verdict.as_ref().map(|pair| &pair.result) {
            plan.findings.insert(node.name.clone(), finding.clone());
        }
        let (pair, roles) = match &canaries.waiting {
            Some(CanaryPair { name, result: PairResult::Waiting { missing, .. }, .. }) => {
                ((*name).to_owned(), missing.as_slice())
            }
            None if room > 0 && canaries.is_due(rules.every, now_ms) => {
                room -= 1;
                let before = canaries.last.as_ref().map(|pair| pair.name);
                (pair_name(&node.name, &node.environment, before), rules.roles)
            }
            _ => continue,
        };
        plan.make.extend(roles.iter().map(|role| WantedCanary {
            pair: pair.clone(),
            role: *role,
            node: node.name.clone(),
            environment: node.environment.clone(),
        }));
    }
    plan.delete.extend(of_node.into_values().flatten().cloned());
    plan
}

/// The canaries of one node that count: those of its present environment.
struct NodeCanaries<'a> {
    waiting: Option<CanaryPair<'a>>,
    /// The last pair that ended.
    last: Option<CanaryPair<'a>>,
    /// The last pair that proved or found something.
    verdict: Option<CanaryPair<'a>>,
    surplus: Vec<&'a CanaryPod>,
}

impl<'a> NodeCanaries<'a> {
    fn of(node: &LendingNode, pods: Vec<&'a CanaryPod>, now_ms: u64, rules: ProofRules) -> Self {
        let current = pods.iter().copied().filter(|pod| pod.environment == node.environment);
        let pairs = CanaryPair::of(current, rules.roles);
        let is_waiting = |pair: &&CanaryPair<'_>| {
            matches!(pair.result, PairResult::Waiting { .. }) && age(pair.made_ms, now_ms) < FINISH_PATIENCE
        };
        let has_verdict =
            |pair: &&CanaryPair<'_>| matches!(pair.result, PairResult::Clear { .. } | PairResult::Found { .. });
        let has_ended = |pair: &&CanaryPair<'_>| has_verdict(pair) || matches!(pair.result, PairResult::Broken { .. });
        let order = |pair: &&CanaryPair<'a>| (pair.ended_ms(), pair.name);
        let waiting = pairs.iter().find(is_waiting).cloned();
        let last = pairs.iter().filter(has_ended).max_by_key(order).cloned();
        let verdict = pairs.iter().filter(has_verdict).max_by_key(order).cloned();
        let counts = |pod: &CanaryPod| {
            rules.roles.contains(&pod.role)
                && [&waiting, &last, &verdict].into_iter().flatten().any(|kept| kept.name == pod.pair)
        };
        let surplus = pods.iter().copied().filter(|pod| !counts(pod)).collect();
        Self { waiting, last, verdict, surplus }
    }

    fn is_due(&self, every: Duration, now_ms: u64) -> bool {
        let is_over = |last: &CanaryPair<'_>| {
            let pause = if matches!(last.result, PairResult::Clear { .. }) { every } else { CANARY_RETRY };
            age(last.ended_ms(), now_ms) >= pause
        };
        self.last.as_ref().is_none_or(is_over)
    }

    /// Why the node may not lend; `None` if it is proved.
    fn objection(&self, every: Duration, now_ms: u64) -> Option<String> {
        match self.verdict.as_ref().map(|pair| &pair.result) {
            Some(PairResult::Clear { at_ms }) if age(*at_ms, now_ms) <= every * 2 => return None,
            Some(PairResult::Found { finding, .. }) => return Some(finding.to_string()),
            _ => {}
        }
        let waits_for = match self.waiting.as_ref().map(|pair| &pair.result) {
            Some(PairResult::Waiting { reason: Some(reason), .. }) => Some(format!("its canary waits: {reason}")),
            _ => None,
        };
        let broke = match self.last.as_ref().map(|pair| &pair.result) {
            Some(PairResult::Broken { reason, .. }) => Some(reason.clone()),
            _ => None,
        };
        Some(waits_for.or(broke).unwrap_or_else(|| "its canary has not finished yet".to_owned()))
    }
}

/// Zero for a time that a node's clock has put into the future.
fn age(at_ms: u64, now_ms: u64) -> Duration {
    Duration::from_millis(now_ms.saturating_sub(at_ms))
}

#[cfg(test)]
mod tests {
    use super::super::canary_pod::Connects;
    use super::*;

    const MINUTE: u64 = 60_000;
    const HOUR: u64 = 60 * MINUTE;
    const RULES: ProofRules =
        ProofRules { every: Duration::from_secs(86_400), roles: &[Role::Control, Role::Restricted] };

    fn node(environment: &str) -> LendingNode {
        LendingNode { name: "a".to_owned(), environment: environment.to_owned() }
    }

    fn pod(pair: &str, role: Role, result: CanaryResult) -> CanaryPod {
        let name = format!("{pair}-{}", role.as_str());
        let (uid, pair, node, environment) = (name.clone(), pair.to_owned(), "a".to_owned(), "boot-1".to_owned());
        CanaryPod { uid, name, pair, role, node, environment, made_ms: 0, result }
    }

    /// A pair whose canaries both have this result.
    fn pair(name: &str, result: &CanaryResult) -> Vec<CanaryPod> {
        RULES.roles.iter().map(|role| pod(name, *role, result.clone())).collect()
    }

    fn tried(name: &str, at_ms: u64, restricted: Connects) -> Vec<CanaryPod> {
        let result = |connects| CanaryResult::Tried { began_ms: at_ms, at_ms, connects };
        vec![pod(name, Role::Control, result(Connects::Always)), pod(name, Role::Restricted, result(restricted))]
    }

    fn clear(name: &str, at_ms: u64) -> Vec<CanaryPod> {
        tried(name, at_ms, Connects::Never)
    }

    fn exposed(name: &str, at_ms: u64) -> Vec<CanaryPod> {
        pair(name, &CanaryResult::SawDevices { at_ms, devices: "/dev/nvidia0".to_owned() })
    }

    fn under(rules: ProofRules, environment: &str, pods: &[Vec<CanaryPod>], now_ms: u64) -> CanaryPlan {
        let pods: Vec<&CanaryPod> = pods.iter().flatten().collect();
        plan(&[node(environment)], &pods, now_ms, rules)
    }

    fn at(environment: &str, pods: &[Vec<CanaryPod>], now_ms: u64) -> CanaryPlan {
        under(RULES, environment, pods, now_ms)
    }

    fn names(pods: &[CanaryPod]) -> Vec<&str> {
        pods.iter().map(|pod| pod.name.as_str()).collect()
    }

    fn both(name: &str) -> [String; 2] {
        [format!("{name}-control"), format!("{name}-restricted")]
    }

    #[test]
    fn a_node_lends_once_its_canaries_found_nothing() {
        let none = at("boot-1", &[], 0);
        let roles: Vec<Role> = none.make.iter().map(|wanted| wanted.role).collect();
        assert_eq!((roles.as_slice(), none.unproved["a"].as_str()), (RULES.roles, "its canary has not finished yet"));
        assert_eq!(none.make[0].pair, none.make[1].pair);
        let waiting = pair("x", &CanaryResult::Waiting(Some("ErrImagePull".to_owned())));
        let waits = at("boot-1", &[waiting], MINUTE);
        assert!(waits.make.is_empty() && waits.unproved["a"].ends_with("ErrImagePull") && waits.findings.is_empty());
        assert_eq!(at("boot-1", &[clear("x", MINUTE)], 2 * MINUTE), CanaryPlan::default());
    }

    #[test]
    fn the_other_canary_of_a_pair_is_made_as_long_as_the_first_runs() {
        let first = || pod("x", Role::Control, CanaryResult::Waiting(None));
        let plan = at("boot-1", &[vec![first()]], MINUTE);
        let [other] = plan.make.as_slice() else { panic!("one canary, not {plan:?}") };
        assert_eq!((other.pair.as_str(), other.role), ("x", Role::Restricted));
        let tried = CanaryResult::Tried { began_ms: 0, at_ms: 1, connects: Connects::Always };
        let ended = at("boot-1", &[vec![CanaryPod { result: tried, ..first() }]], MINUTE);
        assert_eq!((names(&ended.delete), ended.make.len()), (vec!["x-control"], 2), "both run again");
        assert_eq!(ended.unproved["a"], "its canary has not finished yet");
    }

    #[test]
    fn a_node_whose_canary_saw_devices_does_not_lend_and_is_tried_again() {
        let soon = at("boot-1", &[exposed("x", 0)], MINUTE);
        assert!(soon.make.is_empty() && soon.unproved["a"].contains("/dev/nvidia0"), "{soon:?}");
        assert_eq!(soon.findings["a"].event_reason(), "ComityGpusExposed");
        let again = at("boot-1", &[exposed("x", 0)], 5 * MINUTE);
        assert_eq!(again.make[0].pair, pair_name("a", "boot-1", Some("x")));
        let plan = at("boot-1", &[exposed("x", 1), clear("w", 0)], MINUTE);
        assert_eq!((plan.unproved.len(), names(&plan.delete)), (1, both("w").iter().map(String::as_str).collect()));
    }

    #[test]
    fn a_node_without_network_policies_does_not_lend_unless_its_owner_accepts_that() {
        for connects in [Connects::Always, Connects::Sometimes] {
            let open = [tried("x", 0, connects)];
            let plan = at("boot-1", &open, MINUTE);
            assert!(plan.unproved["a"].contains("enforces no NetworkPolicies"), "{plan:?}");
            assert_eq!(plan.findings["a"].event_reason(), "ComityEgressOpen");
            assert!(plan.make.is_empty() && at("boot-1", &open, 5 * MINUTE).make.len() == 2);
            let accepted = under(ProofRules { roles: &[Role::Restricted], ..RULES }, "boot-1", &open, MINUTE);
            assert!(accepted.unproved.is_empty() && accepted.make.is_empty(), "{accepted:?}");
            assert_eq!(names(&accepted.delete), ["x-control"], "its control has no use");
        }
    }

    #[test]
    fn a_proof_without_its_control_does_not_count_once_policies_are_required() {
        let before = vec![clear("x", 0).remove(1)];
        let plan = at("boot-1", &[before], MINUTE);
        assert_eq!((names(&plan.delete), plan.make.len(), plan.unproved.len()), (vec!["x-restricted"], 2, 1));
    }

    #[test]
    fn a_canary_that_cannot_be_made_says_why() {
        let refused = BTreeMap::from([("a".to_owned(), "RuntimeClass \"kata\" not found".to_owned())]);
        let mut first = at("boot-1", &[], 0);
        first.note_refused(&refused);
        assert_eq!(first.unproved["a"], "its canary cannot be made: RuntimeClass \"kata\" not found");
        let mut again = at("boot-1", &[exposed("x", 0)], 5 * MINUTE);
        again.note_refused(&refused);
        assert!(again.unproved["a"].contains("sees /dev/nvidia0"), "{again:?}");
        // A proof that still counts needs no other one.
        let mut late = at("boot-1", &[clear("x", 0)], 24 * HOUR);
        late.note_refused(&refused);
        assert!(late.unproved.is_empty());
    }

    #[test]
    fn a_proof_is_for_one_boot_and_runtime() {
        let rebooted = at("boot-2", &[clear("x", 0)], MINUTE);
        assert_eq!(rebooted.make[0].environment, "boot-2");
        assert_eq!(names(&rebooted.delete), both("x"));
        assert!(rebooted.unproved.contains_key("a"));
    }

    #[test]
    fn a_proof_is_renewed_daily_and_survives_a_canary_that_broke() {
        let late = at("boot-1", &[clear("x", 0)], 24 * HOUR);
        assert!(late.make.len() == 2 && late.unproved.is_empty());
        let broken = || pair("y", &CanaryResult::Broken { at_ms: 24 * HOUR, reason: "evicted".to_owned() });
        let plan = at("boot-1", &[clear("x", 0), broken()], 24 * HOUR + MINUTE);
        assert_eq!(plan, CanaryPlan::default(), "both are kept");
        let plan = at("boot-1", &[clear("x", 0), broken()], 48 * HOUR + 1);
        assert_eq!(plan.unproved["a"], "evicted");
    }

    #[test]
    fn a_canary_that_never_finishes_is_replaced_and_those_of_other_nodes_go() {
        let stuck = pair("x", &CanaryResult::Waiting(None));
        let plan = at("boot-1", &[stuck], 11 * MINUTE);
        assert_eq!((names(&plan.delete).len(), plan.make.len()), (2, 2));
        let foreign = CanaryPod { node: "gone".to_owned(), ..pod("y", Role::Control, CanaryResult::Waiting(None)) };
        assert_eq!(names(&at("boot-1", &[vec![foreign]], 0).delete), ["y-control"]);
    }

    #[test]
    fn only_some_nodes_are_proved_at_once() {
        let nodes: Vec<LendingNode> =
            (0..100).map(|at| LendingNode { name: format!("n{at}"), environment: String::new() }).collect();
        let first = plan(&nodes, &[], 0, RULES);
        assert_eq!((first.make.len(), first.unproved.len()), (2 * RUNNING_AT_ONCE, 100));
        let waiting = pair("x", &CanaryResult::Waiting(None)).into_iter();
        let waiting: Vec<CanaryPod> =
            waiting.map(|pod| CanaryPod { node: "n0".to_owned(), environment: String::new(), ..pod }).collect();
        let waiting: Vec<&CanaryPod> = waiting.iter().collect();
        assert_eq!(plan(&nodes, &waiting, 0, RULES).make.len(), 2 * (RUNNING_AT_ONCE - 1));
    }
}
