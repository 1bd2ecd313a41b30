//! Addresses at which agents and users reach the brokers of the group.

use std::sync::Arc;

use comity_runtime::tls::MAX_ENDPOINTS;
use openraft::async_runtime::WatchReceiver as _;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::group::consensus::Raft;

/// Client addresses, by broker number; at most as many as clients accept.
pub(crate) type ClientAddresses = Arc<[String]>;

/// Starts the task that tracks the addresses in Raft's membership.
pub(crate) fn follow(raft: Raft, stop: &CancellationToken, tasks: &TaskTracker) -> watch::Receiver<ClientAddresses> {
    let (sender, receiver) = watch::channel(current(&raft));
    let stop = stop.clone();
    tasks.spawn(async move {
        let mut metrics = raft.server_metrics();
        loop {
            let addresses = current(&raft);
            sender.send_if_modified(|known| {
                let is_new = *known != addresses;
                *known = addresses;
                is_new
            });
            tokio::select! {
                changed = metrics.changed() => if changed.is_err() { return },
                () = stop.cancelled() => return,
            }
        }
    });
    receiver
}

fn current(raft: &Raft) -> ClientAddresses {
    let metrics = raft.server_metrics();
    let metrics = metrics.borrow_watched();
    metrics.membership_config.nodes().map(|(_, node)| node.address.client.clone()).take(MAX_ENDPOINTS).collect()
}
