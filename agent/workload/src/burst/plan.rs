//! Plans actions on pods, requests and leases from a snapshot. Pure.
//!
//! Pods are planned oldest first. A pod stays if a GPU of this cluster fits, else goes to a lease with room, else
//! becomes part of a request within the namespace's limits. Unused requests and leases are released.

mod local;
mod notes;
mod release;
mod renew;
mod request;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

use comity_types::is_dns_label;

use super::burst_request::BurstRequest;
use super::facts::pod::{PodFacts, PodRef};
use super::group::Group;
use super::note::Note;
use super::slots::{self, Slot};
use super::snapshot::{BurstSnapshot, LeaseStage, PodView};
use local::Local;

/// How long pods of a failed request wait for their next request.
const RETRY_AFTER_MS: u64 = 60_000;
/// An event is repeated after this time; Kubernetes keeps events for an hour.
pub(super) const REPEAT_NOTE_MS: u64 = 10 * 60_000;

/// A request to submit for pods.
#[derive(Clone, Debug, PartialEq)]
pub struct Submission {
    /// Idempotency key; deterministic, so the same after a restart.
    pub key: String,
    /// Its pods.
    pub pods: Vec<PodRef>,
    /// The request.
    pub request: BurstRequest,
}

/// One planned action.
#[derive(Clone, Debug, PartialEq)]
pub enum BurstAction {
    /// Submit a request to the broker.
    Submit(Box<Submission>),
    /// Annotate a pod with the request that it waits for.
    Assign {
        /// The pod.
        pod: PodRef,
        /// The request.
        request: String,
    },
    /// Bind a gated pod to the lease's node, and remove the gate, in one patch.
    Pin {
        /// The pod.
        pod: PodRef,
        /// The lease.
        lease: String,
        /// Its request.
        request: String,
    },
    /// Let a pending pod tolerate the lease's node.
    Tolerate {
        /// The pod.
        pod: PodRef,
        /// The lease.
        lease: String,
        /// Its request.
        request: String,
    },
    /// Take the gate off: this cluster's scheduler places the pod.
    Ungate {
        /// The pod.
        pod: PodRef,
    },
    /// Delete a pod that never ran and is bound to a lease that is gone; its controller makes it again.
    Replace {
        /// The pod.
        pod: PodRef,
        /// The lease that is gone.
        lease: String,
    },
    /// Write an event.
    WriteEvent {
        /// On this pod.
        pod: PodRef,
        /// What.
        note: Note,
    },
    /// Cancel a request.
    Cancel {
        /// The request.
        request: String,
    },
    /// Renew a lease.
    Renew {
        /// The lease.
        lease: String,
        /// The end that it has now, in milliseconds since 1970: a lease is renewed once for each end.
        expires_at_ms: u64,
    },
    /// Release a lease.
    ReleaseLease {
        /// The lease.
        lease: String,
    },
    /// Plan again at this time, even if nothing changes.
    WakeAt {
        /// When.
        at_ms: u64,
    },
}

/// Plans the next actions.
#[must_use]
pub fn plan(snapshot: &BurstSnapshot) -> Vec<BurstAction> {
    let mut planner = Planner {
        snapshot,
        slots: slots::slots(snapshot),
        local: Local::new(snapshot.local.clone()),
        waiting: BTreeMap::new(),
        actions: Vec::new(),
        wake_at_ms: None,
    };
    let mut pods: Vec<&PodView> = snapshot.pods.iter().collect();
    pods.sort_by_key(|pod| (pod.facts.created_ms, &pod.facts.pod.uid));
    planner.reserve_local(&pods);
    for pod in &pods {
        planner.place(pod);
    }
    planner.place_waiting();
    planner.renew_used();
    planner.release_unused();
    let mut actions = planner.actions;
    actions.extend(planner.wake_at_ms.map(|at_ms| BurstAction::WakeAt { at_ms }));
    actions
}

