//! One reading of the kubelet for all callers.

use std::path::PathBuf;

use bytes::Bytes;
use comity_agent_kubernetes::pod_resources::read_devices;
use tokio::sync::Mutex;
use tokio::time::Instant;

use crate::devices::{DevicePage, MAX_READING_AGE};

/// The page, and the reading that it shows.
pub(super) struct PageCache {
    node: String,
    socket: PathBuf,
    /// Held while the kubelet is read, so that it answers one call at a time.
    last: Mutex<Option<Reading>>,
}

struct Reading {
    began: Instant,
    /// A failure is kept as long as a page: the kubelet refuses callers that ask too often.
    page: Result<Bytes, String>,
}

impl PageCache {
    pub(super) fn new(node: String, socket: PathBuf) -> Self {
        Self { node, socket, last: Mutex::new(None) }
    }

    /// The page, no older than [`MAX_READING_AGE`].
    pub(super) async fn get(&self) -> Result<Bytes, String> {
        let mut last = self.last.lock().await;
        if let Some(Reading { page, .. }) = last.as_ref().filter(|last| last.began.elapsed() < MAX_READING_AGE) {
            return page.clone();
        }
        let began = Instant::now();
        let page = self.read().await;
        if let Err(error) = &page {
            tracing::warn!("{error}");
        }
        last.insert(Reading { began, page }).page.clone()
    }

    async fn read(&self) -> Result<Bytes, String> {
        let devices = read_devices(&self.socket).await.map_err(|error| error.to_string())?;
        let page = DevicePage { node: self.node.clone(), devices };
        page.text().map(Bytes::from).map_err(|error| error.to_string())
    }
}
