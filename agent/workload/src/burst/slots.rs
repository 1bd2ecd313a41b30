//! Capacity of requests and leases for pods, and its use.

use std::collections::{BTreeMap, BTreeSet};

use comity_agent_model::gpu_demand::Share;

use super::facts::demand::Shape;
use super::facts::pod::PodFacts;
use super::facts::pod_options::PodOptions;
use super::group::BurstNote;
use super::snapshot::{BurstSnapshot, LeaseFacts, LeaseStage};

/// Capacity of a request and its lease.
#[derive(Clone, Debug)]
pub(crate) struct Slot<'a> {
    pub(crate) namespace: &'a str,
    pub(crate) tenant: &'a str,
    pub(crate) class: &'a str,
    pub(crate) gpus: u32,
    pub(crate) used: u32,
    share: Option<&'a Share>,
    cpu_milli_per_gpu: u64,
    memory_mib_per_gpu: u64,
    pub(crate) is_queued: bool,
    pub(crate) lease: Option<(&'a str, &'a LeaseFacts)>,
    pub(crate) note: Option<&'a BurstNote>,
    /// Whether this cluster's agent submitted the request.
    pub(crate) is_submitted_here: bool,
    /// The request's options; `None` if only the lease is known.
    options: Option<&'a PodOptions>,
    pub(crate) message: &'a str,
    pub(crate) short_since_ms: Option<u64>,
    pub(crate) kept_until_ms: u64,
}

impl Slot<'_> {
    pub(crate) fn free(&self) -> u32 {
        self.gpus.saturating_sub(self.used)
    }

    /// The lease, if pods can run on it now.
    pub(crate) fn active(&self) -> Option<(&str, &LeaseFacts)> {
        self.lease.filter(|(_, lease)| lease.stage == LeaseStage::Active)
    }

    pub(crate) fn is_ending(&self) -> bool {
        self.lease.is_some_and(|(_, lease)| lease.stage == LeaseStage::Ending)
    }

    /// Whether the donor counts its GPUs by another resource than the pod requests: its node then has none for the pod.
    pub(crate) fn has_other_resource(&self, shape: &Shape) -> bool {
        self.lease.is_some_and(|(_, lease)| !lease.resource.is_empty() && lease.resource != shape.resource)
    }

    /// Whether pods of this shape, options and group could use it, regardless of free GPUs.
    pub(crate) fn suits(&self, shape: &Shape, options: &PodOptions, group: &str) -> bool {
        // An ending lease has no capacity, unless its request waits for the next one.
        if self.is_ending() && !self.is_queued {
            return false;
        }
        let enough =
            shape.cpu_milli_per_gpu <= self.cpu_milli_per_gpu && shape.memory_mib_per_gpu <= self.memory_mib_per_gpu;
        // A request for single GPUs may spread over several nodes.
        let together = self
            .note
            .is_none_or(|note| note.resource == shape.resource && (shape.gpus == 1 || note.gpus_per_pod == shape.gpus));
        // People may request any part for their pods; burst requests what a pod states.
        let same_share = self.note.is_none() || self.share == shape.share.as_ref();
        let same_kind = !self.has_other_resource(shape) && same_share;
        // A queued request serves its own group only; one that burst did not make serves pods once it has a lease.
        let theirs = match self.note {
            Some(note) if self.is_queued => note.group == group,
            Some(_) => true,
            None => self.lease.is_some(),
        };
        // Pods without options may use any lease that people requested.
        let options_met = self.options.is_some_and(|requested| options.are_met_by(requested))
            || (self.note.is_none() && options.are_unset());
        let reaches_store = self.options.is_none_or(|requested| options.reach_store_of(requested));
        enough && together && same_kind && theirs && options_met && reaches_store
    }
}

