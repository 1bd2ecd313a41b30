//! Reports device conflicts by a log line, an event on the pods of leases, and metrics.
//!
//! The inventory lends nothing of their nodes meanwhile.

use std::collections::BTreeSet;
use std::sync::Arc;

use comity_agent_kubernetes::api::within_limit;
use comity_agent_kubernetes::object_events::{pod_reference, publish_event};
use kube::Client;
use kube::runtime::events::{Event, EventType};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::devices::{DeviceConflict, DeviceHolder, DeviceTable};
use crate::metrics::Metrics;

/// Reason of the events.
pub const CONFLICT_REASON: &str = "ComityDeviceConflict";
/// Events about one device: a replica may have dozens of holders.
const MAX_EVENTS_OF_A_DEVICE: usize = 8;

/// Dependencies of the task.
pub struct ConflictContext {
    /// The API server.
    pub client: Client,
    /// Devices and their holders.
    pub devices: watch::Receiver<Arc<DeviceTable>>,
    /// Gauges.
    pub metrics: Metrics,
}

/// Runs until told to stop.
pub async fn run(mut context: ConflictContext, stop: CancellationToken) {
    let mut known: BTreeSet<DeviceConflict> = BTreeSet::new();
    loop {
        let table = Arc::clone(&context.devices.borrow_and_update());
        show(&context.metrics, &table);
        let now: BTreeSet<DeviceConflict> = table.conflicts().into_iter().collect();
        for DeviceConflict { node, device, .. } in known.difference(&now).filter(|old| !is_in(&now, old)) {
            tracing::info!(node, device, "the device conflict has ended");
        }
        for conflict in now.difference(&known) {
            let DeviceConflict { node, reason, .. } = conflict;
            tracing::warn!(node, "device conflict: the node lends nothing until it ends; {reason}");
            tokio::select! {
                () = stop.cancelled() => return,
                () = tell(&context.client, conflict) => {}
            }
        }
        known = now;
        tokio::select! {
            () = stop.cancelled() => return,
            changed = context.devices.changed() => if changed.is_err() { return },
        }
    }
}

fn is_in(conflicts: &BTreeSet<DeviceConflict>, other: &DeviceConflict) -> bool {
    conflicts.iter().any(|conflict| conflict.node == other.node && conflict.device == other.device)
}

fn show(metrics: &Metrics, table: &DeviceTable) {
    let (counts, readers) = (table.counts(), table.readers());
    let devices =
        [("free", counts.free), ("local", counts.local), ("lent", counts.lent), ("conflict", counts.in_conflict)];
    for (label, count) in devices {
        metrics.devices.with_label_values(&[label]).set(i64::try_from(count).unwrap_or(i64::MAX));
    }
    for (label, count) in [("read", readers.read), ("failed", readers.failed)] {
        metrics.device_readers.with_label_values(&[label]).set(i64::try_from(count).unwrap_or(i64::MAX));
    }
}

/// Writes events on the pods of leases. A failure is logged and not repeated: the log and the metric say the same.
async fn tell(client: &Client, conflict: &DeviceConflict) {
    for DeviceHolder { namespace, name, uid, .. } in conflict.lent.iter().take(MAX_EVENTS_OF_A_DEVICE) {
        let Some(uid) = uid else { continue };
        let event = Event {
            type_: EventType::Warning,
            reason: CONFLICT_REASON.to_owned(),
            note: Some(format!("another pod or claim holds a device of this pod on node {}", conflict.node)),
            action: "Report".to_owned(),
            secondary: None,
        };
        let on = pod_reference(namespace, name, uid);
        if let Err(error) = within_limit(publish_event(client.clone(), &on, event)).await {
            tracing::warn!(namespace, pod = name, %error, "an event cannot be written");
        }
    }
}
