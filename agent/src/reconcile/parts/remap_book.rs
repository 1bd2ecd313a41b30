//! The addresses at which this cluster sees remapped pod networks. They survive restarts, because pods and endpoints
//! carry them.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use comity_agent_fabric::{FabricError, PlacementRequest, PodNetwork};
use comity_agent_model::delivery_error::DeliveryError;
use comity_agent_state::store::{Store, StoreError};
use comity_agent_workload::webhook::INSTALL;
use comity_types::Side;
use ipnet::Ipv4Net;
use serde::{Deserialize, Serialize};
use tokio::sync::{Mutex, watch};

use crate::reconcile::steps::StepError;

/// Key of the ranges in the store.
const RANGES_KEY: &str = "remapped-networks";
/// Longest wait for the registration of the webhook that writes the addresses; less than a step's deadline.
const REGISTRATION_PATIENCE: Duration = Duration::from_secs(10);

/// Remapped pod networks by cluster.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ranges(pub BTreeMap<String, Vec<PodNetwork>>);

impl Ranges {
    /// A cluster's pod networks, with the addresses at which this cluster sees them.
    #[must_use]
    pub fn networks(&self, cluster: &str, networks: &[Ipv4Net]) -> Vec<PodNetwork> {
        let known = self.0.get(cluster).map(Vec::as_slice).unwrap_or_default();
        let found = |there: &Ipv4Net| known.iter().find(|network| network.there == *there).copied();
        networks.iter().map(|net| found(net).unwrap_or_else(|| PodNetwork::unchanged(*net))).collect()
    }
}

/// A peer's Liqo whose addresses the webhook writes.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct WrittenPeer {
    /// Its cluster id.
    pub liqo_id: String,
    /// This cluster's side of the peering.
    pub side: Side,
}

/// Keeps the ranges.
pub struct RemapBook {
    store: Store,
    ranges: watch::Sender<Ranges>,
    /// Whether the webhook's registration was found right.
    is_registered: watch::Sender<bool>,
    /// Held while ranges are chosen, so that two clusters never get the same one.
    choosing: Mutex<()>,
}

impl RemapBook {
    /// The ranges that an earlier run chose.
    ///
    /// # Errors
    /// [`StoreError`].
    pub fn open(store: Store) -> Result<Self, StoreError> {
        let kept = store.kept(RANGES_KEY)?.unwrap_or_else(|| b"{}".to_vec());
        let ranges = serde_json::from_slice(&kept).unwrap_or_else(|error| {
            tracing::error!(%error, "the ranges of remapped pod networks cannot be read; they are chosen again");
            Ranges::default()
        });
        let (ranges, is_registered) = (watch::Sender::new(ranges), watch::Sender::default());
        Ok(Self { store, ranges, is_registered, choosing: Mutex::default() })
    }

    /// Follows the ranges.
    #[must_use]
    pub fn subscribe(&self) -> watch::Receiver<Ranges> {
        self.ranges.subscribe()
    }

    /// From now on the webhook writes the addresses of every remapped peer.
    pub fn webhook_is_registered(&self) {
        self.is_registered.send_replace(true);
    }

    /// Chooses the addresses of another cluster's pods by `place`, and returns once they are on disk and the webhook
    /// that writes them is registered: until then objects could carry addresses of this cluster's own pods.
    pub(crate) async fn place(
        &self,
        request: PlacementRequest<'_>,
        place: impl FnOnce(&PlacementRequest<'_>) -> Result<Vec<PodNetwork>, FabricError>,
    ) -> Result<Vec<PodNetwork>, StepError> {
        let placed = self.choose(request, place).await?;
        if placed.iter().any(PodNetwork::is_remapped) {
            let mut is_registered = self.is_registered.subscribe();
            let registered = is_registered.wait_for(|is_registered| *is_registered);
            if tokio::time::timeout(REGISTRATION_PATIENCE, registered).await.is_err() {
                let reason = format!("the webhook comity-remapped-addresses is not registered; {INSTALL}");
                return Err(DeliveryError::temporary("remap the pod networks of the other cluster", reason).into());
            }
        }
        Ok(placed)
    }

    async fn choose(
        &self,
        request: PlacementRequest<'_>,
        place: impl FnOnce(&PlacementRequest<'_>) -> Result<Vec<PodNetwork>, FabricError>,
    ) -> Result<Vec<PodNetwork>, StepError> {
        let _choosing = self.choosing.lock().await;
        let before = self.ranges.borrow().clone();
        let mut ranges = before.clone();
        // Before ranges get scarce, those of clusters that are no peers any more are free.
        let peers = self.peers();
        ranges.0.retain(|cluster, _| cluster == request.cluster || peers.contains(cluster));
        let chosen = ranges.0.remove(request.cluster).unwrap_or_default();
        let taken: Vec<Ipv4Net> = ranges.0.values().flatten().map(|network| network.here).collect();
        let placed = place(&PlacementRequest { chosen: &chosen, taken: &taken, ..request })?;
        let remapped: Vec<PodNetwork> = placed.iter().copied().filter(PodNetwork::is_remapped).collect();
        for network in remapped.iter().filter(|network| !chosen.contains(network)) {
            let PodNetwork { there, here } = network;
            tracing::info!(cluster = request.cluster, %there, %here, "a pod network of another cluster is remapped");
        }
        if !remapped.is_empty() {
            ranges.0.insert(request.cluster.to_owned(), remapped);
        }
        self.keep(before, ranges).await?;
        Ok(placed)
    }

    /// Frees the ranges of clusters that are no peers any more.
    pub(crate) async fn forget_strangers(&self) -> Result<(), StoreError> {
        let _choosing = self.choosing.lock().await;
        let before = self.ranges.borrow().clone();
        let mut ranges = before.clone();
        let peers = self.peers();
        ranges.0.retain(|cluster, _| peers.contains(cluster));
        self.keep(before, ranges).await
    }

    /// Clusters with which this one has a peering.
    fn peers(&self) -> BTreeSet<String> {
        let records = self.store.records();
        records.peerings.values().filter_map(|record| Some(record.remote.as_ref()?.cluster.clone())).collect()
    }

    async fn keep(&self, before: Ranges, ranges: Ranges) -> Result<(), StoreError> {
        if ranges != before {
            // A map of networks always serializes.
            self.store.keep(RANGES_KEY, serde_json::to_vec(&ranges).unwrap_or_default()).await?;
            self.ranges.send_replace(ranges);
        }
        Ok(())
    }

    /// The networks of remapped peers, for the webhook.
    #[must_use]
    pub fn remapped_peers(&self) -> BTreeMap<WrittenPeer, Vec<PodNetwork>> {
        let (records, ranges) = (self.store.records(), self.ranges.borrow());
        let remotes = records.peerings.values().filter_map(|record| Some((record.side, record.remote.as_ref()?)));
        let remapped = remotes.filter_map(|(side, remote)| {
            let networks = ranges.0.get(&remote.cluster).filter(|_| !remote.network.liqo_cluster_id.is_empty())?;
            Some((WrittenPeer { liqo_id: remote.network.liqo_cluster_id.clone(), side }, networks.clone()))
        });
        remapped.collect()
    }
}

#[cfg(test)]
mod tests;
