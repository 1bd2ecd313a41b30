//! The donor's side of Liqo.
//!
//! ```text
//! challenge ─▶ admit_tenant ─┬▶ (slices come and go) ─▶ drain_slice ─▶ remove_tenant         LiqoDonor, called by steps
//! mint_token, repeatedly ────┘
//!                                     ▲
//! Grants ─┬─▶ ClassController: the status of each replicated ResourceSlice is its lease, or nothing
//!         └─▶ PolicyKeeper:    the owner's admission policies read them, for all writers       tasks, always running
//! ```
//!
//! Liqo itself lets a consumer write its own grant, choose a class that grants everything, choose nodes, and put any
//! group into its certificate. The admission policies prevent that; without them nothing is lent.
//!
//! A missing grant never stops a running pod: only [`LiqoDonor::drain_slice`] and [`LiqoDonor::remove_tenant`] do.

mod class_controller;
mod csr;
mod grants;
mod guest_network;
mod installation;
mod namespaces;
mod pace;
mod peer_account;
mod peer_check;
pub mod pod_metrics;
mod policies;
mod policy_keeper;
mod rights;
mod server_name;
mod slice;
mod tenant;
mod tenant_removal;

pub use class_controller::ClassController;
pub use csr::{slice_user, tenant_subject_is};
pub use grants::{Grant, Grants, MAX_GRANTS};
pub use guest_network::PeerNetworks;
pub use installation::{Installation, InstallationSettings, check_installation};
pub use namespaces::{GuestNamespaces, NamespaceKeeper};
pub use peer_account::Minted;
pub use policies::{POLICIES_MANIFEST, POLICY_NAMES, PolicySettings, policy_manifest};
pub use policy_keeper::{PolicyKeeper, missing_policies};

use std::time::Duration;

use comity_agent_model::forward_target::ForwardTarget;

/// Settings of the donor's side.
#[derive(Clone, Debug)]
pub struct DonorSettings {
    /// This cluster's own Liqo id.
    pub liqo_id: String,
    /// Where this cluster's API server listens, as the fabric's port for origins leads to it.
    pub api_server: ForwardTarget,
    /// "host:port" under which origins that come by token reach it: as in the signed key bundle.
    pub advertised: String,
    /// PEM of the CA that its certificate chains to.
    pub ca_pem: String,
    /// Longest that one call waits for Liqo's controllers.
    pub patience: Duration,
    /// Grace period of a tenant's pods when their lease is over, which replaces their own.
    pub pod_grace: Duration,
}

impl DonorSettings {
    /// Settings with the default limits.
    #[must_use]
    pub fn new(liqo_id: &str, api_server: ForwardTarget, advertised: &str, ca_pem: &str) -> Self {
        Self {
            liqo_id: liqo_id.to_owned(),
            api_server,
            advertised: advertised.to_owned(),
            ca_pem: ca_pem.to_owned(),
            patience: Duration::from_secs(60),
            pod_grace: Duration::from_secs(30),
        }
    }
}

/// Admits and removes origins. Cheap to clone.
#[derive(Clone)]
pub struct LiqoDonor {
    client: kube::Client,
    settings: DonorSettings,
}

impl LiqoDonor {
    /// Works on the cluster behind `client`.
    #[must_use]
    pub const fn new(client: kube::Client, settings: DonorSettings) -> Self {
        Self { client, settings }
    }
}

impl std::fmt::Debug for LiqoDonor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("LiqoDonor").field("settings", &self.settings).finish_non_exhaustive()
    }
}