/// Capacity and use by request id.
pub(crate) fn slots(snapshot: &BurstSnapshot) -> BTreeMap<&str, Slot<'_>> {
    let mut slots = BTreeMap::new();
    for (id, request) in snapshot.requests.iter().flatten() {
        slots.insert(
            id.as_str(),
            Slot {
                namespace: &request.namespace,
                tenant: &request.tenant,
                class: &request.class,
                gpus: request.gpus,
                used: 0,
                share: request.share.as_ref(),
                cpu_milli_per_gpu: request.cpu_milli_per_gpu,
                memory_mib_per_gpu: request.memory_mib_per_gpu,
                is_queued: request.is_queued,
                lease: None,
                note: request.note.as_ref(),
                is_submitted_here: request.is_submitted_here,
                options: Some(&request.options),
                message: &request.message,
                short_since_ms: request.short_since_ms,
                kept_until_ms: request.kept_until_ms,
            },
        );
    }
    for (id, lease) in snapshot.leases.iter().flatten() {
        let slot = slots.entry(lease.request.as_str()).or_insert(Slot {
            namespace: &lease.namespace,
            tenant: &lease.tenant,
            class: &lease.class,
            gpus: lease.gpus,
            used: 0,
            share: lease.share.as_ref(),
            cpu_milli_per_gpu: lease.cpu_milli_per_gpu,
            memory_mib_per_gpu: lease.memory_mib_per_gpu,
            is_queued: false,
            lease: None,
            note: None,
            is_submitted_here: false,
            options: None,
            message: "",
            short_since_ms: None,
            kept_until_ms: 0,
        });
        slot.is_queued &= lease.stage == LeaseStage::Ending;
        // A request that is placed again has a lease that is being reclaimed, or ends, beside its next one.
        if slot.lease.is_none_or(|(_, other)| lease.stage.rank() < other.stage.rank()) {
            slot.lease = Some((id, lease));
        }
    }
    for pod in &snapshot.pods {
        let gpus = pod.facts.shape.as_ref().map_or(0, |shape| shape.gpus);
        let cannot_use = |slot: &Slot<'_>| {
            pod.facts.node.is_none() && pod.facts.shape.as_ref().is_ok_and(|shape| slot.has_other_resource(shape))
        };
        let slot = request_of(snapshot, &pod.facts).and_then(|request| slots.get_mut(request));
        if let Some(slot) = slot.filter(|slot| !cannot_use(slot)) {
            slot.used = slot.used.saturating_add(gpus);
        }
    }
    slots
}

/// The request whose capacity the pod uses. A pod's author may write any annotation and selector, so a request or lease of
/// another namespace is nobody's right.
pub(crate) fn request_of<'a>(snapshot: &'a BurstSnapshot, pod: &'a PodFacts) -> Option<&'a str> {
    if pod.is_finished || (pod.is_deleting && pod.node.is_none()) {
        return None;
    }
    let namespace = pod.pod.namespace.as_str();
    let leases = snapshot.leases.as_ref();
    let of_lease = |id: &String| {
        let lease = leases.and_then(|leases| leases.get(id)).filter(|lease| lease.namespace == namespace);
        lease.map(|lease| lease.request.as_str())
    };
    if let Some(node) = &pod.node {
        // Any other node is this cluster's own.
        return pod.pinned.as_ref().and_then(of_lease).or_else(|| served_by(leases?, node, namespace));
    }
    pod.pinned.as_ref().or(pod.lease.as_ref()).and_then(of_lease).or_else(|| {
        let (id, request) = snapshot.requests.as_ref()?.get_key_value(pod.request.as_ref()?)?;
        (request.namespace == namespace).then_some(id.as_str())
    })
}

/// The namespace's request whose lease has this virtual node. A node serves leases one after another: prefers the one not
/// ending.
fn served_by<'a>(leases: &'a BTreeMap<String, LeaseFacts>, node: &str, namespace: &str) -> Option<&'a str> {
    let on_node = |(id, lease): &(&String, &LeaseFacts)| {
        lease.node.as_ref().unwrap_or(id) == node && lease.namespace == namespace
    };
    let (_, lease) = leases.iter().filter(on_node).min_by_key(|(_, lease)| lease.stage == LeaseStage::Ending)?;
    Some(&lease.request)
}

