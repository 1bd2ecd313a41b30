//! Checks that nothing of a burst is left.

use anyhow::{Result, ensure};
use comity_testkit::RealCluster;

use super::Burst;
use crate::wait::{PATIENCE, until};

impl Burst {
    /// Waits until no lease is active.
    ///
    /// # Errors
    /// Lists the remaining ones.
    pub async fn no_lease(&self) -> Result<()> {
        until("the leases to be given back", PATIENCE, async || {
            let leases = self.federation().comity(&["lease", "list"]).await?;
            ensure!(leases["items"].as_array().is_none_or(Vec::is_empty), "still there: {leases}");
            Ok(Some(()))
        })
        .await
    }

    /// Waits until no cluster has objects of a lease or peering.
    ///
    /// # Errors
    /// Lists the remaining objects.
    pub async fn nothing_left(&self) -> Result<()> {
        until("nothing to be left", PATIENCE, async || {
            no_objects(
                &self.clusters.origin,
                "resourceslices.authentication.liqo.io,virtualnodes.offloading.liqo.io,\
                 identities.authentication.liqo.io,namespaceoffloadings.offloading.liqo.io",
            )
            .await?;
            let nodes = self.clusters.origin.kubectl(&["get", "nodes", "-o", "name"]).await?;
            let real = self.clusters.origin.nodes() as usize;
            ensure!(nodes.lines().count() == real, "the origin has nodes {nodes}");
            for (_, donor) in self.donors() {
                no_objects(
                    donor,
                    "resourceslices.authentication.liqo.io,quotas.offloading.liqo.io,shadowpods.offloading.liqo.io",
                )
                .await?;
                let shadow_pods = ["get", "pods", "-A", "-l", "liqo.io/managed-by=shadowpod", "-o", "name"];
                let pods = donor.kubectl(&shadow_pods).await?;
                ensure!(pods.trim().is_empty(), "{} has {pods}", donor.name());
            }
            Ok(Some(()))
        })
        .await
    }
}

/// Fails if a cluster has objects of these kinds.
async fn no_objects(real: &RealCluster, kinds: &str) -> Result<()> {
    let left = real.kubectl(&["get", kinds, "-A", "-o", "name"]).await?;
    ensure!(left.trim().is_empty(), "{} has {left}", real.name());
    Ok(())
}
