//! Pods, namespaces and requests for tests.

use std::collections::{BTreeMap, BTreeSet};

use comity_agent_model::gpu_demand::Share;

use super::facts::demand::Shape;
use super::facts::namespace::Rules;
use super::facts::pod::{Owner, Parts, PodFacts, PodRef};
use super::snapshot::{BurstSnapshot, LeaseFacts, LeaseStage, PodView, RequestFacts};
use super::{GATE, group::BurstNote};

pub(crate) const NOW: u64 = 1_000_000_000;

/// A pod of "job/train" in team-a that asks for one GPU; the scheduler has not decided.
pub(crate) fn pod(name: &str) -> PodView {
    PodView {
        seen_ms: NOW - 10_000,
        facts: PodFacts {
            pod: PodRef { namespace: "team-a".to_owned(), name: name.to_owned(), uid: name.to_owned() },
            created_ms: NOW - 10_000,
            owner: Owner {
                kind: "replicaset".to_owned(),
                name: "train".to_owned(),
                uid: "owner".to_owned(),
                is_gang: false,
            },
            has_controller: true,
            shape: Ok(Shape {
                resource: "nvidia.com/gpu".to_owned(),
                share: Some(Share::Whole),
                gpus: 1,
                cpu_milli_per_gpu: 1_000,
                memory_mib_per_gpu: 1_024,
            }),
            options: super::facts::pod_options::PodOptions::default(),
            obstacle: None,
            opted_out: false,
            class: None,
            gates: Vec::new(),
            has: Parts::default(),
            node: None,
            is_of_queue: false,
            pinned: None,
            tolerates: BTreeSet::new(),
            is_finished: false,
            is_unschedulable: false,
            is_deleting: false,
            request: None,
            lease: None,
        },
    }
}

pub(crate) fn gated(name: &str) -> PodView {
    let mut pod = pod(name);
    pod.facts.gates.push(GATE.to_owned());
    pod
}

pub(crate) fn pending(name: &str) -> PodView {
    let mut pod = pod(name);
    pod.facts.is_unschedulable = true;
    pod
}

pub(crate) fn rules() -> Rules {
    Rules {
        tenant: "vision".to_owned(),
        class: "frontier".to_owned(),
        max_gpus: 8,
        max_requests: 4,
        duration_ms: 0,
        cooldown_ms: 60_000,
        gpu_share_milli: 50,
    }
}

/// One opted-in namespace, team-a; nothing free; the broker has answered, with no requests and no leases.
pub(crate) fn snapshot(pods: Vec<PodView>) -> BurstSnapshot {
    BurstSnapshot {
        now_ms: NOW,
        cluster: "polytechnic".to_owned(),
        pods,
        namespaces: BTreeMap::from([("team-a".to_owned(), Ok(rules()))]),
        requests: Some(BTreeMap::new()),
        leases: Some(BTreeMap::new()),
        debounce_ms: 250,
        hold_ms: 300_000,
        ..BurstSnapshot::default()
    }
}

/// A queued request for pods of the group of [`pod`].
pub(crate) fn request(gpus: u32, group: &str) -> RequestFacts {
    RequestFacts {
        namespace: "team-a".to_owned(),
        tenant: "vision".to_owned(),
        class: "frontier".to_owned(),
        gpus,
        share: Some(Share::Whole),
        cpu_milli_per_gpu: 1_000,
        memory_mib_per_gpu: 1_024,
        is_queued: true,
        short_since_ms: Some(NOW - 10_000),
        is_submitted_here: true,
        note: Some(BurstNote {
            owner: "replicaset/train".to_owned(),
            gpus_per_pod: 1,
            resource: "nvidia.com/gpu".to_owned(),
            group: group.to_owned(),
        }),
        ..RequestFacts::default()
    }
}

pub(crate) fn lease(request: &str, gpus: u32, stage: LeaseStage) -> LeaseFacts {
    LeaseFacts {
        request: request.to_owned(),
        namespace: "team-a".to_owned(),
        tenant: "vision".to_owned(),
        donor: "institute".to_owned(),
        node: None,
        class: "frontier".to_owned(),
        resource: "nvidia.com/gpu".to_owned(),
        gpus,
        share: Some(Share::Whole),
        cpu_milli_per_gpu: 1_000,
        memory_mib_per_gpu: 1_024,
        stage,
        expires_at_ms: NOW + 3_600_000,
        term_ms: 3_600_000,
        hold_until_ms: NOW + 60_000,
        idle_since_ms: None,
    }
}
