//! The positions of a node's devices in its offer.
//!
//! The broker knows devices by their position. A device that a lease holds keeps its position, which its claim records,
//! as long as the claim exists, even if the driver no longer publishes it. All others fill the remaining positions in the
//! order of their names. So positions depend only on the objects in the cluster, and an agent that restarts finds the
//! same ones.

use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet};

use super::MAX_NODE_DEVICES;

/// Names by position. `None` is an empty position before a held device. `held` are positions that leases hold; devices
/// that are held and not `published` keep them.
pub fn order(published: &BTreeSet<String>, held: &BTreeMap<u32, String>) -> Vec<Option<String>> {
    let mut places: BTreeMap<usize, String> = BTreeMap::new();
    let mut placed: BTreeSet<&str> = BTreeSet::new();
    for (at, name) in held {
        let at = usize::try_from(*at).unwrap_or(usize::MAX);
        if at < MAX_NODE_DEVICES && placed.insert(name) {
            places.insert(at, name.clone());
        }
    }
    let mut others: Vec<&String> = published.iter().filter(|name| !placed.contains(name.as_str())).collect();
    others.sort_by(|one, other| by_number(one, other));
    let mut free = (0..MAX_NODE_DEVICES).filter(|at| !places.contains_key(at)).collect::<Vec<_>>().into_iter();
    for name in others {
        let Some(at) = free.next() else { break };
        places.insert(at, name.clone());
    }
    let count = places.keys().next_back().map_or(0, |last| last + 1);
    (0..count).map(|at| places.remove(&at)).collect()
}

/// Compares runs of digits as numbers: "gpu-2" comes before "gpu-10".
fn by_number(one: &str, other: &str) -> Ordering {
    let chunks = |text: &str| -> Vec<(u64, String)> {
        let mut chunks: Vec<(u64, String)> = Vec::new();
        let mut rest = text;
        while !rest.is_empty() {
            let words = rest.find(|letter: char| letter.is_ascii_digit()).unwrap_or(rest.len());
            let (word, tail) = rest.split_at(words);
            let digits = tail.find(|letter: char| !letter.is_ascii_digit()).unwrap_or(tail.len());
            let (number, tail) = tail.split_at(digits);
            chunks.push((0, word.to_owned()));
            chunks.push((number.parse().unwrap_or(u64::MAX), String::new()));
            rest = tail;
        }
        chunks
    };
    chunks(one).cmp(&chunks(other)).then_with(|| one.cmp(other))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn positions(published: &[&str], held: &[(u32, &str)]) -> Vec<String> {
        let published = published.iter().map(|name| (*name).to_owned()).collect();
        let held = held.iter().map(|(at, name)| (*at, (*name).to_owned())).collect();
        order(&published, &held).into_iter().map(|name| name.unwrap_or_default()).collect()
    }

    #[test]
    fn devices_are_in_the_order_of_their_numbers() {
        assert_eq!(positions(&["gpu-10", "gpu-2", "gpu-0"], &[]), ["gpu-0", "gpu-2", "gpu-10"]);
        assert_eq!(
            positions(&["gpu-1-mig-3g40gb-9-4", "gpu-1-mig-3g40gb-9-0", "gpu-0"], &[]),
            ["gpu-0", "gpu-1-mig-3g40gb-9-0", "gpu-1-mig-3g40gb-9-4"]
        );
    }

    #[test]
    fn a_device_that_is_gone_moves_no_device_that_a_lease_holds() {
        assert_eq!(positions(&["gpu-1", "gpu-2", "gpu-3"], &[(2, "gpu-2")]), ["gpu-1", "gpu-3", "gpu-2"]);
        assert_eq!(positions(&["gpu-3"], &[(3, "gpu-3")]), ["", "", "", "gpu-3"]);
        // The held one is gone itself: nothing takes its position.
        assert_eq!(positions(&["gpu-0", "gpu-2"], &[(1, "gpu-1")]), ["gpu-0", "gpu-1", "gpu-2"]);
        assert_eq!(positions(&["gpu-0"], &[(0, "gpu-0"), (1, "gpu-0"), (500, "gpu-1")]), ["gpu-0"]);
    }
}
