//! Injects faults in the clusters and in the network between them.

use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use super::{RealClusters, RealClustersError, Where};

/// The quality of the network between origin and donor; a second donor keeps its own. Processes in the router always
/// reach the origin, and the donor unless the network is cut.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Line {
    /// Without impairment.
    Whole,
    /// Drops all packets.
    Cut,
    /// Delay, jitter and loss in each direction, without reordering.
    Impaired {
        /// Delay of each packet, at most 10 s.
        delay: Duration,
        /// Maximum additional delay, uniformly distributed, at most 10 s.
        jitter: Duration,
        /// Independent packet loss in percent.
        loss_percent: f64,
    },
}

impl Line {
    /// Applies this quality to running clusters, whose files are in `dir`.
    ///
    /// # Errors
    ///
    /// When the router is gone, or a value is out of its bounds.
    pub async fn set(self, dir: &Path) -> Result<(), RealClustersError> {
        let words = match self {
            Self::Whole => vec!["restore".to_owned()],
            Self::Cut => vec!["cut".to_owned()],
            Self::Impaired { delay, jitter, loss_percent } => vec![
                "impair".to_owned(),
                format!("-delay={}us", delay.as_micros()),
                format!("-jitter={}us", jitter.as_micros()),
                format!("-loss={loss_percent}"),
            ],
        };
        let mut command = tokio::process::Command::new("bash");
        command.arg(dir.join("real-clusters")).arg("line").arg(dir).args(&words).stdin(Stdio::null());
        let output = command.output().await.map_err(|source| RealClustersError::Io { path: dir.to_owned(), source })?;
        if output.status.success() {
            return Ok(());
        }
        Err(RealClustersError::Command {
            cluster: "the router",
            command: format!("line {}", words.join(" ")),
            status: output.status,
            stderr: String::from_utf8_lossy(&output.stderr).trim().to_owned(),
        })
    }
}

impl RealClusters {
    /// Sets the quality of the network between origin and donor.
    ///
    /// # Errors
    ///
    /// As [`Line::set`].
    pub async fn set_line(&self, line: Line) -> Result<(), RealClustersError> {
        line.set(self.dir()).await
    }

    /// Kills a cluster's API server with SIGKILL; its containers keep running. Does nothing for the router.
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

    /// Restarts a killed API server and waits until it answers.
    ///
    /// # Errors
    ///
    /// When it cannot be started or does not answer within two minutes.
    pub async fn start_api_server(&self, place: Where) -> Result<(), RealClustersError> {
        let Some(cluster) = self.cluster(place) else { return Ok(()) };
        cluster.start_daemon("kube-apiserver").await?;
        cluster.answers().await
    }
}
