//! Watches Kubernetes objects and records the time of each change.

use std::io::BufReader;
use std::process::{Child, Stdio};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context as _, Result};
use comity_testkit::{Binaries, RealCluster, RealClusters, Where};
use serde_json::Value;

use crate::wait::until;

/// Milliseconds since 1970, by the clock that brokers and containers of one machine share.
#[must_use]
pub fn now_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

/// A change of an object.
#[derive(Clone, Debug)]
pub struct Seen {
    /// Time of observation, in milliseconds since 1970.
    pub at_ms: u64,
    /// `ADDED`, `MODIFIED` or `DELETED`.
    pub kind: String,
    /// The object.
    pub object: Value,
}

/// A `kubectl get --watch` on a cluster's node, which ends when dropped.
pub struct Watch {
    child: Child,
    reader: Option<JoinHandle<()>>,
    seen: Arc<Mutex<Vec<Seen>>>,
}

impl Watch {
    /// Starts watching; `args` select the objects, as in `["pods", "-n", "team-a"]`.
    ///
    /// # Errors
    /// When kubectl cannot be started.
    pub fn start(
        clusters: &RealClusters,
        cluster: &RealCluster,
        place: Where,
        binaries: &Binaries,
        args: &[&str],
    ) -> Result<Self> {
        let kubeconfig = cluster.admin_kubeconfig_path();
        let mut words = vec!["--kubeconfig", kubeconfig.to_str().context("paths of tests are text")?, "get"];
        words.extend_from_slice(args);
        words.extend(["--watch", "--output-watch-events", "-o", "json"]);
        let mut command = clusters.command_in(place, &binaries.program("kubectl"), &words).into_std();
        let mut child = command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .context("start kubectl get --watch")?;
        let output = child.stdout.take().context("its output is piped")?;
        let seen = Arc::new(Mutex::new(Vec::new()));
        let kept = Arc::clone(&seen);
        let reader = std::thread::spawn(move || {
            let events = serde_json::Deserializer::from_reader(BufReader::new(output)).into_iter::<Value>();
            for event in events.map_while(Result::ok) {
                let kind = event["type"].as_str().unwrap_or_default().to_owned();
                let change = Seen { at_ms: now_ms(), kind, object: event["object"].clone() };
                kept.lock().unwrap_or_else(PoisonError::into_inner).push(change);
            }
        });
        Ok(Self { child, reader: Some(reader), seen })
    }

    /// All changes so far, in order.
    pub fn seen(&self) -> MutexGuard<'_, Vec<Seen>> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for the first change for which `wanted` holds.
    ///
    /// # Errors
    /// When it does not come within `limit`.
    pub async fn first(&self, what: &str, limit: Duration, wanted: impl Fn(&Seen) -> bool) -> Result<Seen> {
        until(what, limit, async || Ok(self.seen().iter().find(|seen| wanted(seen)).cloned())).await
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        // Errors do not matter: it may have ended with its cluster.
        drop(self.child.kill());
        drop(self.child.wait());
        if let Some(reader) = self.reader.take() {
            drop(reader.join());
        }
    }
}
