//! Reads the load of GPUs from NVIDIA's DCGM exporters.

use std::sync::Arc;
use std::time::Duration;

use comity_runtime::Clock;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::gpu_load::{GpuLoad, LOAD_METRICS};
use crate::exporters::{ExporterEndpoint, ExporterReader};

/// Pause between two rounds: the exporter's own interval.
const INTERVAL: Duration = Duration::from_secs(30);

/// Reads all exporters, again and again, until stopped. An exporter that does not answer leaves its pods without
/// figures.
pub(crate) async fn scrape(
    endpoint: ExporterEndpoint,
    load: watch::Sender<GpuLoad>,
    clock: Arc<dyn Clock>,
    stop: CancellationToken,
) {
    let mut reader = ExporterReader::new(endpoint);
    loop {
        let mut read = GpuLoad::default();
        let add = |_, page: &str| {
            read.add(page);
            Ok(())
        };
        let failures = reader.read(&LOAD_METRICS, add).await;
        reader.log(failures, "the load of GPUs is not known; their leases count as in use");
        load.send_replace(read);
        tokio::select! {
            () = stop.cancelled() => return,
            () = clock.sleep(INTERVAL) => {}
        }
    }
}
