//! Keeps virtual nodes of leases in order while they are used.
//!
//! Two things Liqo leaves undone. A finished pod holds its share of the lease at the donor until somebody deletes its
//! shadow there. And after the line between the clusters was cut, a virtual node stays not ready for up to a minute
//! although everything works again, and the Services of this cluster leave its pods out for so long.

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

/// What an operator may choose.
#[derive(Clone, Debug)]
pub struct TendSettings {
    /// How long a finished pod's logs stay readable, unless its share is needed before.
    pub keep_finished: Duration,
}

impl Default for TendSettings {
    fn default() -> Self {
        Self { keep_finished: Duration::from_secs(600) }
    }
}

/// The line to a donor's pods.
pub trait Line: Send + Sync {
    /// Whether the other end answers, by the donor's Liqo id; within two seconds.
    fn answers<'a>(&'a self, donor: &'a str) -> BoxFuture<'a, bool>;
}

impl LiqoOrigin {
    /// Tends the virtual nodes of all leases until stopped.
    pub async fn tend(&self, settings: TendSettings, line: Arc<dyn Line>, stop: CancellationToken) {
        let (tell, nodes) = watch::channel(Arc::new(Nodes::default()));
        let work = async {
            tokio::join!(
                nodes::follow(self.client.clone(), tell),
                keeper::keep_all(self.clone(), line, nodes.clone()),
                release::run(self.clone(), settings, nodes),
            )
        };
        tokio::select! {
            () = stop.cancelled() => {}
            _ = work => {}
        }
    }
}
