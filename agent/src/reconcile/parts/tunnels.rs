//! The tunnels of this process.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use comity_agent_fabric::{Exposure, Fabric, FabricError, PeerConfig, PeerHandle};
use comity_types::PeeringId;
use tokio::sync::Notify;

/// The fabric, and its state that a restart loses.
pub struct Tunnels {
    /// The fabric itself.
    pub fabric: Fabric,
    /// Keepalive interval of tunnels.
    pub keepalive: Duration,
    /// Notified when a tunnel comes up: its reachability must be set again.
    pub reach_due: Notify,
    running: Mutex<Running>,
}

#[derive(Default)]
struct Running {
    /// Exposed APIs, by peering, with the epoch of their tunnel.
    exposures: BTreeMap<PeeringId, (u32, Exposure)>,
    /// Epoch of each tunnel.
    epochs: BTreeMap<PeeringId, u32>,
}

impl Tunnels {
    /// No tunnels yet.
    #[must_use]
    pub fn new(fabric: Fabric, keepalive: Duration) -> Self {
        Self { fabric, keepalive, reach_due: Notify::new(), running: Mutex::default() }
    }

    /// Locks the running state. Never held over an await.
    fn running(&self) -> MutexGuard<'_, Running> {
        // Each change is one insertion or removal, so a panic elsewhere leaves nothing half done.
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Epoch of each tunnel, by peering.
    #[must_use]
    pub fn epochs(&self) -> BTreeMap<PeeringId, u32> {
        self.running().epochs.clone()
    }

    /// Sets up the tunnel of an epoch; `expose` opens ports in it, once in each epoch.
    pub(crate) fn set_up(
        &self,
        peering: PeeringId,
        config: PeerConfig,
        epoch: u32,
        expose: impl FnOnce(&PeerHandle) -> Result<Option<Exposure>, FabricError>,
    ) -> Result<(), FabricError> {
        let handle = self.fabric.add_peer(config)?;
        let mut running = self.running();
        if running.exposures.get(&peering).is_none_or(|(exposed, _)| *exposed != epoch) {
            let exposure = expose(&handle)?;
            running.exposures.extend(exposure.map(|exposure| (peering, (epoch, exposure))));
        }
        running.epochs.insert(peering, epoch);
        self.reach_due.notify_one();
        Ok(())
    }

    /// The tunnel of a peering.
    pub(crate) fn peer(&self, peering: PeeringId) -> Option<PeerHandle> {
        self.fabric.peer(&peering.to_string())
    }

    /// Removes a peering's tunnel.
    pub(crate) fn take_down(&self, peering: PeeringId) {
        self.fabric.remove_peer(&peering.to_string());
        let mut running = self.running();
        running.exposures.remove(&peering);
        running.epochs.remove(&peering);
    }

    /// Closes the ports in all tunnels.
    pub(crate) fn close_exposures(&self) {
        self.running().exposures.clear();
    }

    /// The fabric alone, to end it.
    #[must_use]
    pub fn into_fabric(self) -> Fabric {
        self.fabric
    }
}
