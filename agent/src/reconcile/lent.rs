//! The leases that this donor has in force, for the observer of its cluster. What they take is what the donor admitted:
//! a broker may say something else afterwards.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use comity_agent_kubernetes::gpu_resource::LEASE_RESOURCE_PREFIX;
use comity_agent_kubernetes::pod_request::{CPU, MEMORY};
use comity_agent_liqo::donor::slice_user;
use comity_agent_model::desired_state::DesiredState;
use comity_agent_model::lent::{LentLease, NodeMark, PodsOf};
use comity_agent_state::record::{AdmittedPart, DonorRecord, Records};
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
        desired: &DesiredState,
        records: &Records,
        now: Duration,
    ) -> Option<Arc<BTreeMap<LeaseId, LentLease>>> {
        let has_records = records.donors.values().any(|record| !record.removed);
        if desired.encoded.is_empty() && has_records {
            // The state directory has records and no desired state: which leases end comes with the first one.
            return None;
        }
        for (lease, _) in self.leases.values_mut() {
            lease.is_wanted = false;
        }
        for (id, lease) in in_force(desired, records) {
            self.leases.insert(id, (lease, now));
        }
        self.leases.retain(|_, (_, seen)| now.saturating_sub(*seen) <= LENT_AFTER_REMOVAL);
        Some(Arc::new(self.leases.iter().map(|(id, (lease, _))| (*id, lease.clone())).collect()))
    }
}

/// Leases that are admitted here and not removed yet.
fn in_force<'a>(desired: &'a DesiredState, records: &'a Records) -> impl Iterator<Item = (LeaseId, LentLease)> + 'a {
    let wanted: BTreeSet<LeaseId> =
        desired.leases.iter().filter(|lease| lease.is_wanted()).map(|lease| lease.id).collect();
    let in_force = records.donors.values().filter(|record| !record.removed);
    in_force.map(move |record| (record.lease, lent_lease(record, wanted.contains(&record.lease))))
}