/// Requests with free GPUs, and leases without pods.
pub(crate) fn unused(snapshot: &BurstSnapshot) -> (BTreeSet<String>, BTreeSet<String>) {
    let slots = slots(snapshot);
    let short = slots.iter().filter(|(_, slot)| slot.free() > 0).map(|(request, _)| (*request).to_owned()).collect();
    let idle = slots.values().filter(|slot| slot.used == 0);
    (short, idle.filter_map(|slot| slot.lease.map(|(id, _)| id.to_owned())).collect())
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;
    use crate::burst::fixtures::{lease, pod, request};
    use crate::burst::snapshot::RequestFacts;

    #[test]
    fn pods_of_a_request_that_moves_wait_for_its_next_lease() {
        for (next, waits_for) in
            [(None, "lease-9"), (Some(LeaseStage::Coming), "lease-10"), (Some(LeaseStage::Active), "lease-10")]
        {
            let mut leases = BTreeMap::from([("lease-9".to_owned(), lease("req-1", 1, LeaseStage::Reclaiming))]);
            leases.extend(next.map(|stage| ("lease-10".to_owned(), lease("req-1", 1, stage))));
            let snapshot = BurstSnapshot { leases: Some(leases), ..BurstSnapshot::default() };
            let slots = slots(&snapshot);
            assert_eq!(slots.get("req-1").and_then(|slot| slot.lease).map(|(id, _)| id), Some(waits_for));
            let runs_on = (next == Some(LeaseStage::Active)).then_some("lease-10");
            assert_eq!(
                slots.get("req-1").and_then(Slot::active).map(|(id, _)| id),
                runs_on,
                "nothing new goes to lease-9"
            );
        }
    }

    #[test]
    fn a_lease_with_a_checkpoint_store_takes_only_pods_that_reach_it() {
        let of = |secret: &str| PodOptions { checkpoint_secret: Some(secret.to_owned()), ..PodOptions::default() };
        let shape = pod("p").facts.shape.unwrap();
        let takes = |requested: PodOptions, options: &PodOptions| {
            let requested = RequestFacts { is_queued: false, note: None, options: requested, ..request(1, "") };
            let snapshot = BurstSnapshot {
                requests: Some(BTreeMap::from([("req-1".to_owned(), requested)])),
                leases: Some(BTreeMap::from([("lease-1".to_owned(), lease("req-1", 1, LeaseStage::Active))])),
                ..BurstSnapshot::default()
            };
            slots(&snapshot).get("req-1").unwrap().suits(&shape, options, "group")
        };
        assert!(takes(of("bucket"), &of("bucket")) && takes(PodOptions::default(), &of("bucket")));
        assert!(!takes(of("bucket"), &PodOptions::default()) && !takes(of("bucket"), &of("other")));
    }

    #[test]
    fn a_node_serves_the_lease_that_took_it_over() {
        let with = |request: &str, stage, node: Option<&str>| LeaseFacts {
            node: node.map(str::to_owned),
            ..lease(request, 1, stage)
        };
        let leases = BTreeMap::from([
            ("lease-1".to_owned(), with("req-1", LeaseStage::Ending, None)),
            ("lease-2".to_owned(), with("req-2", LeaseStage::Active, Some("lease-1"))),
            ("lease-3".to_owned(), with("req-3", LeaseStage::Ending, None)),
        ]);
        assert_eq!(served_by(&leases, "lease-1", "team-a"), Some("req-2"));
        assert_eq!(served_by(&leases, "lease-3", "team-a"), Some("req-3"), "its pods still end");
        assert_eq!(served_by(&leases, "lease-2", "team-a"), None, "no node is called so");
        assert_eq!(served_by(&leases, "worker-1", "team-a"), None);
    }

    #[test]
    fn what_a_pod_writes_about_itself_opens_no_lease_of_another_namespace() {
        let snapshot = BurstSnapshot {
            requests: Some(BTreeMap::from([("req-1".to_owned(), request(1, ""))])),
            leases: Some(BTreeMap::from([("lease-1".to_owned(), lease("req-1", 1, LeaseStage::Active))])),
            ..BurstSnapshot::default()
        };
        let forge: [fn(&mut PodFacts); 4] = [
            |pod| pod.request = Some("req-1".to_owned()),
            |pod| pod.lease = Some("lease-1".to_owned()),
            |pod| pod.pinned = Some("lease-1".to_owned()),
            |pod| pod.node = Some("lease-1".to_owned()),
        ];
        for forge in forge {
            let mut own = pod("p").facts;
            forge(&mut own);
            assert_eq!(request_of(&snapshot, &own), Some("req-1"));
            let mut foreign = own.clone();
            foreign.pod.namespace = "team-b".to_owned();
            assert_eq!(request_of(&snapshot, &foreign), None, "{foreign:?}");
        }
    }
}
