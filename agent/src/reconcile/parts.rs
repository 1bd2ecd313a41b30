//! Dependencies of steps, in parts: each step names those that it needs.

mod connections;
mod current_failures;
mod deliveries;
mod member;
mod port_clients;
mod remap_book;
mod settling;
mod tunnels;

use std::sync::Arc;

use comity_agent_fabric::Fence;
use comity_agent_liqo::network::Networks;
use comity_agent_model::desired::Update;
use comity_agent_model::desired_state::DesiredState;
use comity_agent_state::store::{Store, StoreError};
use comity_agent_workload::reclaim::Saved;
use comity_runtime::{Clock, Entropy};
use kube::Client;
use tokio::sync::watch;

use crate::mig::mig_keeper::{MigChannels, MigKeeper};
use crate::mig::mig_settings::MigSettings;
use crate::signed_policy::SignedPolicy;
use crate::usage::LeaseUses;

pub use connections::{Access, Borrowed, Connected, Connections};
pub use current_failures::CurrentFailures;
pub use deliveries::Deliveries;
pub use member::Member;
pub(crate) use member::Subject;
pub(crate) use port_clients::PortClients;
pub use remap_book::{Ranges, RemapBook, WrittenPeer};
pub use settling::Settling;
pub use tunnels::Tunnels;

/// Key of the desired state in the store.
pub(crate) const DESIRED_STATE_KEY: &str = "desired";

/// All parts. Cheap to clone.
#[derive(Clone)]
pub struct Parts {
    /// This cluster in its federation: names, keys, addresses.
    pub member: Arc<Member>,
    /// Records and outbox.
    pub store: Store,
    /// Closed while another replica may be the active agent.
    pub fence: Fence,
    /// Tunnels.
    pub tunnels: Arc<Tunnels>,
    /// Ranges of remapped pod networks.
    pub remap_book: Arc<RemapBook>,
    /// Deliveries of leases.
    pub deliveries: Arc<Deliveries>,
    /// Borrowed leases in this process.
    pub connections: Arc<Connections>,
    /// Reports acknowledged just now.
    pub settling: Arc<Settling>,
    /// What goes wrong at present, for people.
    pub failures: Arc<CurrentFailures>,
    /// Whether the brokers say that this cluster takes no part any more. Its donors know it as well.
    pub revoked: watch::Sender<bool>,
    /// Observed state of the networks between Liqos.
    pub networks: watch::Sender<Networks>,
    /// Leases under reclaim whose work is saved.
    pub saved: watch::Sender<Saved>,
    /// Use of lent leases.
    pub uses: watch::Sender<LeaseUses>,
    /// The policy as its owners signed it.
    pub signed_policy: watch::Sender<SignedPolicy>,
    /// Held by whoever replaces the kept commit of that policy.
    pub policy_turn: Arc<tokio::sync::Mutex<()>>,
    /// Time.
    pub clock: Arc<dyn Clock>,
    /// Randomness.
    pub entropy: Arc<dyn Entropy>,
}

impl Parts {
    /// Cuts MIG devices for the leases that this cluster lends; before the first desired state, those remembered.
    pub(crate) fn mig_keeper(
        &self,
        client: Client,
        settings: MigSettings,
        channels: MigChannels,
        desired: watch::Receiver<Update>,
    ) -> Result<MigKeeper, StoreError> {
        let kept = self.store.kept(DESIRED_STATE_KEY)?.unwrap_or_default();
        let (records, clock) = (self.store.subscribe(), Arc::clone(&self.clock));
        let remembered = DesiredState::decode(&kept);
        Ok(MigKeeper { client, settings, channels, remembered, desired, records, clock })
    }
}
