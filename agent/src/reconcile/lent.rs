//! The leases that this donor has in force, for the observer of its cluster.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use comity_agent_kubernetes::gpu_resource::LEASE_RESOURCE_PREFIX;
use comity_agent_kubernetes::pod_request::{CPU, MEMORY};
use comity_agent_liqo::donor::slice_user;
use comity_agent_model::desired_state::DesiredState;
use comity_agent_model::lease::Lease;
use comity_agent_model::lease::placement::Placement;
use comity_agent_model::lent::{LentLease, NodeMark, PodsOf};
use comity_agent_state::record::{DonorRecord, Records};
use comity_types::{Delivery, LeaseId};

/// How long a lease counts after it was removed. Its pods are gone by then, but a watch may show that later.
const LENT_AFTER_REMOVAL: Duration = Duration::from_secs(10);

/// The leases of earlier times that still count.
#[derive(Debug, Default)]
pub(crate) struct LentBooks {
    /// Each with the monotonic time of its last sight.
    leases: BTreeMap<LeaseId, (LentLease, Duration)>,
}

impl LentBooks {
    /// The leases that count at a time of the monotonic clock; `None` while they are unknown.
    pub(crate) fn at(
        &mut self,
        cluster: &str,
        desired: &DesiredState,
        records: &Records,
        now: Duration,
    ) -> Option<Arc<BTreeMap<LeaseId, LentLease>>> {
        let has_records = records.donors.values().any(|record| !record.removed);
        if desired.encoded.is_empty() && has_records {
            // The state directory has records and no desired state: placements come with the first one.
            return None;
        }
        for (lease, _) in self.leases.values_mut() {
            lease.is_wanted = false;
        }
        for (id, lease) in in_force(cluster, desired, records) {
            self.leases.insert(id, (lease, now));
        }
        self.leases.retain(|_, (_, seen)| now.saturating_sub(*seen) <= LENT_AFTER_REMOVAL);
        Some(Arc::new(self.leases.iter().map(|(id, (lease, _))| (*id, lease.clone())).collect()))
    }
}

/// Leases that are admitted here and not removed yet.
fn in_force<'a>(
    cluster: &'a str,
    desired: &'a DesiredState,
    records: &'a Records,
) -> impl Iterator<Item = (LeaseId, LentLease)> + 'a {
    let lent = move |lease: &Lease| {
        let record = records.donors.get(&lease.id).filter(|record| !record.removed)?;
        let placement = lease.placement.as_ref().filter(|placement| placement.donor.as_str() == cluster)?;
        Some((lease.id, LentLease { is_wanted: lease.is_wanted(), ..lent_lease(lease.id, placement, record) }))
    };
    desired.leases.iter().filter_map(lent)
}

