//! Free GPUs of this cluster, while a plan assigns them.

use std::collections::BTreeMap;

use crate::burst::facts::demand::Shape;

/// Free GPUs by node and resource.
#[derive(Clone, Debug)]
pub(super) struct Local {
    nodes: Vec<BTreeMap<String, u64>>,
}

impl Local {
    pub(super) fn new(nodes: Vec<BTreeMap<String, u64>>) -> Self {
        Self { nodes }
    }

    /// Takes a pod's GPUs from the node with the fewest that suffice; false if there is none.
    pub(super) fn take(&mut self, shape: &Shape) -> bool {
        let wanted = u64::from(shape.gpus);
        let room = |node: &BTreeMap<String, u64>| node.get(&shape.resource).copied().filter(|free| *free >= wanted);
        let best = self.nodes.iter_mut().filter(|node| room(node).is_some()).min_by_key(|node| room(node));
        let Some(free) = best.and_then(|node| node.get_mut(&shape.resource)) else { return false };
        *free -= wanted;
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pod_needs_its_gpus_on_one_node_and_fills_the_fullest() {
        let node = |free: u64| BTreeMap::from([("nvidia.com/gpu".to_owned(), free)]);
        let shape = |gpus| Shape { gpus, ..crate::burst::fixtures::pod("p").facts.shape.expect("it has GPUs") };
        let mut local = Local::new(vec![node(4), node(2)]);
        assert!(!local.take(&shape(5)));
        assert!(local.take(&shape(2)) && local.take(&shape(4)));
        assert!(!local.take(&shape(1)));
    }
}
