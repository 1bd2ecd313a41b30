//! Virtual functions of RDMA networks in a placement.

use std::collections::BTreeMap;

use comity_proto::v1;

/// Total virtual functions of RDMA networks in a placement, by resource name.
#[must_use]
pub fn functions(placement: &v1::Placement) -> BTreeMap<&str, u64> {
    let mut functions: BTreeMap<&str, u64> = BTreeMap::new();
    let taken = placement.nodes.iter().flat_map(|node| &node.rdma).filter(|rdma| !rdma.resource.is_empty());
    for rdma in taken {
        let count = functions.entry(&rdma.resource).or_default();
        *count = count.saturating_add(rdma.functions.into());
    }
    functions
}
