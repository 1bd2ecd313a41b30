//! What to do now: a pure function of a look at cluster and broker.
//!
//! Pods are taken in order of age. A pod that fits a GPU of this cluster stays here; one that a lease has room for is
//! sent there; what is left becomes requests, as far as the namespace's limits go. What nobody needs any more is given
//! back.

mod ask;
mod give_back;
mod local;
mod notes;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

use comity_proto::v1;

use super::facts::pod::{PodFacts, PodRef};
use super::group::Group;
use super::note::Note;
use super::slots::{self, Slot};
use super::view::{BurstView, LeaseStage, PodView};
use crate::kubernetes::dns_label::is_dns_label;
use local::Local;

/// How long a failed request's pods wait before they ask again.
const RETRY_AFTER_MS: u64 = 60_000;
/// Same events are repeated after this time: events live for an hour.
pub(super) const REPEAT_NOTE_MS: u64 = 10 * 60_000;

/// A request for pods.
#[derive(Clone, Debug, PartialEq)]
pub struct Submission {
    /// Idempotency key; the same after a restart.
    pub key: String,
    /// The pods that it is for.
    pub pods: Vec<PodRef>,
    /// What the broker is asked.
    pub spec: v1::RequestSpec,
}

/// One thing to do.
#[derive(Clone, Debug, PartialEq)]
pub enum BurstAction {
    /// Ask the broker.
    Submit(Box<Submission>),
    /// Note on a pod which request it waits for.
    Assign {
        /// The pod.
        pod: PodRef,
        /// The request.
        request: String,
    },
    /// One patch on a gated pod: onto the lease's node, gate off.
    Pin {
        /// The pod.
        pod: PodRef,
        /// The lease.
        lease: String,
        /// Its request.
        request: String,
    },
    /// Let a pending pod onto the lease's node.
    Rescue {
        /// The pod.
        pod: PodRef,
        /// The lease.
        lease: String,
        /// Its request.
        request: String,
    },
    /// Take the gate off: the pod is this cluster's scheduler's.
    Release {
        /// The pod.
        pod: PodRef,
    },
    /// Delete a pod that never ran and that only a lease which is gone could run; its controller makes it again.
    Replace {
        /// The pod.
        pod: PodRef,
        /// The lease that is gone.
        lease: String,
    },
    /// Write an event.
    Tell {
        /// On this pod.
        pod: PodRef,
        /// What.
        note: Note,
    },
    /// Take a request back.
    Cancel {
        /// The request.
        request: String,
    },
    /// Give a lease back.
    GiveBack {
        /// The lease.
        lease: String,
    },
    /// Nothing until then, unless something changes.
    LookAgain {
        /// When.
        at_ms: u64,
    },
}

/// What to do now.
#[must_use]
pub fn plan(view: &BurstView) -> Vec<BurstAction> {
    let mut planner = Planner {
        view,
        slots: slots::slots(view),
        local: Local::new(view.local.clone()),
        wants: BTreeMap::new(),
        actions: Vec::new(),
        look_again: None,
    };
    let mut pods: Vec<&PodView> = view.pods.iter().collect();
    pods.sort_by_key(|pod| (pod.facts.created_ms, &pod.facts.pod.uid));
    planner.reserve_local(&pods);
    for pod in &pods {
        planner.place(pod);
    }
    planner.ask();
    planner.give_back();
    let mut actions = planner.actions;
    actions.extend(planner.look_again.map(|at_ms| BurstAction::LookAgain { at_ms }));
    actions
}

struct Planner<'a> {
    view: &'a BurstView,
    slots: BTreeMap<&'a str, Slot<'a>>,
    local: Local,
    /// Pods that need GPUs of others, by group, oldest first.
    wants: BTreeMap<Group, Vec<&'a PodView>>,
    actions: Vec<BurstAction>,
    look_again: Option<u64>,
}

