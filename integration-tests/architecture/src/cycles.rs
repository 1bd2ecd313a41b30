//! Strongly connected components (Tarjan, SIAM Journal on Computing 1(2), 1972).

use std::collections::{BTreeMap, BTreeSet};

/// Components of more than one node, each sorted.
pub(crate) fn cycles<N: Ord + Clone>(edges: &BTreeMap<N, BTreeSet<N>>) -> Vec<Vec<N>> {
    let mut search = Search { edges, index: BTreeMap::new(), stack: Vec::new(), found: Vec::new() };
    for node in edges.keys() {
        if !search.index.contains_key(node) {
            search.visit(node);
        }
    }
    search.found
}

struct Search<'a, N> {
    edges: &'a BTreeMap<N, BTreeSet<N>>,
    /// The order in which nodes were visited.
    index: BTreeMap<&'a N, usize>,
    /// Visited nodes that belong to no component yet.
    stack: Vec<&'a N>,
    found: Vec<Vec<N>>,
}

impl<'a, N: Ord + Clone> Search<'a, N> {
    fn visit(&mut self, node: &'a N) -> usize {
        let index = self.index.len();
        self.index.insert(node, index);
        self.stack.push(node);
        let mut low = index;
        for next in self.edges.get(node).into_iter().flatten() {
            if !self.index.contains_key(next) {
                low = low.min(self.visit(next));
            } else if self.stack.contains(&next) {
                low = low.min(self.index[next]);
            }
        }
        if low == index {
            let at = self.stack.iter().position(|other| *other == node).unwrap_or_default();
            let mut component: Vec<N> = self.stack.split_off(at).into_iter().cloned().collect();
            if component.len() > 1 {
                component.sort();
                self.found.push(component);
            }
        }
        low
    }
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};

    use super::cycles;

    #[test]
    fn circles_are_found_and_chains_are_not() {
        let edges = [("a", "b"), ("b", "c"), ("c", "b"), ("c", "d"), ("e", "e"), ("x", "y"), ("y", "z"), ("z", "x")];
        let mut graph: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
        edges.iter().for_each(|(from, to)| _ = graph.entry(*from).or_default().insert(*to));
        let found: BTreeSet<Vec<&str>> = cycles(&graph).into_iter().collect();
        assert_eq!(found, BTreeSet::from([vec!["b", "c"], vec!["x", "y", "z"]]));
    }
}
