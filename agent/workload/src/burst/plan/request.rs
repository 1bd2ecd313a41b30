//! Places pods that need borrowed GPUs: first on existing requests and leases, then by new requests.

use comity_agent_model::gpu_demand::GpuDemand;

use super::{BurstAction, Planner, RETRY_AFTER_MS, Submission, notes};
use crate::burst::burst_request::BurstRequest;
use crate::burst::facts::demand::MAX_GPUS_PER_REQUEST;
use crate::burst::facts::namespace::Rules;
use crate::burst::facts::pod::PodFacts;
use crate::burst::group::{BurstNote, Group, submission_key};
use crate::burst::slots::Slot;
use crate::burst::snapshot::PodView;

/// A group that still grows is gathered for at most this many debounce times.
const MOST_DEBOUNCES: u64 = 4;

/// The rest of a namespace's limits.
struct Room {
    gpus: u32,
    requests: u32,
}

impl<'a> Planner<'a> {
    /// Places all waiting groups, in order of their oldest pods.
    pub(super) fn place_waiting(&mut self) {
        let mut groups: Vec<(Group, Vec<&'a PodView>)> = std::mem::take(&mut self.waiting).into_iter().collect();
        groups.sort_by_key(|(group, pods)| {
            (pods.first().map(|pod| (pod.facts.created_ms, pod.facts.pod.uid.clone())), group.owner_uid.clone())
        });
        for (group, pods) in groups {
            let Some(Ok(rules)) = self.snapshot.namespaces.get(&group.namespace) else { continue };
            let is_gang = pods.iter().any(|pod| pod.facts.owner.is_gang);
            if is_gang && !self.is_due(&group, &pods) {
                continue;
            }
            let pods = self.keep_those_that_fit(&group, pods, is_gang);
            let pods = self.use_room(&group, rules, pods, is_gang);
            if pods.is_empty() || (!is_gang && !self.is_due(&group, &pods)) {
                continue;
            }
            self.request(&group, rules, pods, is_gang);
        }
    }

    /// Whether the group is complete, or was gathered for long enough.
    fn is_due(&mut self, group: &Group, pods: &[&PodView]) -> bool {
        let is_alone = pods.iter().all(|pod| pod.facts.owner.kind == "pod");
        let is_whole = self
            .snapshot
            .expected
            .get(&group.owner_uid)
            .is_some_and(|expected| pods.len() >= usize::try_from(*expected).unwrap_or(usize::MAX));
        let seen = || pods.iter().map(|pod| pod.seen_ms);
        let (first, last) = (seen().min().unwrap_or(0), seen().max().unwrap_or(0));
        let debounce = self.snapshot.debounce_ms;
        let due = last.saturating_add(debounce).min(first.saturating_add(debounce * MOST_DEBOUNCES));
        if is_alone || is_whole || due <= self.snapshot.now_ms {
            return true;
        }
        self.at(due);
        false
    }

    /// Keeps gated pods for which a local GPU is free, a gang only as a whole. Returns the others.
    fn keep_those_that_fit(&mut self, group: &Group, pods: Vec<&'a PodView>, is_gang: bool) -> Vec<&'a PodView> {
        if is_gang {
            let mut rest = self.local.clone();
            if pods.iter().all(|pod| pod.facts.is_gated() && rest.take(&group.shape)) {
                self.local = rest;
                for pod in pods {
                    self.keep_here(&pod.facts);
                }
                return Vec::new();
            }
            return pods;
        }
        let (stay, go): (Vec<_>, Vec<_>) =
            pods.into_iter().partition(|pod| pod.facts.is_gated() && self.local.take(&group.shape));
        for pod in stay {
            self.keep_here(&pod.facts);
        }
        go
    }

    /// Assigns pods to existing requests and leases. Returns those for which there was no room.
    fn use_room(&mut self, group: &Group, rules: &Rules, pods: Vec<&'a PodView>, is_gang: bool) -> Vec<&'a PodView> {
        let id = group.id();
        // A gang shares one request, unless its pods need several GPUs each and have a request each.
        if is_gang && group.shape.gpus == 1 {
            let Some(request) = self.best_room(group, rules, &id, total(group, &pods)) else { return pods };
            for pod in pods {
                self.take_room(&pod.facts, request, 1);
            }
            return Vec::new();
        }
        let mut rest = Vec::new();
        for pod in pods {
            match self.best_room(group, rules, &id, group.shape.gpus) {
                Some(request) => self.take_room(&pod.facts, request, group.shape.gpus),
                None => rest.push(pod),
            }
        }
        rest
    }

    /// The best request with room: active leases first, then placed requests, then queued ones; the fullest of those.
    fn best_room(&self, group: &Group, rules: &Rules, id: &str, needed: u32) -> Option<&'a str> {
        let suits = |slot: &Slot<'_>| {
            slot.namespace == group.namespace
                && slot.tenant == rules.tenant
                && slot.class == group.class
                && slot.free() >= needed
                && slot.suits(&group.shape, &group.options, id)
        };
        let rank = |slot: &Slot<'_>| (slot.active().is_none(), slot.is_queued, slot.free());
        let candidates = self.slots.iter().filter(|(_, slot)| suits(slot));
        candidates.min_by_key(|(request, slot)| (rank(slot), **request)).map(|(request, _)| *request)
    }

    fn take_room(&mut self, pod: &PodFacts, request: &'a str, gpus: u32) {
        let Some(slot) = self.slots.get_mut(request) else { return };
        slot.used = slot.used.saturating_add(gpus);
        match slot.active() {
            Some((lease, facts)) => {
                let (lease, note) = (lease.to_owned(), notes::goes_to(lease, facts));
                self.send(pod, request, lease, pod.is_gated(), note);
            }
            None => {
                let note = notes::waits(request, slot);
                self.actions.push(BurstAction::Assign { pod: pod.pod.clone(), request: request.to_owned() });
                self.tell(pod, note);
            }
        }
    }

    fn request(&mut self, group: &Group, rules: &Rules, pods: Vec<&'a PodView>, is_gang: bool) {
        let pods = self.without_recent_failures(pods, is_gang);
        if self.snapshot.requests.is_none() || self.snapshot.leases.is_none() {
            for pod in pods {
                self.hold(pod);
                self.tell(&pod.facts, notes::broker_silent());
            }
            return;
        }
        let each = group.shape.gpus;
        let room = self.room(&group.namespace, rules);
        let wanted = total(group, &pods);
        if is_gang && wanted > rules.max_gpus.min(MAX_GPUS_PER_REQUEST) {
            for pod in pods {
                self.leave_here(&pod.facts, Some(notes::never_fits(wanted, rules.max_gpus)));
            }
            return;
        }
        // Pods with several GPUs have a request each, so that each gets its GPUs on one node.
        let requests_needed = if each == 1 { 1 } else { u32::try_from(pods.len()).unwrap_or(u32::MAX) };
        let most = (room.gpus / each).min(if each == 1 { MAX_GPUS_PER_REQUEST } else { room.requests });
        let mut most = usize::try_from(most).unwrap_or(usize::MAX);
        if room.requests == 0 || (is_gang && (wanted > room.gpus || requests_needed > room.requests)) {
            most = 0;
        }
        let (now, later) = pods.split_at(most.min(pods.len()));
        let size = if each == 1 { now.len().max(1) } else { 1 };
        for pods in now.chunks(size) {
            self.submit(group, rules, pods);
        }
        let limit = format!("it may hold {} GPUs in {} requests at once", rules.max_gpus, rules.max_requests);
        for pod in later {
            self.hold(pod);
            self.tell(&pod.facts, notes::at_limit(&limit));
        }
    }

    /// The pods that may be requested now: others wait after a failure, or until their last request is known to have
    /// ended.
    fn without_recent_failures(&mut self, pods: Vec<&'a PodView>, is_gang: bool) -> Vec<&'a PodView> {
        let before = pods.len();
        let mut ready = Vec::new();
        for pod in &pods {
            match pod.facts.request.as_ref() {
                None => ready.push(*pod),
                Some(request) => match self.snapshot.ended.get(request) {
                    Some(ended) if ended.has_failed => {
                        let again = ended.at_ms.saturating_add(RETRY_AFTER_MS);
                        if again <= self.snapshot.now_ms {
                            ready.push(*pod);
                        } else {
                            self.at(again);
                            self.hold(pod);
                            self.tell(&pod.facts, notes::failed(request, &ended.message));
                        }
                    }
                    Some(_) => ready.push(*pod),
                    None => self.hold(pod),
                },
            }
        }
        if is_gang && ready.len() < before { Vec::new() } else { ready }
    }

    fn submit(&mut self, group: &Group, rules: &Rules, pods: &[&'a PodView]) {
        let Some(first) = pods.first() else { return };
        let facts: Vec<&PodFacts> = pods.iter().map(|pod| &pod.facts).collect();
        let key = submission_key(&group.id(), &facts);
        if let Some((reason, until)) =
            self.snapshot.refused.get(&key).filter(|(_, until)| *until > self.snapshot.now_ms)
        {
            self.at(*until);
            for pod in pods {
                self.hold(pod);
                self.tell(&pod.facts, notes::refused(reason));
            }
            return;
        }
        let shape = &group.shape;
        let request = BurstRequest {
            tenant: rules.tenant.clone(),
            origin: self.snapshot.cluster.clone(),
            gpus: GpuDemand {
                class: group.class.clone(),
                selector: String::new(),
                share: shape.share.clone(),
                count: total(group, pods),
                cpu_milli_per_gpu: shape.cpu_milli_per_gpu.max(self.snapshot.least_cpu_milli),
                memory_mib_per_gpu: shape.memory_mib_per_gpu.max(self.snapshot.least_memory_mib),
                ..GpuDemand::default()
            },
            same_node: shape.gpus > 1,
            duration_ms: rules.duration_ms,
            target_namespace: group.namespace.clone(),
            note: BurstNote::of(&first.facts, group),
            options: group.options.clone(),
        };
        for pod in pods {
            self.hold(pod);
        }
        let pods = facts.iter().map(|pod| pod.pod.clone()).collect();
        self.actions.push(BurstAction::Submit(Box::new(Submission { key, pods, request })));
    }

    /// The rest of the namespace's limits after its requests, submissions in flight and this plan.
    fn room(&self, namespace: &str, rules: &Rules) -> Room {
        let (mut gpus, mut requests) = (0_u32, 0_u32);
        let mut count = |more: u32| {
            gpus = gpus.saturating_add(more);
            requests = requests.saturating_add(1);
        };
        self.slots.values().filter(|slot| slot.namespace == namespace).for_each(|slot| count(slot.gpus));
        self.snapshot
            .in_flight
            .iter()
            .filter(|flight| flight.namespace == namespace)
            .for_each(|flight| count(flight.gpus));
        for action in &self.actions {
            if let BurstAction::Submit(submission) = action
                && submission.request.target_namespace == namespace
            {
                count(submission.request.gpus.count);
            }
        }
        Room { gpus: rules.max_gpus.saturating_sub(gpus), requests: rules.max_requests.saturating_sub(requests) }
    }
}

fn total(group: &Group, pods: &[&PodView]) -> u32 {
    u32::try_from(pods.len()).unwrap_or(u32::MAX).saturating_mul(group.shape.gpus)
}