struct Planner<'a> {
    snapshot: &'a BurstSnapshot,
    slots: BTreeMap<&'a str, Slot<'a>>,
    local: Local,
    /// Pods that need borrowed GPUs, by group, oldest first.
    waiting: BTreeMap<Group, Vec<&'a PodView>>,
    actions: Vec<BurstAction>,
    wake_at_ms: Option<u64>,
}

impl<'a> Planner<'a> {
    /// Counts local GPUs for pods that the scheduler is about to place.
    fn reserve_local(&mut self, pods: &[&'a PodView]) {
        for pod in pods.iter().map(|pod| &pod.facts) {
            let undecided = pod.node.is_none() && pod.gates.is_empty() && !pod.is_unschedulable;
            if let (true, Ok(shape)) = (undecided && !pod.is_finished && pod.pinned.is_none(), &pod.shape) {
                self.local.take(shape);
            }
        }
    }

    fn place(&mut self, pod: &'a PodView) {
        let facts = &pod.facts;
        if facts.is_finished || facts.is_deleting || facts.node.is_some() {
            return;
        }
        if let Some(lease) = &facts.pinned {
            return self.check_pinned(pod, lease);
        }
        if !facts.is_gated() && !facts.is_unschedulable {
            return;
        }
        let (rules, shape) = match self.check_burst(facts) {
            Err(note) => return self.leave_here(facts, note),
            Ok(wanted) => wanted,
        };
        if facts.has_other_gates() {
            // The owner of the other gate decides first.
            return self.hold(pod);
        }
        if let Some(request) = slots::request_of(self.snapshot, facts) {
            return self.serve(pod, request);
        }
        if self.snapshot.in_flight.iter().any(|flight| flight.pods.contains(&facts.pod.uid)) {
            return;
        }
        let class = facts.class.clone().unwrap_or_else(|| rules.class.clone());
        let group = Group {
            namespace: facts.pod.namespace.clone(),
            class,
            shape: shape.sized(rules.gpu_share_milli),
            owner_uid: facts.owner.uid.clone(),
            options: facts.options.clone(),
        };
        self.waiting.entry(group).or_default().push(pod);
    }

    /// Rules and shape of a pod that may burst; otherwise the event to write on it, if any.
    fn check_burst(
        &self,
        pod: &'a PodFacts,
    ) -> Result<(&'a super::facts::namespace::Rules, &'a super::facts::demand::Shape), Option<Note>> {
        let Some(rules) = self.snapshot.namespaces.get(&pod.pod.namespace) else { return Err(None) };
        if pod.opted_out {
            return Err(None);
        }
        if let Some(reason) = &self.snapshot.cannot_borrow {
            return Err(Some(notes::cannot_go(&format!("this cluster can have no virtual nodes: {reason}"))));
        }
        let rules = rules.as_ref().map_err(|problem| Some(notes::cannot_go(problem)))?;
        let shape = pod.shape.as_ref().map_err(|problem| Some(notes::cannot_go(problem)))?;
        if let Some(obstacle) = &pod.obstacle {
            return Err(Some(notes::cannot_go(obstacle)));
        }
        let class = pod.class.as_ref().unwrap_or(&rules.class);
        if !is_dns_label(class) {
            return Err(Some(notes::cannot_go(&format!(
                "its GPU class is {class:?}; name one by {} on the pod or its namespace",
                super::CLASS
            ))));
        }
        if rules.max_requests == 0 {
            return Err(Some(notes::no_requests()));
        }
        if shape.gpus > rules.max_gpus {
            return Err(Some(notes::never_fits(shape.gpus, rules.max_gpus)));
        }
        Ok((rules, shape))
    }

    /// Leaves a pod to this cluster's scheduler.
    fn leave_here(&mut self, pod: &PodFacts, note: Option<Note>) {
        if pod.is_gated() {
            self.actions.push(BurstAction::Ungate { pod: pod.pod.clone() });
        }
        if let Some(note) = note {
            self.tell(pod, note);
        }
    }

    /// Sends a pod to its request's lease, or holds it until there is one.
    fn serve(&mut self, pod: &'a PodView, request: &'a str) {
        let facts = &pod.facts;
        let Some(slot) = self.slots.get(request) else { return };
        if let (Some((lease, its)), Ok(shape)) = (slot.active(), &facts.shape)
            && slot.has_other_resource(shape)
        {
            let note = notes::other_resource(lease, its, &shape.resource);
            return self.leave_here(facts, Some(note));
        }
        if let Some((lease, its)) = slot.active() {
            let note = notes::goes_to(lease, its);
            let (lease, gated) = (lease.to_owned(), facts.is_gated());
            return self.send(facts, request, lease, gated, note);
        }
        let note = notes::waits(request, slot);
        if facts.is_gated() && self.fits_here(facts) {
            return self.keep_here(facts);
        }
        self.hold(pod);
        self.tell(facts, note);
    }

    fn send(&mut self, pod: &PodFacts, request: &str, lease: String, is_gated: bool, note: Note) {
        let (reference, request) = (pod.pod.clone(), request.to_owned());
        if is_gated {
            self.actions.push(BurstAction::Pin { pod: reference, lease, request });
        } else if pod.tolerates.contains(&lease) {
            return;
        } else {
            self.actions.push(BurstAction::Tolerate { pod: reference, lease, request });
        }
        self.tell(pod, note);
    }

    fn fits_here(&mut self, pod: &PodFacts) -> bool {
        pod.shape.as_ref().is_ok_and(|shape| self.local.take(shape))
    }

    fn keep_here(&mut self, pod: &PodFacts) {
        self.actions.push(BurstAction::Ungate { pod: pod.pod.clone() });
        self.tell(pod, notes::fits_here());
    }

    /// Holds a gated pod for up to `hold_ms`; then removes the gate, and the pod waits as pending.
    fn hold(&mut self, pod: &PodView) {
        if !pod.facts.is_gated() {
            return;
        }
        let until = pod.facts.created_ms.saturating_add(self.snapshot.hold_ms);
        if until <= self.snapshot.now_ms {
            self.actions.push(BurstAction::Ungate { pod: pod.facts.pod.clone() });
        } else {
            self.at(until);
        }
    }

    /// Sends a pod that somebody else pinned to an active lease to its node. Replaces one whose lease is gone, which could
    /// never run.
    fn check_pinned(&mut self, pod: &'a PodView, lease: &str) {
        let facts = &pod.facts;
        let found = self.snapshot.leases.as_ref().map(|leases| leases.get(lease));
        let live = found.flatten().filter(|found| found.stage != LeaseStage::Ending);
        if let Some(its) = live.filter(|its| its.stage == LeaseStage::Active)
            && its.namespace == facts.pod.namespace
            && !facts.has_other_gates()
            && (facts.is_gated() || (facts.is_unschedulable && !facts.tolerates.contains(lease)))
            && !facts.opted_out
            && facts.obstacle.is_none()
        {
            let note = notes::goes_to(lease, its);
            return self.send(facts, &its.request, lease.to_owned(), facts.is_gated(), note);
        }
        self.hold(pod);
        // Unknown leases are not gone. A queue's Job would pin its next pod to the same lease: Kueue ends that.
        if found.is_none() || live.is_some() || facts.is_of_queue {
            return;
        }
        if facts.has_controller {
            self.actions.push(BurstAction::Replace { pod: facts.pod.clone(), lease: lease.to_owned() });
        }
        self.tell(facts, notes::lease_gone(lease, facts.has_controller));
    }

    fn tell(&mut self, pod: &PodFacts, note: Note) {
        let mut written = self.snapshot.written_notes.get(&pod.pod.uid).into_iter().flatten();
        let is_known = |written: &super::snapshot::WrittenNote| {
            written.note == note && self.snapshot.now_ms.saturating_sub(written.at_ms) < REPEAT_NOTE_MS
        };
        if !written.any(is_known) {
            self.actions.push(BurstAction::WriteEvent { pod: pod.pod.clone(), note });
        }
    }

    fn at(&mut self, at_ms: u64) {
        self.wake_at_ms = Some(self.wake_at_ms.map_or(at_ms, |other| other.min(at_ms)));
    }
}
