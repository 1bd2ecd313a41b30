//! The canaries of one node that were made together, and what they prove. Pure.

use std::collections::BTreeMap;
use std::fmt;

use super::canary_pod::{CanaryPod, CanaryResult, Connects, Role};

/// How far apart the two canaries of a pair may begin. The image's last six tries take 12 s, so some of them are made
/// while the other canary makes its own.
const APART_MS: u64 = 10_000;

/// What makes a node unfit for guests.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Finding {
    /// A container that asks for no GPU sees these.
    Devices(String),
    /// A pod connects although a NetworkPolicy denies it.
    OpenEgress,
}

impl Finding {
    /// Reason of the event on the node.
    pub(super) const fn event_reason(&self) -> &'static str {
        match self {
            Self::Devices(_) => "ComityGpusExposed",
            Self::OpenEgress => "ComityEgressOpen",
        }
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Devices(devices) => write!(
                out,
                "a container that asks for no GPU sees {devices}; set \
                 accept-nvidia-visible-devices-envvar-when-unprivileged = false in the node's \
                 /etc/nvidia-container-runtime/config.toml"
            ),
            Self::OpenEgress => out.write_str(
                "the CNI enforces no NetworkPolicies here: a pod whose egress is denied connects to the API server; use \
                 a CNI that enforces them, or accept that guests reach this cluster's networks by \
                 canary.networkPolicies: not-enforced",
            ),
        }
    }
}

/// The result of a pair; times in milliseconds since 1970.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum PairResult {
    /// It has not finished, for a reason that Kubernetes gives, or none; these canaries are not made yet.
    Waiting { reason: Option<String>, missing: Vec<Role> },
    /// Guests may run on the node.
    Clear { at_ms: u64 },
    /// They may not.
    Found { at_ms: u64, finding: Finding },
    /// It proves nothing.
    Broken { at_ms: u64, reason: String },
    /// One has ended, and another was never made, or was removed.
    Incomplete,
}

/// Canaries of one name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct CanaryPair<'a> {
    pub(super) name: &'a str,
    /// When the first of them was made, in milliseconds since 1970.
    pub(super) made_ms: u64,
    pub(super) result: PairResult,
}

impl<'a> CanaryPair<'a> {
    /// The pairs among canaries of one node and environment; each consists of `roles`, and other canaries do not count.
    pub(super) fn of(pods: impl Iterator<Item = &'a CanaryPod>, roles: &[Role]) -> Vec<Self> {
        let mut pairs: BTreeMap<&str, Vec<&CanaryPod>> = BTreeMap::new();
        for pod in pods.filter(|pod| roles.contains(&pod.role)) {
            pairs.entry(&pod.pair).or_default().push(pod);
        }
        let pair = |(name, pods): (&'a str, Vec<&CanaryPod>)| {
            let made_ms = pods.iter().map(|pod| pod.made_ms).min().unwrap_or_default();
            Self { name, made_ms, result: result(&pods, roles) }
        };
        pairs.into_iter().map(pair).collect()
    }

    /// When it ended; if it did not, when it was made.
    pub(super) const fn ended_ms(&self) -> u64 {
        match self.result {
            PairResult::Waiting { .. } | PairResult::Incomplete => self.made_ms,
            PairResult::Clear { at_ms } | PairResult::Found { at_ms, .. } | PairResult::Broken { at_ms, .. } => at_ms,
        }
    }
}

fn result(pods: &[&CanaryPod], roles: &[Role]) -> PairResult {
    // What one of them sees, or breaks one of them, is known before the other has finished.
    for pod in pods {
        if let CanaryResult::SawDevices { at_ms, devices } = &pod.result {
            return PairResult::Found { at_ms: *at_ms, finding: Finding::Devices(devices.clone()) };
        }
    }
    for pod in pods {
        if let CanaryResult::Broken { at_ms, reason } = &pod.result {
            return PairResult::Broken { at_ms: *at_ms, reason: reason.clone() };
        }
    }
    let missing: Vec<Role> = roles.iter().copied().filter(|role| pods.iter().all(|pod| pod.role != *role)).collect();
    let reasons = || {
        pods.iter().filter_map(|pod| match &pod.result {
            CanaryResult::Waiting(reason) => Some(reason.clone()),
            _ => None,
        })
    };
    if reasons().next().is_some() {
        return PairResult::Waiting { reason: reasons().flatten().next(), missing };
    }
    if !missing.is_empty() {
        return PairResult::Incomplete;
    }
    let tried = |role: Role| pods.iter().find(|pod| pod.role == role).and_then(|pod| Tried::of(pod));
    match (tried(Role::Restricted), tried(Role::Control)) {
        (Some(restricted), Some(control)) => verdict(&restricted, &control),
        // Nobody asks whether policies are enforced.
        (Some(alone), None) | (None, Some(alone)) => PairResult::Clear { at_ms: alone.at_ms },
        (None, None) => PairResult::Incomplete,
    }
}

struct Tried {
    began_ms: u64,
    at_ms: u64,
    connects: Connects,
}

impl Tried {
    fn of(pod: &CanaryPod) -> Option<Self> {
        match pod.result {
            CanaryResult::Tried { began_ms, at_ms, connects } => Some(Self { began_ms, at_ms, connects }),
            _ => None,
        }
    }
}

