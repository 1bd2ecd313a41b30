//! What a donor needs back for local work.
//!
//! Which device a pod of local work holds is seldom known, and agents count local use from the last device of a node
//! down. So devices that are alike on one node are one pool: it is short where local use and leases together are more
//! than it has. CPU and main memory call nothing back: local pods that run have theirs, and a lease of GPUs is not
//! ended for a tenth of a core.

use std::collections::{BTreeMap, BTreeSet};

use crate::feasibility::reclaim_checks::pool::pooled;
use crate::model::id::{ClusterId, LeaseId, NodeId};
use crate::model::inventory::{Device, Node};
use crate::model::lease::Lease;
use crate::model::limits::WHOLE_MILLI;
use crate::state::State;

/// Devices of one node that local work cannot tell apart.
struct Pool {
    /// What all its devices have, less what local work takes.
    left_milli: u64,
    /// What of that lies on devices that are not healthy.
    sick_milli: u64,
    schedulable: bool,
}

/// A donor's devices as local work leaves them, and who holds how much of them.
pub(crate) struct Need {
    pools: Vec<Pool>,
    /// Thousandths by pool, of each lease that holds some.
    held: BTreeMap<LeaseId, Vec<(usize, u64)>>,
    reserve_milli: u64,
}

impl Need {
    /// As the donor's offer and the leases on it stand; `None` while it offers nothing.
    pub(crate) fn of(state: &State, donor: &ClusterId) -> Option<Self> {
        let offer = state.clusters.get(donor)?.offer.as_ref()?;
        let terms = state.policy.as_ref().and_then(|record| record.bundle.clusters.get(donor.as_str()));
        let mut need = Self {
            pools: Vec::new(),
            held: BTreeMap::new(),
            reserve_milli: terms.map_or(0, |terms| terms.spec.local_reserve_gpus_milli),
        };
        // In the order of the offer, which is that of names: so the table is built without a comparison for each node.
        let pools_of: BTreeMap<&NodeId, Vec<usize>> =
            offer.nodes.iter().map(|(id, node)| (id, need.add_node(node))).collect();
        let lent = state.leases_of(donor).filter(|(_, lease)| lease.placement.donor == *donor && lease.occupies());
        for (id, lease) in lent {
            let mut held: BTreeMap<usize, u64> = BTreeMap::new();
            for (node, part) in &lease.placement.nodes {
                // What lies on a node that is gone is no matter of local need.
                let Some(pools) = pools_of.get(node) else { continue };
                for (index, share) in &part.devices {
                    let at = usize::try_from(*index).unwrap_or(usize::MAX);
                    let Some(pool) = pools.get(at) else { continue };
                    *held.entry(*pool).or_default() += u64::from(share.milli);
                }
            }
            need.held.insert(id, held.into_iter().collect());
        }
        Some(need)
    }

    /// Adds a node's pools; the pool of each of its devices.
    fn add_node(&mut self, node: &Node) -> Vec<usize> {
        let first = self.pools.len();
        let mut like: Vec<&Device> = Vec::new();
        let mut pools = Vec::with_capacity(node.devices.len());
        for device in &node.devices {
            let found = like.iter().position(|other| pooled(other, device)).unwrap_or_else(|| {
                like.push(device);
                self.pools.push(Pool { left_milli: 0, sick_milli: 0, schedulable: node.schedulable });
                like.len() - 1
            });
            pools.push(first + found);
            let left = u64::from(WHOLE_MILLI.saturating_sub(device.local_use_milli));
            let pool = &mut self.pools[first + found];
            pool.left_milli += left;
            pool.sick_milli += if device.healthy { 0 } else { left };
        }
        pools
    }

    /// By how many thousandths of GPUs too much is lent once `gone` are gone: what local work takes of each pool that
    /// leases hold, and what lacks of the reserve as far as leases could give it back.
    pub(crate) fn short_milli(&self, gone: &BTreeSet<LeaseId>) -> u64 {
        let mut lent = vec![0_u64; self.pools.len()];
        for (_, held) in self.held.iter().filter(|(id, _)| !gone.contains(id)) {
            for (pool, milli) in held {
                lent[*pool] += milli;
            }
        }
        let (mut short, mut free, mut may_free) = (0_u64, 0_u64, 0_u64);
        for (pool, lent) in self.pools.iter().zip(lent) {
            short += lent.saturating_sub(pool.left_milli);
            if pool.schedulable {
                free += pool.left_milli.saturating_sub(lent.max(pool.sick_milli));
                may_free += lent;
            }
        }
        short + self.reserve_milli.saturating_sub(free).min(may_free)
    }

    /// Whether a lease holds something of the donor's offer.
    pub(crate) fn concerns(&self, id: LeaseId) -> bool {
        self.held.get(&id).is_some_and(|held| !held.is_empty())
    }
}

/// Leases whose room local work gets once they are gone: those that end or are being reclaimed, but for what another
/// request waits for.
pub(crate) fn gone_for_local_work(state: &State, donor: &ClusterId) -> BTreeSet<LeaseId> {
    let goes = |lease: &Lease| crate::feasibility::reclaim_checks::preemption::for_whom(state, lease).is_none();
    crate::feasibility::reclaim_checks::preemption::going(state, donor)
        .filter(|(_, lease)| goes(lease))
        .map(|(id, _)| id)
        .collect()
}
