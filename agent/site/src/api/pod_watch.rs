//! Pods as they change.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse as _, Response};
use futures::stream;
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio::time::Instant;

use super::lease_call::LeaseCall;
use super::pod_selector::Selector;
use super::pod_table::{as_object, pods_table};
use crate::answers::{Refusal, number};
use crate::running::{ChangeKind, PodHost};

/// Longest watch; clients start another.
const MAX_LIFE: Duration = Duration::from_secs(1_800);
/// How soon a watch ends after its lease.
const LEASE_LOOK: Duration = Duration::from_secs(5);

struct Watch {
    call: LeaseCall,
    host: Arc<PodHost>,
    selector: Selector,
    as_table: bool,
    after: u64,
    versions: watch::Receiver<u64>,
    ready: VecDeque<Bytes>,
    ends: Instant,
    is_over: bool,
}

/// The events of a lease's pods: those that are there first, unless the client names the version of a list.
pub(super) fn stream(
    call: LeaseCall,
    parameters: &BTreeMap<String, String>,
    selector: Selector,
    as_table: bool,
) -> Result<Response, Refusal> {
    if parameters.contains_key("sendInitialEvents") {
        let message = "sendInitialEvents: this host has no streaming lists; list, then watch";
        return Err(Refusal::new(StatusCode::UNPROCESSABLE_ENTITY, message));
    }
    let host = Arc::clone(call.host()?);
    let life = number(parameters, "timeoutSeconds")?.map_or(MAX_LIFE, Duration::from_secs).min(MAX_LIFE);
    let given = number(parameters, "resourceVersion")?.filter(|version| *version > 0);
    let versions = host.book.versions();
    let mut watch = Watch {
        call,
        selector,
        as_table,
        after: 0,
        versions,
        ready: VecDeque::new(),
        ends: Instant::now() + life,
        is_over: false,
        host,
    };
    if let Some(version) = given {
        watch.after = version;
    } else {
        let (version, entries) = watch.host.book.of_lease(watch.call.lease);
        watch.after = version;
        for (_, entry) in entries.iter().filter(|(_, entry)| watch.selector.matches(&entry.pod)) {
            let event = watch.event("ADDED", as_object(&entry.pod));
            watch.ready.push_back(event);
        }
    }
    let events = stream::unfold(watch, |mut watch| async move {
        let event = watch.next().await?;
        Some((Ok::<_, std::convert::Infallible>(event), watch))
    });
    Ok(([(header::CONTENT_TYPE, "application/json")], Body::from_stream(events)).into_response())
}

impl Watch {
    async fn next(&mut self) -> Option<Bytes> {
        loop {
            if let Some(event) = self.ready.pop_front() {
                return Some(event);
            }
            if self.is_over || self.call.still_runs().is_err() || Instant::now() >= self.ends {
                return None;
            }
            self.versions.borrow_and_update();
            match self.host.book.changes_after(self.call.lease, self.after) {
                Some(changes) => {
                    for change in changes {
                        self.after = change.version;
                        let matches = self.selector.matches(&change.pod);
                        let matched = change.before.as_ref().is_some_and(|before| self.selector.matches(before));
                        // To a watch, a pod that begins or ceases to match comes or goes.
                        let kind = match (change.kind, matched, matches) {
                            (ChangeKind::Added, _, true) | (ChangeKind::Modified, false, true) => Some("ADDED"),
                            (ChangeKind::Modified, true, true) => Some("MODIFIED"),
                            (ChangeKind::Modified, true, false) | (ChangeKind::Deleted, _, true) => Some("DELETED"),
                            (_, _, false) => None,
                        };
                        if let Some(kind) = kind {
                            let event = self.event(kind, as_object(&change.pod));
                            self.ready.push_back(event);
                        }
                    }
                }
                None => {
                    self.is_over = true;
                    return Some(expired());
                }
            }
            if self.ready.is_empty() {
                let look = (Instant::now() + LEASE_LOOK).min(self.ends);
                _ = tokio::time::timeout_at(look, self.versions.changed()).await;
            }
        }
    }

    fn event(&self, kind: &str, pod: Value) -> Bytes {
        let object = if self.as_table { pods_table(&[pod], None, &self.host.now()) } else { pod };
        line(&json!({ "type": kind, "object": object }))
    }
}

/// Tells the client to list again.
fn expired() -> Bytes {
    line(&json!({ "type": "ERROR", "object": {
        "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure", "reason": "Expired", "code": 410,
        "message": "the resourceVersion is too old, or of another agent; list again",
    }}))
}

fn line(event: &Value) -> Bytes {
    let mut text = event.to_string();
    text.push('\n');
    text.into()
}
