//! Publishes in the offer how fast bytes arrive from other clusters through the tunnels.

#[cfg(test)]
mod tests;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use comity_agent_fabric::measured::{Measured, Meters, ReceivedBytes};
use comity_proto::v1;
use comity_runtime::Clock;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::metrics::Metrics;
use crate::reconcile::parts::Tunnels;

/// Interval of the readings.
const READING_INTERVAL: Duration = Duration::from_secs(1);
/// The offer's data section, with the measured rates.
fn site(said: Option<&v1::DataSite>, measured: &Measured) -> Option<v1::DataSite> {
    if measured.is_empty() {
        return said.cloned();
    }
    let line = |(cluster, mbits): (&String, &u64)| v1::Ingress { cluster: cluster.clone(), mbits: *mbits };
    let measured_from = measured.iter().map(line).collect();
    Some(v1::DataSite { measured_from, ..said.cloned().unwrap_or_default() })
}

/// Measures until stopped; adds the rates to the data section of `offer`, if given.
pub(crate) async fn run(
    tunnels: Arc<Tunnels>,
    metrics: Metrics,
    clock: Arc<dyn Clock>,
    offer: Option<watch::Sender<Option<v1::DataSite>>>,
    stop: CancellationToken,
) {
    let said = offer.as_ref().and_then(|offer| offer.borrow().clone());
    let (mut meters, mut shown) = (Meters::default(), BTreeSet::<String>::new());
    loop {
        tokio::select! {
            () = stop.cancelled() => return,
            () = clock.sleep(READING_INTERVAL) => {}
        }
        let arrived =
            tunnels.epochs().into_keys().filter_map(|peering| Some(ReceivedBytes::of(&tunnels.peer(peering)?)));
        let rates = meters.record(clock.elapsed(), arrived).clone();
        let gauge = &metrics.measured_mbits;
        for cluster in shown.iter().filter(|cluster| !rates.contains_key(*cluster)) {
            // Fails if the label was never set.
            let _ = gauge.remove_label_values(&[cluster]);
        }
        shown = rates.keys().cloned().collect();
        for (cluster, mbits) in meters.exact() {
            gauge.with_label_values(&[cluster]).set(i64::try_from(mbits).unwrap_or(i64::MAX));
        }
        if let Some(offer) = &offer {
            let site = site(said.as_ref(), &rates);
            offer.send_if_modified(|known| std::mem::replace(known, site.clone()) != site);
        }
    }
}
