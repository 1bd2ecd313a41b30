//! Maintains the networks between Liqos while the agent runs: applies the records' state repeatedly, and reports the
//! observed state to the plan.

use std::time::Duration;

use comity_agent_liqo::LiqoPeer;
use comity_agent_liqo::network::{LiqoNetwork, NetworkState, NetworkStatus, Networks, ObservedNetwork};
use comity_agent_state::record::Records;
use comity_types::{PeeringId, Side};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::reconcile::parts::Parts;

/// Pauses between two checks, while a network is not ready and when all are. Changes by others are reverted within the
/// longer one.
const SOON: Duration = Duration::from_secs(2);
const LATER: Duration = Duration::from_secs(15);

pub(super) async fn keep(parts: Parts, network: LiqoNetwork, stop: CancellationToken) {
    let Parts { store, networks, clock, .. } = parts;
    let mut records = store.subscribe();
    loop {
        let carriers = carriers(&records.borrow_and_update());
        let mut seen = Networks::new();
        for peering in carriers {
            let current = || current(&store.records(), peering);
            let observed = tokio::select! {
                () = stop.cancelled() => return,
                observed = network.tend(current) => observed,
            };
            seen.extend(observed.map(|observed| (peering, observed)));
        }
        let is_ready = |seen: &ObservedNetwork| matches!(seen.status, NetworkStatus::Ready { .. });
        let pause = if seen.values().all(is_ready) { LATER } else { SOON };
        publish(&networks, seen);
        tokio::select! {
            () = stop.cancelled() => return,
            changed = records.changed() => if changed.is_err() { return },
            () = clock.sleep(pause) => {}
        }
    }
}

/// Peerings that carry a network. Pure.
fn carriers(records: &Records) -> Vec<PeeringId> {
    let carries = |peering: PeeringId, liqo_id: &str| records.network_carrier(liqo_id) == Some(peering);
    let carriers = records.liqo.iter().filter(|(peering, record)| carries(**peering, &record.liqo_id));
    carriers.map(|(peering, _)| *peering).collect()
}

/// The wanted network of a peering, if it still carries one. Pure.
fn current(records: &Records, peering: PeeringId) -> Option<(LiqoPeer, Side, Option<NetworkState>)> {
    let record = records.liqo.get(&peering)?;
    let carries = records.network_carrier(&record.liqo_id) == Some(peering);
    let network = record.active_network().filter(|_| carries)?;
    Some((record.peer(), record.side, network.remote.clone()))
}

/// Publishes the observed state, and logs changes.
fn publish(networks: &watch::Sender<Networks>, seen: Networks) {
    networks.send_if_modified(|before| {
        if *before == seen {
            return false;
        }
        for (peering, now) in &seen {
            if before.get(peering).is_none_or(|before| before.status != now.status) {
                tracing::info!(%peering, network = now.status.summary(), "the network of the two Liqos");
            }
        }
        *before = seen;
        true
    });
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use comity_agent_state::record::{LiqoRecord, NetworkRecord};

    use super::*;

    fn records(peerings: &[(u64, Side, bool)]) -> Records {
        let mut records = Records::default();
        for (peering, side, leaving) in peerings {
            let peering = PeeringId(*peering);
            let peer = LiqoPeer { peering: peering.to_string(), cluster: "north".into(), liqo_id: "liqo-n".into() };
            let mut record = LiqoRecord::new(peering, *side, &peer, "liqo-s");
            record.network = Some(NetworkRecord { leaving: *leaving, ..NetworkRecord::default() });
            records.liqo.insert(peering, Arc::new(record));
        }
        records
    }

    #[test]
    fn two_clusters_that_lend_to_each_other_have_one_network_and_the_older_peering_carries_it() {
        let both = records(&[(10, Side::Donor, false), (9, Side::Origin, false)]);
        assert_eq!(carriers(&both), [PeeringId(9)]);
        assert_eq!(current(&both, PeeringId(9)).map(|(_, side, _)| side), Some(Side::Origin));
        assert_eq!(current(&both, PeeringId(10)), None);
        // The younger one takes over when the older one ends.
        let one = records(&[(10, Side::Donor, false), (9, Side::Origin, true)]);
        assert_eq!(carriers(&one), [PeeringId(10)]);
        assert_eq!(current(&one, PeeringId(9)), None);
        assert_eq!(carriers(&records(&[(9, Side::Origin, true)])), []);
    }
}
