//! The API servers of the origin and of the donor.

use std::time::Duration;

use anyhow::{Context as _, Result};
use comity_testkit::{Binaries, ControlPlane, ControlPlaneConfig, Needs, SimulatedNode};

use crate::programs::apply_admission;

/// The borrowing cluster of the example policy.
pub(super) const BORROWING_CLUSTER: &str = "polytech-campus";
/// Its institution.
pub(super) const BORROWING_INSTITUTION: &str = "polytechnic";
/// The lending cluster of the example policy.
pub(super) const LENDING_CLUSTER: &str = "ncc-main";

/// Two control planes with simulated nodes.
pub(super) struct TwoClusters {
    pub(super) origin: ControlPlane,
    pub(super) donor: ControlPlane,
    // Dropped last, because the processes use it.
    _folder: tempfile::TempDir,
}

impl TwoClusters {
    /// Starts both.
    ///
    /// # Errors
    /// Names the control plane that does not start.
    pub(super) async fn start() -> Result<Self> {
        let folder = tempfile::Builder::new().prefix("comity-eviction-").tempdir()?;
        let binaries = Binaries::ensure(Needs::ControlPlane).await?;
        let plane = async |name: &str, nodes: Vec<SimulatedNode>| {
            let mut config = ControlPlaneConfig::new(name, folder.path().join(name));
            config.nodes = nodes;
            config.patience = Duration::from_secs(300);
            let plane = ControlPlane::start(&binaries, config).await;
            let plane = plane.with_context(|| format!("control plane of the {name}"))?;
            apply_admission(&plane).await?;
            anyhow::Ok(plane)
        };
        let (origin, donor) = tokio::try_join!(
            plane("origin", vec![SimulatedNode::without_gpus("campus-1")]),
            plane("donor", vec![SimulatedNode::h100("ncc-1", 8), SimulatedNode::h100("ncc-2", 8)]),
        )?;
        Ok(Self { origin, donor, _folder: folder })
    }

    /// Removes the kubeconfigs that an earlier origin has kept: nobody told it that its leases ended.
    ///
    /// # Errors
    /// With kubectl's reason.
    pub(super) async fn forget_kubeconfigs(&self) -> Result<()> {
        self.origin.kubectl(&["delete", "secrets", "--all-namespaces", "--selector", "comity.dev/lease"]).await?;
        Ok(())
    }

    /// Ends both.
    ///
    /// # Errors
    /// When files cannot be removed.
    pub(super) async fn stop(self) -> Result<()> {
        self.origin.stop().await?;
        Ok(self.donor.stop().await?)
    }
}
