//! Computes what a donor needs back for local work.
//!
//! Which device a local pod holds is seldom known, and agents count local use from the last device of a node down. So
//! interchangeable devices of a node form one pool. A pool is short where local use and leases together exceed its
//! capacity. CPU and main memory trigger no reclaims: running local pods have theirs, and a tenth of a core does not
//! justify ending a lease of GPUs.

use std::collections::{BTreeMap, BTreeSet};

use comity_types::{ClusterId, LeaseId, NodeId};

use crate::feasibility::reclaim_checks::pool::share_pool;
use crate::feasibility::reclaim_checks::preemption::{beneficiary_of, departing_leases};
use crate::model::inventory::{Device, Node};
use crate::model::limits::WHOLE_MILLI;
use crate::state::State;

/// Devices of one node that local work cannot tell apart.
struct Pool {
    /// Capacity of all its devices, less local use.
    left_milli: u64,
    /// The part of that on unhealthy devices.
    sick_milli: u64,
    schedulable: bool,
}

/// The capacity that local work leaves of a donor's devices, and the leases that hold it.
pub(crate) struct Need {
    pools: Vec<Pool>,
    /// Thousandths held by each lease, by pool.
    held: BTreeMap<LeaseId, Vec<(usize, u64)>>,
    reserve_milli: u64,
}

impl Need {
    /// Reads the donor's offer and leases; `None` while it offers nothing.
    pub(crate) fn of(state: &State, donor: &ClusterId) -> Option<Self> {
        let offer = state.clusters.get(donor)?.offer.as_ref()?;
        let terms = state.policy.as_ref().and_then(|record| record.bundle.clusters.get(donor.as_str()));
        let mut need = Self {
            pools: Vec::new(),
            held: BTreeMap::new(),
            reserve_milli: terms.map_or(0, |terms| terms.spec.local_reserve_gpus_milli),
        };
        // Offers are sorted by name, so the map is built from sorted input.
        let pools_of: BTreeMap<&NodeId, Vec<usize>> =
            offer.nodes.iter().map(|(id, node)| (id, need.add_node(node))).collect();
        let lent = state.leases_of(donor).filter(|(_, lease)| lease.placement.donor == *donor && lease.occupies());
        for (id, lease) in lent {
            let mut held: BTreeMap<usize, u64> = BTreeMap::new();
            for (node, part) in &lease.placement.nodes {
                // Local need does not concern nodes that are gone.
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

    /// Adds a node's pools; returns the pool of each of its devices.
    fn add_node(&mut self, node: &Node) -> Vec<usize> {
        let first = self.pools.len();
        let mut like: Vec<&Device> = Vec::new();
        let mut pools = Vec::with_capacity(node.devices.len());
        for device in &node.devices {
            let found = like.iter().position(|other| share_pool(other, device)).unwrap_or_else(|| {
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

    /// Thousandths of GPUs lent too much once `gone` are gone: the excess of leases and local use over the capacity of
    /// each pool, plus the missing part of the local reserve as far as leases can supply it.
    pub(crate) fn shortage_milli(&self, gone: &BTreeSet<LeaseId>) -> u64 {
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

    pub(crate) fn holds_offered_devices(&self, id: LeaseId) -> bool {
        self.held.get(&id).is_some_and(|held| !held.is_empty())
    }
}

/// Leases whose capacity local work gets once they are gone: departing leases that do not make room for a waiting
/// request.
pub(crate) fn freed_for_local_work(state: &State, donor: &ClusterId) -> BTreeSet<LeaseId> {
    let departing = departing_leases(state, donor);
    departing.filter(|(_, lease)| beneficiary_of(state, lease).is_none()).map(|(id, _)| id).collect()
}
