//! Chooses claims for a pod that asks for a number of devices.

use std::collections::{BTreeMap, BTreeSet};

/// A claim of one device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeClaim {
    /// Name, as in "gpu-0".
    pub name: String,
    /// Node of its device.
    pub node: String,
}

/// Names of `count` claims that no other pod uses. A pod runs on one node, so all are of one node: of those with enough
/// free claims, the one with the fewest. `None` if no node has enough.
pub fn choose_claims(claims: &[NodeClaim], in_use: &BTreeSet<String>, count: usize) -> Option<Vec<String>> {
    let mut free: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for claim in claims.iter().filter(|claim| !in_use.contains(&claim.name)) {
        free.entry(&claim.node).or_default().push(&claim.name);
    }
    let mut names = free.into_values().filter(|names| names.len() >= count).min_by_key(Vec::len)?;
    // Shorter names have smaller numbers.
    names.sort_by_key(|name| (name.len(), *name));
    Some(names.into_iter().take(count).map(str::to_owned).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chosen(in_use: &[&str], count: usize) -> Option<Vec<String>> {
        let claim = |(at, node): (usize, &&str)| NodeClaim { name: format!("gpu-{at}"), node: (*node).to_owned() };
        let claims: Vec<NodeClaim> =
            ["a", "a", "a", "b", "b", "b", "b", "b", "b", "b", "b"].iter().enumerate().map(claim).collect();
        choose_claims(&claims, &in_use.iter().map(|name| (*name).to_owned()).collect(), count)
    }

    #[test]
    fn a_pod_gets_claims_of_one_node_and_leaves_large_nodes_free() {
        assert_eq!(chosen(&[], 2).unwrap_or_default(), ["gpu-0", "gpu-1"]);
        assert_eq!(chosen(&["gpu-0", "gpu-1"], 2).unwrap_or_default(), ["gpu-3", "gpu-4"]);
        assert_eq!(chosen(&["gpu-3"], 7).unwrap_or_default().last().map(String::as_str), Some("gpu-10"));
        assert_eq!(chosen(&[], 9), None, "nine free ones, but on two nodes");
    }
}