fn lent_lease(record: &DonorRecord, is_wanted: bool) -> LentLease {
    let (pods, mark) = match (record.delivery, &record.grant) {
        (Delivery::Namespace, _) => (PodsOf::Namespace, NodeMark::Resource),
        (Delivery::VirtualNode, None) => (PodsOf::LiqoUser(String::new()), NodeMark::Nothing),
        (Delivery::VirtualNode, Some(grant)) => {
            let is_labelled = grant.node_selector.contains_key(&format!("{LEASE_RESOURCE_PREFIX}{}", record.lease));
            let user = slice_user(&record.slice(), &grant.origin_liqo_id);
            (PodsOf::LiqoUser(user), if is_labelled { NodeMark::Label } else { NodeMark::Nothing })
        }
    };
    let resource = record.capacity.resource_name.clone();
    let amounts = |part: &AdmittedPart| {
        let mut amounts: BTreeMap<String, u64> =
            part.functions.iter().map(|(resource, count)| (resource.clone(), u64::from(*count))).collect();
        amounts.extend([
            (CPU.to_owned(), part.cpu_milli),
            (MEMORY.to_owned(), part.memory_mib.saturating_mul(1 << 20)),
            (resource.clone(), part.units()),
        ]);
        amounts
    };
    let nodes = record.capacity.nodes.iter().map(|(node, part)| (node.clone(), amounts(part))).collect();
    LentLease { pods, mark, resource, is_wanted, nodes }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use comity_agent_liqo::donor::Grant;
    use comity_agent_model::lease::Lease;
    use comity_agent_model::lease::placement::{DeviceShare, NodePlacement, Placement};
    use comity_agent_state::record::{AdmittedCapacity, AdmittedShare};
    use comity_types::{LeaseState, PeeringId, RequestId};

    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    /// A lease as a broker says it.
    fn lease(id: u64) -> Lease {
        let lease = Lease::new(LeaseId(id), RequestId(id), "origin".parse().unwrap(), PeeringId(1));
        Lease { state: Some(LeaseState::Active), ..lease }
    }

    /// Two GPUs of node a, and one of node b.
    fn admitted(id: u64, delivery: Delivery) -> DonorRecord {
        let part = |devices: u32| AdmittedPart {
            devices: (0..devices)
                .map(|device| (device, AdmittedShare { milli: 1_000, units: 1, ..AdmittedShare::default() }))
                .collect(),
            cpu_milli: 4_000,
            memory_mib: 1_024,
            functions: BTreeMap::from([("nvidia.com/vf".to_owned(), devices)]),
        };
        let capacity = AdmittedCapacity {
            resource_name: "nvidia.com/gpu".to_owned(),
            resource_count: 3,
            mig_profile: String::new(),
            nodes: [("a".to_owned(), part(2)), ("b".to_owned(), part(1))].into(),
        };
        DonorRecord { capacity, ..DonorRecord::new(LeaseId(id), id, delivery) }
    }

    fn desired(leases: Vec<Lease>) -> DesiredState {
        DesiredState { leases, encoded: vec![1], ..DesiredState::default() }
    }

    fn records(all: Vec<DonorRecord>) -> Records {
        let donors = all.into_iter().map(|record| (record.lease, Arc::new(record))).collect();
        Records { donors, ..Records::default() }
    }

    #[test]
    fn admitted_leases_count_until_shortly_after_their_removal() {
        let all = desired(vec![lease(1), lease(3)]);
        let one = admitted(1, Delivery::Namespace);
        let ids = |books: &mut LentBooks, desired: &DesiredState, records: &Records, now| {
            books.at(desired, records, now).unwrap().keys().copied().collect::<Vec<_>>()
        };
        let mut books = LentBooks::default();
        let held = records(vec![one.clone()]);
        assert_eq!(ids(&mut books, &all, &held, SECOND), [LeaseId(1)], "lease-3 is not admitted");
        let removed = records(vec![DonorRecord { removed: true, ..one }]);
        let ended = books.at(&all, &removed, SECOND * 5).unwrap();
        assert_eq!((ended.len(), ended[&LeaseId(1)].is_wanted), (1, false));
        assert!(ids(&mut books, &all, &removed, SECOND * 12).is_empty());
        let lent = LentBooks::default().at(&all, &held, SECOND).unwrap();
        let amount = |node: &str, resource: &str| lent[&LeaseId(1)].nodes[node][resource];
        assert_eq!((amount("a", "nvidia.com/gpu"), amount("b", "nvidia.com/gpu")), (2, 1));
        assert_eq!((amount("a", "memory"), amount("a", "nvidia.com/vf")), (1 << 30, 2));
        assert!(lent[&LeaseId(1)].is_wanted);
        // A broker that no longer names it frees nothing.
        let unnamed = LentBooks::default().at(&desired(Vec::new()), &held, SECOND * 60).unwrap();
        assert_eq!((unnamed.len(), unnamed[&LeaseId(1)].is_wanted), (1, false));
    }

    #[test]
    fn broker_marks_a_foreign_gpu_as_lent() {
        let device = DeviceShare { device: 7, milli: 1_000, units: 1, mig_starts: Vec::new() };
        let foreign = NodePlacement { node: "c".to_owned(), devices: vec![device], ..NodePlacement::default() };
        let placement = Placement {
            nodes: vec![foreign],
            resource_name: "nvidia.com/another".to_owned(),
            resource_count: 8,
            ..Placement::new("here".parse().unwrap())
        };
        let repointed = |id| Lease { placement: Some(placement.clone()), ..lease(id) };
        let held = records(vec![admitted(1, Delivery::Namespace)]);
        let honest = LentBooks::default().at(&desired(vec![lease(1)]), &held, SECOND);
        let lied = LentBooks::default().at(&desired(vec![repointed(1), repointed(2)]), &held, SECOND);
        assert_eq!(lied, honest);
    }

    #[test]
    fn records_without_a_desired_state_leave_the_leases_unknown() {
        let held = records(vec![admitted(1, Delivery::Namespace)]);
        let mut books = LentBooks::default();
        assert_eq!(books.at(&DesiredState::default(), &held, SECOND), None);
        assert!(books.at(&DesiredState::default(), &Records::default(), SECOND).is_some_and(|all| all.is_empty()));
    }

    #[test]
    fn pods_of_a_virtual_node_have_the_user_of_its_slice() {
        let grant = |label: &str| Grant {
            origin_liqo_id: "origin".to_owned(),
            node_selector: BTreeMap::from([(label.to_owned(), "true".to_owned())]),
            ..Grant::default()
        };
        let record =
            |grant| DonorRecord { slice: Some("lease-7".to_owned()), grant, ..admitted(8, Delivery::VirtualNode) };
        let of = |grant| {
            let lent =
                LentBooks::default().at(&desired(vec![lease(8)]), &records(vec![record(grant)]), SECOND).unwrap();
            (lent[&LeaseId(8)].pods.clone(), lent[&LeaseId(8)].mark)
        };
        let user = PodsOf::LiqoUser("lease-7-181fdd46fc4a".to_owned());
        assert_eq!(of(Some(grant("lease.comity.dev/lease-8"))), (user.clone(), NodeMark::Label));
        assert_eq!(of(Some(grant("kubernetes.io/hostname"))), (user, NodeMark::Nothing));
        assert_eq!(of(None).1, NodeMark::Nothing);
    }
}
