//! Dependencies of steps, in parts: each step names those that it needs.

mod connections;
mod deliveries;
mod member;
mod settling;
mod tunnels;

use std::sync::Arc;

use comity_agent_liqo::network::Networks;
use comity_agent_state::store::Store;
use comity_agent_workload::reclaim::Saved;
use comity_runtime::{Clock, Entropy};
use tokio::sync::watch;

use crate::usage::LeaseUses;

pub use connections::{Access, Borrowed, Connected, Connections};
pub use deliveries::Deliveries;
pub use member::Member;
pub(crate) use member::Subject;
pub use settling::Settling;
pub use tunnels::Tunnels;

/// All parts. Cheap to clone.
#[derive(Clone)]
pub struct Parts {
    /// This cluster in its federation: names, keys, addresses.
    pub member: Arc<Member>,
    /// Records and outbox.
    pub store: Store,
    /// Tunnels.
    pub tunnels: Arc<Tunnels>,
    /// Deliveries of leases.
    pub deliveries: Arc<Deliveries>,
    /// Borrowed leases in this process.
    pub connections: Arc<Connections>,
    /// Reports acknowledged just now.
    pub settling: Arc<Settling>,
    /// Observed state of the networks between Liqos.
    pub networks: watch::Sender<Networks>,
    /// Leases under reclaim whose work is saved.
    pub saved: watch::Sender<Saved>,
    /// Use of lent leases.
    pub uses: watch::Sender<LeaseUses>,
    /// Time.
    pub clock: Arc<dyn Clock>,
    /// Randomness.
    pub entropy: Arc<dyn Entropy>,
}
