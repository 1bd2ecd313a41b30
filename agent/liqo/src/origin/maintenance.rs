//! Maintains virtual nodes while they are used, where Liqo does not.
//!
//! A finished pod uses its share of the lease until its shadow on the donor is deleted. And after a network failure a
//! virtual node stays not ready for up to a minute longer, during which Services leave out its pods. Nor does Liqo tie a
//! virtual node to a namespace.

mod donor_api;
mod finished;
mod heartbeat;
mod keeper;
mod nodes;
mod release;

use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use self::nodes::Nodes;
use super::LiqoOrigin;

/// Settings.
#[derive(Clone, Debug)]
pub struct MaintenanceSettings {
    /// How long a finished pod's logs stay readable, unless its share is needed earlier.
    pub keep_finished: Duration,
}

impl Default for MaintenanceSettings {
    fn default() -> Self {
        Self { keep_finished: Duration::from_secs(600) }
    }
}

/// The line to a donor's pods.
pub trait DonorLine: Send + Sync {
    /// Whether the other end answers, by the donor's Liqo id; within two seconds.
    fn answers<'a>(&'a self, donor: &'a str) -> BoxFuture<'a, bool>;
}

impl LiqoOrigin {
    /// Maintains the virtual nodes of all leases until stopped.
    pub async fn maintain(&self, settings: MaintenanceSettings, line: Arc<dyn DonorLine>, stop: CancellationToken) {
        let (publish, nodes) = watch::channel(Arc::new(Nodes::default()));
        let work = async {
            tokio::join!(
                nodes::follow(self.client.clone(), publish),
                keeper::keep_all(self.clone(), line, nodes.clone()),
                release::run(self.clone(), settings, nodes),
                self.clone().keep_node_namespaces(),
            )
        };
        tokio::select! {
            () = stop.cancelled() => {}
            _ = work => {}
        }
    }
}
