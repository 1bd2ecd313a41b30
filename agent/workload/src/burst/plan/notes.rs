//! Texts of the events on pods: why they wait, and until when.

use k8s_openapi::jiff::Timestamp;

use crate::burst::note::Note;
use crate::burst::slots::Slot;
use crate::burst::snapshot::{LeaseFacts, LeaseStage};

fn note(reason: &'static str, text: String) -> Note {
    Note { is_warning: false, reason, text }
}

fn warning(reason: &'static str, text: String) -> Note {
    Note { is_warning: true, reason, text }
}

/// "2026-03-01T12:00:00Z", as kubectl prints times.
fn time(ms: u64) -> String {
    let stamp = i64::try_from(ms / 1_000).ok().and_then(|seconds| Timestamp::from_second(seconds).ok());
    stamp.map_or_else(|| "an unknown time".to_owned(), |stamp| stamp.to_string())
}

pub(super) fn cannot_go(problem: &str) -> Note {
    warning("ComityNotOffloadable", format!("the pod stays in this cluster: {problem}"))
}

pub(super) fn never_fits(wanted: u32, limit: u32) -> Note {
    let limits = format!("{} of its namespace is {limit}", crate::burst::MAX_GPUS);
    warning("ComityLimit", format!("the pod stays in this cluster: {wanted} GPUs are needed at once, and {limits}"))
}

pub(super) fn no_requests() -> Note {
    let limit = format!("{} of its namespace is 0", crate::burst::MAX_REQUESTS);
    warning("ComityLimit", format!("the pod stays in this cluster: {limit}"))
}

pub(super) fn at_limit(limit: &str) -> Note {
    note("ComityLimit", format!("waits until other requests of its namespace end: {limit}"))
}

pub(super) fn fits_here() -> Note {
    note("ComityLocal", "a GPU of this cluster is free: the pod was left to its scheduler".to_owned())
}

pub(super) fn goes_to(lease: &str, facts: &LeaseFacts) -> Note {
    let until = if facts.expires_at_ms == 0 { String::new() } else { format!(", until {}", time(facts.expires_at_ms)) };
    note("ComityScheduled", format!("may run on {lease}, {} GPUs lent by {}{until}", facts.gpus, facts.donor))
}

pub(super) fn other_resource(lease: &str, facts: &LeaseFacts, requested: &str) -> Note {
    let LeaseFacts { donor, resource, class, .. } = facts;
    cannot_go(&format!(
        "{donor} counts the GPUs of {lease} by {resource}, and the pod requests {requested}; request {resource}, or name \
         by {} a class other than {class:?}, whose GPUs are counted by {requested}",
        crate::burst::CLASS
    ))
}

pub(super) fn waits(request: &str, slot: &Slot<'_>) -> Note {
    match slot.lease {
        Some((lease, facts)) if facts.stage == LeaseStage::Ending => {
            note("ComityWaiting", format!("waits for {request} to be placed again: {lease} at {} ends", facts.donor))
        }
        Some((lease, facts)) if facts.stage == LeaseStage::Reclaiming => {
            let why = format!("{lease} at {} is being reclaimed", facts.donor);
            note("ComityWaiting", format!("waits for {request} to be placed again: {why}"))
        }
        Some((lease, facts)) => {
            let until = if facts.hold_until_ms == 0 {
                String::new()
            } else {
                format!(", which has until {}", time(facts.hold_until_ms))
            };
            note(
                "ComityConnecting",
                format!("{request} was placed: {lease} at {} is being connected{until}", facts.donor),
            )
        }
        None => {
            let why = if slot.message.is_empty() { "no cluster has been chosen yet" } else { slot.message };
            let what = format!("{} GPUs of class {}", slot.gpus, slot.class);
            note("ComityWaiting", format!("waits for {request}, {what}, until a cluster lends them: {why}"))
        }
    }
}

pub(super) fn lease_gone(lease: &str, is_replaced: bool) -> Note {
    if is_replaced {
        return note(
            "ComityLeaseGone",
            format!("{lease} ended before the pod could run: its controller makes it again"),
        );
    }
    warning(
        "ComityLeaseGone",
        format!(
            "{lease} ended before the pod could run, and a pod's node selector cannot be changed: delete the pod and \
             create it again"
        ),
    )
}

pub(super) fn ends(lease: &str, facts: &LeaseFacts, why: &str) -> Note {
    warning("ComityLeaseEnds", format!("{lease} ends at {}, and its pods with it; {why}", time(facts.expires_at_ms)))
}

pub(super) fn ends_soon(lease: &str, facts: &LeaseFacts, why: &str) -> Note {
    let text = format!("{lease} ends very soon, at {}, and its pods with it; {why}", time(facts.expires_at_ms));
    warning("ComityLeaseEnds", text)
}

pub(super) fn broker_silent() -> Note {
    note("ComityWaiting", "waits until the broker answers; nothing is requested until then".to_owned())
}

/// Without a time: events are read long after they are written.
pub(super) fn refused(reason: &str) -> Note {
    warning("ComityRefused", format!("the broker refuses the request, which is submitted again later: {reason}"))
}

pub(super) fn failed(request: &str, reason: &str) -> Note {
    warning("ComityFailed", format!("{request} could not be served; another request follows after a minute: {reason}"))
}
