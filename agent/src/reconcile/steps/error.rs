//! Why a step failed.

use std::time::Duration;

use comity_agent_fabric::FabricError;
use comity_agent_model::delivery_error::DeliveryError;
use comity_agent_state::store::StoreError;

/// Why a step failed.
#[derive(Debug, thiserror::Error)]
pub enum StepError {
    /// The store failed.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The fabric failed.
    #[error(transparent)]
    Fabric(#[from] FabricError),
    /// The cluster failed.
    #[error(transparent)]
    Delivery(#[from] DeliveryError),
    /// Something that the step needs is gone; the next plan takes that into account.
    #[error("{0} no longer exists")]
    Gone(&'static str),
    /// Another replica may be the active agent.
    #[error("this replica may no longer be the active agent")]
    Fenced,
    /// The step took too long.
    #[error("not done within {}s", .0.as_secs())]
    Deadline(Duration),
}
