//! What can go wrong between and in the clusters, on purpose.

use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use super::{RealCluster, RealClusters, RealClustersError, Where};

/// The line between the two clusters. What runs in the router reaches the origin whatever it is like, and the donor
/// unless it is cut.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Line {
    /// As it was at first.
    Whole,
    /// Nothing passes.
    Cut,
    /// As lines between institutions are, each way. In order: nothing overtakes.
    Impaired {
        /// How long a packet takes; 10 s at most.
        delay: Duration,
        /// How much longer one may take, evenly spread; 10 s at most.
        jitter: Duration,
        /// Percent of the packets that are lost, each by itself.
        loss_percent: f64,
    },
}

impl Line {
    /// Makes the line of running clusters so, which have their files in `dir`.
    ///
    /// # Errors
    ///
    /// When the router has gone, or a delay, jitter or loss is out of its bounds.
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
    /// Makes the line between the clusters so.
    ///
    /// # Errors
    ///
    /// As [`Line::set`].
    pub async fn set_line(&self, line: Line) -> Result<(), RealClustersError> {
        line.set(self.dir()).await
    }

    /// Kills a cluster's API server, without warning. Its containers run on. Nothing happens in the router, which has
    /// none.
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
}