fn verdict(restricted: &Tried, control: &Tried) -> PairResult {
    let at_ms = restricted.at_ms.max(control.at_ms);
    let broken = |reason: &str| PairResult::Broken { at_ms, reason: reason.to_owned() };
    if restricted.connects != Connects::Never {
        return PairResult::Found { at_ms, finding: Finding::OpenEgress };
    }
    if control.connects != Connects::Always {
        return broken(
            "its control canary does not reach the API server either, so nothing shows that the CNI enforces \
             NetworkPolicies; let pods with the label comity.dev/canary: control in namespace comity-canary reach it",
        );
    }
    if restricted.began_ms.abs_diff(control.began_ms) > APART_MS {
        return broken("its two canaries did not run at the same time");
    }
    PairResult::Clear { at_ms }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BOTH: [Role; 2] = [Role::Control, Role::Restricted];

    fn pod(role: Role, result: CanaryResult) -> CanaryPod {
        let (uid, name) = (role.as_str().to_owned(), format!("x-{}", role.as_str()));
        let (pair, node, environment) = ("x".to_owned(), "a".to_owned(), "boot".to_owned());
        CanaryPod { uid, name, pair, role, node, environment, made_ms: 7, result }
    }

    fn tried(began_ms: u64, connects: Connects) -> CanaryResult {
        CanaryResult::Tried { began_ms, at_ms: began_ms + 20_000, connects }
    }

    fn both(control: CanaryResult, restricted: CanaryResult) -> PairResult {
        result_of(&[pod(Role::Control, control), pod(Role::Restricted, restricted)], &BOTH)
    }

    fn result_of(pods: &[CanaryPod], roles: &[Role]) -> PairResult {
        let pairs = CanaryPair::of(pods.iter(), roles);
        let [pair] = pairs.as_slice() else { panic!("one pair, not {pairs:?}") };
        assert_eq!((pair.name, pair.made_ms), ("x", 7));
        pair.result.clone()
    }

    #[test]
    fn unenforced_network_policies_are_found() {
        let at_ms = 20_000;
        let open = PairResult::Found { at_ms, finding: Finding::OpenEgress };
        for restricted in [Connects::Always, Connects::Sometimes] {
            for control in [Connects::Always, Connects::Sometimes, Connects::Never] {
                assert_eq!(both(tried(0, control), tried(0, restricted)), open, "{restricted:?} {control:?}");
            }
        }
        assert_eq!(both(tried(0, Connects::Always), tried(0, Connects::Never)), PairResult::Clear { at_ms });
    }

    /// Without a network nothing connects, and nothing is proved.
    #[test]
    fn a_network_that_is_down_proves_nothing() {
        for control in [Connects::Sometimes, Connects::Never] {
            let PairResult::Broken { reason, .. } = both(tried(0, control), tried(0, Connects::Never)) else {
                panic!("{control:?} proves nothing")
            };
            assert!(reason.contains("does not reach the API server either"), "{reason}");
        }
        let together = |apart| both(tried(0, Connects::Always), tried(apart, Connects::Never));
        assert_eq!(together(APART_MS), PairResult::Clear { at_ms: 20_000 + APART_MS });
        let PairResult::Broken { reason, .. } = together(APART_MS + 1) else { panic!("they ran one after the other") };
        assert_eq!(reason, "its two canaries did not run at the same time");
    }

    #[test]
    fn a_canary_without_its_control_proves_nothing_where_policies_are_required() {
        let restricted = [pod(Role::Restricted, tried(0, Connects::Never))];
        assert_eq!(result_of(&restricted, &BOTH), PairResult::Incomplete);
        let control = [pod(Role::Control, tried(0, Connects::Always))];
        assert_eq!(result_of(&control, &BOTH), PairResult::Incomplete);
        let made_first = [pod(Role::Control, CanaryResult::Waiting(None))];
        let waits = PairResult::Waiting { reason: None, missing: vec![Role::Restricted] };
        assert_eq!(result_of(&made_first, &BOTH), waits);
    }

    #[test]
    fn where_policies_are_not_enforced_one_canary_is_enough() {
        for connects in [Connects::Always, Connects::Sometimes, Connects::Never] {
            let restricted = [pod(Role::Restricted, tried(0, connects))];
            assert_eq!(result_of(&restricted, &[Role::Restricted]), PairResult::Clear { at_ms: 20_000 });
        }
    }

    #[test]
    fn what_one_canary_shows_is_known_while_the_other_runs() {
        let running = || CanaryResult::Waiting(Some("ContainerCreating".to_owned()));
        let devices = "/dev/nvidia0".to_owned();
        let saw = CanaryResult::SawDevices { at_ms: 1, devices: devices.clone() };
        let found = PairResult::Found { at_ms: 1, finding: Finding::Devices(devices) };
        assert_eq!(both(running(), saw.clone()), found);
        assert_eq!(both(saw, tried(0, Connects::Never)), found);
        let reason = "evicted".to_owned();
        let broke = CanaryResult::Broken { at_ms: 1, reason: reason.clone() };
        assert_eq!(both(running(), broke), PairResult::Broken { at_ms: 1, reason });
        let waits = PairResult::Waiting { reason: Some("ContainerCreating".to_owned()), missing: Vec::new() };
        assert_eq!(both(tried(0, Connects::Always), running()), waits);
    }
}
