//! What can go wrong between and in the clusters, on purpose.

use std::path::Path;

use super::{RealCluster, RealClusters, RealClustersError, Where};

impl RealClusters {
    /// Cuts the line between the two clusters: nothing passes the router, until [`RealClusters::restore_line`]. What runs in
    /// the router reaches the origin still, and the donor no more.
    ///
    /// # Errors
    ///
    /// When the router has gone.
    pub async fn cut_line(&self) -> Result<(), RealClustersError> {
        self.line("down").await
    }

    /// Joins the clusters again.
    ///
    /// # Errors
    ///
    /// When the router has gone.
    pub async fn restore_line(&self) -> Result<(), RealClustersError> {
        self.line("up").await
    }

    /// Kills a cluster's API server, without warning. Its containers run on. Nothing happens in the router, which has none.
    ///
    /// # Errors
    ///
    /// When it does not run.
    pub async fn kill_api_server(&self, place: Where) -> Result<(), RealClustersError> {
        match self.cluster(place) {
            Some(cluster) => cluster.signal("kube-apiserver", "KILL").await,
            None => Ok(()),
        }
    }

    /// Starts an API server that was killed, and waits until it answers.
    ///
    /// # Errors
    ///
    /// When it cannot be started, or does not answer in two minutes.
    pub async fn start_api_server(&self, place: Where) -> Result<(), RealClustersError> {
        let Some(cluster) = self.cluster(place) else { return Ok(()) };
        cluster.start_daemon("kube-apiserver").await?;
        cluster.answers().await
    }

    fn cluster(&self, place: Where) -> Option<&RealCluster> {
        match place {
            Where::Origin => Some(&self.origin),
            Where::Donor => Some(&self.donor),
            Where::Router => None,
        }
    }

    /// The router's end of the donor's line. When it comes up again its address and route are as before.
    async fn line(&self, state: &str) -> Result<(), RealClustersError> {
        let words = ["link", "set", self.donor.name(), state];
        let output = self
            .command_in(Where::Router, Path::new("ip"), &words)
            .output()
            .await
            .map_err(|source| RealClustersError::Io { path: "ip".into(), source })?;
        if output.status.success() {
            return Ok(());
        }
        Err(RealClustersError::Command {
            cluster: "the router",
            command: format!("ip {}", words.join(" ")),
            status: output.status,
            stderr: String::from_utf8_lossy(&output.stderr).trim().to_owned(),
        })
    }
}