impl<'a> Planner<'a> {
    /// Pods that the scheduler is about to place will take GPUs of this cluster.
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
            return self.look_after_pinned(facts, lease);
        }
        if !facts.is_gated() && !facts.is_unschedulable {
            return;
        }
        let (rules, shape) = match self.stays_here(facts) {
            Err(note) => return self.leave_here(facts, note),
            Ok(wanted) => wanted,
        };
        if facts.has_other_gates() {
            // Whoever holds it too decides first.
            return self.hold(pod);
        }
        if let Some(request) = slots::holds(self.view, facts) {
            return self.serve(pod, request);
        }
        if self.view.in_flight.iter().any(|flight| flight.pods.contains(&facts.pod.uid)) {
            return;
        }
        let class = facts.class.clone().unwrap_or_else(|| rules.class.clone());
        let group = Group {
            namespace: facts.pod.namespace.clone(),
            class,
            shape: shape.clone(),
            owner_uid: facts.owner.uid.clone(),
            wishes: facts.wishes.clone(),
        };
        self.wants.entry(group).or_default().push(pod);
    }

    /// The rules for a pod that may go, or why it may not.
    fn stays_here(
        &self,
        pod: &'a PodFacts,
    ) -> Result<(&'a super::facts::namespace::Rules, &'a super::facts::demand::Shape), Option<Note>> {
        let Some(rules) = self.view.namespaces.get(&pod.pod.namespace) else { return Err(None) };
        if pod.opted_out {
            return Err(None);
        }
        if let Some(reason) = &self.view.cannot_borrow {
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

    /// A pod that is this cluster's own business.
    fn leave_here(&mut self, pod: &PodFacts, note: Option<Note>) {
        if pod.is_gated() {
            self.actions.push(BurstAction::Release { pod: pod.pod.clone() });
        }
        if let Some(note) = note {
            self.tell(pod, note);
        }
    }

    /// A pod that has a request, or room on a lease.
    fn serve(&mut self, pod: &'a PodView, request: &'a str) {
        let facts = &pod.facts;
        let Some(slot) = self.slots.get(request) else { return };
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
            self.actions.push(BurstAction::Rescue { pod: reference, lease, request });
        }
        self.tell(pod, note);
    }

    fn fits_here(&mut self, pod: &PodFacts) -> bool {
        pod.shape.as_ref().is_ok_and(|shape| self.local.take(shape))
    }

    fn keep_here(&mut self, pod: &PodFacts) {
        self.actions.push(BurstAction::Release { pod: pod.pod.clone() });
        self.tell(pod, notes::fits_here());
    }

    /// Takes the gate off a pod that was held long enough; it goes on waiting without it.
    fn hold(&mut self, pod: &PodView) {
        if !pod.facts.is_gated() {
            return;
        }
        let until = pod.facts.created_ms.saturating_add(self.view.hold_ms);
        if until <= self.view.now_ms {
            self.actions.push(BurstAction::Release { pod: pod.facts.pod.clone() });
        } else {
            self.at(until);
        }
    }

    /// A pod that can only run on one lease: without it, it never will.
    fn look_after_pinned(&mut self, pod: &PodFacts, lease: &str) {
        let Some(leases) = &self.view.leases else { return };
        if leases.get(lease).is_some_and(|facts| facts.stage != LeaseStage::Ending) {
            return;
        }
        if pod.has_controller {
            self.actions.push(BurstAction::Replace { pod: pod.pod.clone(), lease: lease.to_owned() });
        }
        self.tell(pod, notes::lease_gone(lease, pod.has_controller));
    }

    fn tell(&mut self, pod: &PodFacts, note: Note) {
        let mut told = self.view.told.get(&pod.pod.uid).into_iter().flatten();
        let is_known = |told: &super::view::Told| {
            told.note == note && self.view.now_ms.saturating_sub(told.at_ms) < REPEAT_NOTE_MS
        };
        if !told.any(is_known) {
            self.actions.push(BurstAction::Tell { pod: pod.pod.clone(), note });
        }
    }

    fn at(&mut self, at_ms: u64) {
        self.look_again = Some(self.look_again.map_or(at_ms, |other| other.min(at_ms)));
    }
}
