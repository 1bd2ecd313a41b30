//! Publishes where the pods of each consumer's own cluster are, as this cluster sees them: guests reach them.

use std::sync::Arc;

use comity_agent_liqo::donor::PeerNetworks;
use comity_agent_state::record::Records;
use comity_types::Side;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::reconcile::parts::{Parts, Ranges};

pub(super) async fn follow(parts: Parts, networks: watch::Sender<Option<Arc<PeerNetworks>>>, stop: CancellationToken) {
    let (mut records, mut ranges) = (parts.store.subscribe(), parts.remap_book.subscribe());
    loop {
        let now = Arc::new(of_consumers(&records.borrow_and_update(), &ranges.borrow_and_update()));
        networks.send_if_modified(|before| {
            let differs = before.as_ref() != Some(&now);
            *before = Some(now);
            differs
        });
        tokio::select! {
            () = stop.cancelled() => return,
            changed = records.changed() => if changed.is_err() { return },
            changed = ranges.changed() => if changed.is_err() { return },
        }
    }
}

/// All epochs of a peering count: pods of an earlier one may still run. Pure.
fn of_consumers(records: &Records, ranges: &Ranges) -> PeerNetworks {
    let mut networks = PeerNetworks::new();
    let lent = records.peerings.values().filter(|record| record.side == Side::Donor);
    for remote in lent.filter_map(|record| record.remote.as_ref()) {
        let of_peer = ranges.networks(&remote.cluster, &remote.network.pod_cidrs);
        let seen = of_peer.into_iter().map(|network| network.here);
        networks.entry(remote.network.liqo_cluster_id.clone()).or_default().extend(seen);
    }
    networks
}
