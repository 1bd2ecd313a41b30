//! Serves metrics of offloaded pods to their origin: the API `metrics.liqo.io`, which Liqo's virtual-kubelets
//! call.
//!
//! Replaces Liqo's metric-agent, which shows any cluster's pods to every slice and to anybody who reaches its Service,
//! and may call kubelets. Here a slice's credential sees only that slice's pods, while the lease is in force. The
//! figures come from this cluster's metrics-server.

mod caller;
mod counters;
mod front_proxy;
mod pod_metrics_settings;
mod registration;
mod server;

use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

use comity_agent_kubernetes::https_server::{self, LIFE, make_certificates};
use comity_runtime::Clock;
use kube::Client;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::Grants;
pub use pod_metrics_settings::PodMetricsSettings;

use front_proxy::FrontProxy;
use server::{Answers, MetricsApi};

pub use registration::remove as remove_registration;

/// Interval of the checks of certificates and registration.
const CHECK_INTERVAL: Duration = Duration::from_secs(60);
const SERVE_RETRY_INTERVAL: Duration = Duration::from_secs(5);
/// Age at which certificates are renewed, long before they end.
const RENEW_AFTER: Duration = Duration::from_secs(LIFE.as_secs() / 3);

/// Serves until told to stop. Nothing else depends on it.
pub async fn run(
    client: Client,
    settings: PodMetricsSettings,
    grants: watch::Receiver<Arc<Grants>>,
    clock: Arc<dyn Clock>,
    stop: CancellationToken,
) {
    let (show, shown) = watch::channel(None);
    let answers = Arc::new(Answers { client: client.clone(), grants, counters: Mutex::default() });
    let served = async {
        let listener = https_server::listen(settings.listen, "liqo.podMetrics.listen", clock.as_ref()).await;
        let keep = keep_current(&client, &settings, &answers, &show, clock.as_ref());
        tokio::join!(keep, https_server::serve(listener, shown));
    };
    tokio::select! {
        () = stop.cancelled() => {}
        () = served => {}
    }
}

/// Keeps certificates and registration up to date. Never ends.
async fn keep_current(
    client: &Client,
    settings: &PodMetricsSettings,
    answers: &Arc<Answers>,
    show: &watch::Sender<Option<Arc<MetricsApi>>>,
    clock: &dyn Clock,
) {
    let mut shown: Option<ActiveConfiguration> = None;
    loop {
        let pause = match update(client, settings, &mut shown, answers, show, clock.now()).await {
            Ok(()) => CHECK_INTERVAL,
            Err(error) => {
                tracing::warn!(error, "metrics of offloaded pods are not served yet");
                SERVE_RETRY_INTERVAL
            }
        };
        clock.sleep(pause).await;
    }
}

/// The configuration in force: the trusted authority, and since when.
struct ActiveConfiguration {
    front_proxy: FrontProxy,
    ca_pem: String,
    since: SystemTime,
}

async fn update(
    client: &Client,
    settings: &PodMetricsSettings,
    shown: &mut Option<ActiveConfiguration>,
    answers: &Arc<Answers>,
    show: &watch::Sender<Option<Arc<MetricsApi>>>,
    now: SystemTime,
) -> Result<(), String> {
    let front_proxy = FrontProxy::read(client).await?;
    let is_good = |shown: &ActiveConfiguration| shown.front_proxy == front_proxy && now < shown.since + RENEW_AFTER;
    let is_first = shown.is_none();
    if !shown.as_ref().is_some_and(is_good) {
        let host = format!("{}.{}.svc", settings.service.name, settings.service.namespace);
        // The key exists only in this process: each start makes a new one and registers its CA.
        let fresh =
            make_certificates(&host, "", now, LIFE).map_err(|error| format!("no certificate for {host}: {error}"))?;
        let served = MetricsApi::new(&fresh, front_proxy.clone(), Arc::clone(answers))?;
        registration::ensure(client, &settings.service, &fresh.ca_pem).await?;
        show.send_replace(Some(Arc::new(served)));
        *shown = Some(ActiveConfiguration { front_proxy, ca_pem: fresh.ca_pem, since: now });
    } else if let Some(shown) = shown {
        registration::ensure(client, &settings.service, &shown.ca_pem).await?;
    }
    if is_first {
        tracing::info!(listen = %settings.listen, "metrics of offloaded pods are served");
    }
    Ok(())
}
