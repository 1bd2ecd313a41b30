//! Why an agent does not start.

use std::path::PathBuf;

use comity_agent_fabric::FabricError;
use comity_agent_kubernetes::api::KubernetesApiError;
use comity_agent_model::delivery_error::DeliveryError;
use comity_agent_model::node_id::NodeSaltError;
use comity_agent_state::store::StoreError;
use comity_runtime::{atomic_file, private_files};

use crate::config::ConfigError;
use crate::enrollment::join_error::JoinError;
use crate::observe;
use crate::reconcile::fault::CrashPointError;
use crate::services::local_api::LocalApiError;
use crate::signed_policy::policy_anchor::AnchorError;
use crate::standby::StandbyError;

/// Why an agent does not start.
#[derive(Debug, thiserror::Error)]
pub enum AgentError {
    /// The configuration.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// A file of the state directory.
    #[error(transparent)]
    File(#[from] atomic_file::FileError),
    /// A secret that others could read.
    #[error(transparent)]
    NotPrivate(#[from] private_files::NotPrivate),
    /// The store.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The kept commit of the signed policy.
    #[error(transparent)]
    PolicyAnchor(#[from] AnchorError),
    /// The identity key.
    #[error(transparent)]
    IdentityKey(#[from] comity_runtime::signing::SigningError),
    /// Membership.
    #[error(transparent)]
    Join(#[from] JoinError),
    /// The identity on disk.
    #[error(transparent)]
    Identity(#[from] comity_runtime::identity::IdentityError),
    /// The certificate is somebody else's.
    #[error("the certificate in {path} is of {id}, which is not a cluster: remove the directory and join \
        again", path = .path.display())]
    NotACluster {
        /// The directory.
        path: PathBuf,
        /// The identity in it.
        id: String,
    },
    /// The Kubernetes API.
    #[error(transparent)]
    Kubernetes(#[from] KubernetesApiError),
    /// The inventory file.
    #[error(transparent)]
    Inventory(#[from] observe::file::InventoryFileError),
    /// The salt of node ids.
    #[error(transparent)]
    Salt(#[from] NodeSaltError),
    /// A delivery.
    #[error(transparent)]
    Delivery(#[from] DeliveryError),
    /// The fabric.
    #[error(transparent)]
    Fabric(#[from] FabricError),
    /// The admin server.
    #[error(transparent)]
    Admin(#[from] comity_runtime::admin::AdminError),
    /// The local API.
    #[error(transparent)]
    LocalApi(#[from] LocalApiError),
    /// This replica cannot become the active one.
    #[error(transparent)]
    Standby(#[from] StandbyError),
    /// The crash point for tests is invalid.
    #[error(transparent)]
    CrashPoint(#[from] CrashPointError),
    /// The metrics.
    #[error("metrics cannot be registered: {0}")]
    Metrics(#[from] prometheus::Error),
}
