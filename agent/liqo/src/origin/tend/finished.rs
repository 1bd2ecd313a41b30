//! Chooses finished pods whose shadows on the donor are deleted. Pure.
//!
//! A finished pod's shadow keeps its logs readable, but uses its share of the lease. It is deleted when the share is
//! needed, oldest first, or after a time limit.

use std::collections::BTreeMap;

use comity_agent_kubernetes::pod_request::Amounts;

use super::nodes::Nodes;

/// The number of pods counts like a resource.
pub(super) const PODS: &str = "pods";

/// The stored fields of a pod that runs, or ran, on a virtual node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct PodFacts {
    pub(super) namespace: String,
    pub(super) name: String,
    pub(super) uid: String,
    pub(super) node: String,
    /// The part of the lease that it uses.
    pub(super) requests: Amounts,
    /// "Succeeded" or "Failed"; empty while it may still run.
    pub(super) outcome: String,
    /// When it finished, in seconds since 1970.
    pub(super) finished: i64,
}

/// The finished pods whose shadows have to go now, of those that still have one.
pub(super) fn due<'a>(
    pods: impl Iterator<Item = &'a PodFacts>,
    nodes: &Nodes,
    now: i64,
    keep_seconds: i64,
    is_released: impl Fn(&str) -> bool,
) -> Vec<PodFacts> {
    let mut by_node: BTreeMap<&str, Vec<&PodFacts>> = BTreeMap::new();
    for pod in pods.filter(|pod| !is_released(&pod.uid)) {
        by_node.entry(&pod.node).or_default().push(pod);
    }
    let mut due = Vec::new();
    for (node, pods) in by_node {
        // Without the donor nothing can be deleted there.
        let Some(node) = nodes.get(node).filter(|node| node.ready == "True") else { continue };
        let mut taken = Amounts::new();
        pods.iter().for_each(|pod| add(&mut taken, &pod.requests));
        let mut finished: Vec<&PodFacts> = pods.into_iter().filter(|pod| !pod.outcome.is_empty()).collect();
        finished.sort_by_key(|pod| (pod.finished, pod.uid.clone()));
        for pod in finished {
            let over: Vec<&String> = taken
                .iter()
                .filter(|(name, taken)| node.allocatable.get(*name).is_some_and(|there| *taken > there))
                .map(|(name, _)| name)
                .collect();
            let helps = over.iter().any(|name| pod.requests.get(*name).is_some_and(|amount| *amount > 0));
            if helps || now.saturating_sub(pod.finished) >= keep_seconds {
                subtract(&mut taken, &pod.requests);
                due.push(pod.clone());
            }
        }
    }
    due
}

fn add(total: &mut Amounts, more: &Amounts) {
    for (name, amount) in more {
        let sum = total.entry(name.clone()).or_default();
        *sum = sum.saturating_add(*amount);
    }
}

fn subtract(total: &mut Amounts, less: &Amounts) {
    for (name, amount) in less {
        if let Some(sum) = total.get_mut(name) {
            *sum = sum.saturating_sub(*amount);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::nodes::NodeFacts;
    use super::*;

    fn nodes(ready: &str) -> Nodes {
        let facts = NodeFacts {
            name: "lease-7".into(),
            donor: "north".into(),
            ready: ready.into(),
            allocatable: [("nvidia.com/gpu".to_owned(), 2), (PODS.to_owned(), 3)].into(),
        };
        [("lease-7".to_owned(), facts)].into()
    }

    fn pod(name: &str, gpus: u64, finished: Option<i64>) -> PodFacts {
        PodFacts {
            namespace: "team-a".into(),
            name: name.into(),
            uid: name.into(),
            node: "lease-7".into(),
            requests: [("nvidia.com/gpu".to_owned(), gpus), (PODS.to_owned(), 1)].into(),
            outcome: finished.map(|_| "Succeeded".to_owned()).unwrap_or_default(),
            finished: finished.unwrap_or_default(),
        }
    }

    fn names(pods: &[PodFacts], nodes: &Nodes, now: i64, released: &[&str]) -> Vec<String> {
        let due = due(pods.iter(), nodes, now, 600, |uid| released.contains(&uid));
        due.into_iter().map(|pod| pod.name).collect()
    }

    #[test]
    fn logs_stay_while_there_is_room() {
        let pods = [pod("old", 1, Some(10)), pod("runs", 1, None)];
        assert!(names(&pods, &nodes("True"), 100, &[]).is_empty());
        assert_eq!(names(&pods, &nodes("True"), 610, &[]), ["old"]);
    }

    #[test]
    fn the_oldest_that_helps_makes_room() {
        let pods =
            [pod("newer", 1, Some(20)), pod("no-gpu", 0, Some(5)), pod("old", 1, Some(10)), pod("waits", 1, None)];
        // Three of two GPUs are in use, and four of three pods.
        assert_eq!(names(&pods, &nodes("True"), 100, &[]), ["no-gpu", "old"]);
        assert!(names(&pods, &nodes("True"), 100, &["old", "no-gpu"]).is_empty());
        let only_gpus = [pod("newer", 1, Some(20)), pod("old", 1, Some(10)), pod("waits", 1, None)];
        assert_eq!(names(&only_gpus, &nodes("True"), 100, &[]), ["old"]);
    }

    #[test]
    fn running_pods_and_donors_that_are_away_are_left_alone() {
        let pods = [pod("a", 2, None), pod("b", 2, None)];
        assert!(names(&pods, &nodes("True"), 10_000, &[]).is_empty());
        let pods = [pod("old", 1, Some(10))];
        assert!(names(&pods, &nodes("Unknown"), 10_000, &[]).is_empty());
        assert!(names(&pods, &Nodes::default(), 10_000, &[]).is_empty());
    }
}