fn lent_lease(id: LeaseId, placement: &Placement, record: &DonorRecord) -> LentLease {
    let (pods, mark) = match (record.delivery, &record.grant) {
        (Delivery::Namespace, _) => (PodsOf::Namespace, NodeMark::Resource),
        (Delivery::VirtualNode, None) => (PodsOf::LiqoUser(String::new()), NodeMark::Nothing),
        (Delivery::VirtualNode, Some(grant)) => {
            let is_labelled = grant.node_selector.contains_key(&format!("{LEASE_RESOURCE_PREFIX}{id}"));
            let user = slice_user(&record.slice(), &grant.origin_liqo_id);
            (PodsOf::LiqoUser(user), if is_labelled { NodeMark::Label } else { NodeMark::Nothing })
        }
    };
    let mut nodes: BTreeMap<String, BTreeMap<String, u64>> = BTreeMap::new();
    for (node, units) in placement.units_by_node() {
        let amounts = nodes.entry(node.node.clone()).or_default();
        for functions in &node.functions {
            amounts.insert(functions.resource.clone(), functions.count.into());
        }
        amounts.extend([
            (CPU.to_owned(), node.cpu_milli),
            (MEMORY.to_owned(), node.memory_mib.saturating_mul(1 << 20)),
            (placement.resource_name.clone(), units),
        ]);
    }
    LentLease { pods, mark, resource: placement.resource_name.clone(), is_wanted: false, nodes }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use comity_agent_liqo::donor::Grant;
    use comity_agent_model::lease::placement::{DeviceShare, NodePlacement};
    use comity_types::{LeaseState, PeeringId, RequestId};

    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn lease(id: u64, donor: &str) -> Lease {
        let node = |name: &str, devices: u32| NodePlacement {
            node: name.to_owned(),
            devices: (0..devices).map(|device| DeviceShare { device, milli: 1_000 }).collect(),
            cpu_milli: 4_000,
            memory_mib: 1_024,
            functions: Vec::new(),
        };
        let placement = Placement {
            nodes: vec![node("a", 2), node("b", 1)],
            resource_name: "nvidia.com/gpu".to_owned(),
            resource_count: 3,
            ..Placement::new(donor.parse().unwrap())
        };
        let lease = Lease::new(LeaseId(id), RequestId(id), "origin".parse().unwrap(), PeeringId(1));
        Lease { placement: Some(placement), state: Some(LeaseState::Active), ..lease }
    }

    fn desired(leases: Vec<Lease>) -> DesiredState {
        DesiredState { leases, encoded: vec![1], ..DesiredState::default() }
    }

    fn records(all: Vec<DonorRecord>) -> Records {
        let donors = all.into_iter().map(|record| (record.lease, Arc::new(record))).collect();
        Records { donors, ..Records::default() }
    }

    #[test]
    fn admitted_leases_of_this_donor_count_until_shortly_after_their_removal() {
        let all = desired(vec![lease(1, "here"), lease(2, "there"), lease(3, "here")]);
        let admitted = DonorRecord::new(LeaseId(1), 1, Delivery::Namespace);
        let ids = |books: &mut LentBooks, desired: &DesiredState, records: &Records, now| {
            books.at("here", desired, records, now).unwrap().keys().copied().collect::<Vec<_>>()
        };
        let mut books = LentBooks::default();
        let held = records(vec![admitted.clone(), DonorRecord::new(LeaseId(2), 2, Delivery::Namespace)]);
        assert_eq!(ids(&mut books, &all, &held, SECOND), [LeaseId(1)], "lease-3 is not admitted");
        let removed = records(vec![DonorRecord { removed: true, ..admitted }]);
        let ended = books.at("here", &all, &removed, SECOND * 5).unwrap();
        assert_eq!((ended.len(), ended[&LeaseId(1)].is_wanted), (1, false));
        assert!(ids(&mut books, &all, &removed, SECOND * 12).is_empty());
        let lent = LentBooks::default().at("here", &all, &held, SECOND).unwrap();
        let gpus = |node: &str| lent[&LeaseId(1)].nodes[node]["nvidia.com/gpu"];
        assert_eq!((gpus("a"), gpus("b"), lent[&LeaseId(1)].nodes["a"]["memory"]), (2, 1, 1 << 30));
        assert!(lent[&LeaseId(1)].is_wanted);
    }

    #[test]
    fn records_without_a_desired_state_leave_the_leases_unknown() {
        let held = records(vec![DonorRecord::new(LeaseId(1), 1, Delivery::Namespace)]);
        let mut books = LentBooks::default();
        assert_eq!(books.at("here", &DesiredState::default(), &held, SECOND), None);
        assert!(
            books.at("here", &DesiredState::default(), &Records::default(), SECOND).is_some_and(|all| all.is_empty())
        );
    }

    #[test]
    fn pods_of_a_virtual_node_have_the_user_of_its_slice() {
        let grant = |label: &str| Grant {
            origin_liqo_id: "origin".to_owned(),
            node_selector: BTreeMap::from([(label.to_owned(), "true".to_owned())]),
            ..Grant::default()
        };
        let record = |grant| DonorRecord {
            slice: Some("lease-7".to_owned()),
            grant,
            ..DonorRecord::new(LeaseId(8), 1, Delivery::VirtualNode)
        };
        let of = |grant| {
            let (all, held) = (desired(vec![lease(8, "here")]), records(vec![record(grant)]));
            let lent = LentBooks::default().at("here", &all, &held, SECOND).unwrap();
            (lent[&LeaseId(8)].pods.clone(), lent[&LeaseId(8)].mark)
        };
        let user = PodsOf::LiqoUser("lease-7-181fdd46fc4a".to_owned());
        assert_eq!(of(Some(grant("lease.comity.dev/lease-8"))), (user.clone(), NodeMark::Label));
        assert_eq!(of(Some(grant("kubernetes.io/hostname"))), (user, NodeMark::Nothing));
        assert_eq!(of(None).1, NodeMark::Nothing);
    }
}
