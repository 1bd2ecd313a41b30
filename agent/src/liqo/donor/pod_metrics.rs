//! Metrics of offloaded pods for the cluster that they come from: `metrics.liqo.io`, an API behind this cluster's API server,
//! which Liqo's virtual-kubelets ask for what their own cluster's metrics-server asks them for.
//!
//! Liqo has a program for it, its metric-agent. That tells everybody who has a slice about the pods of any cluster that is
//! named, and anybody at all who reaches its Service; it adds up what this cluster's nodes do; and it may ask kubelets for
//! anything. Here a slice's credential is told of that slice's pods, while the lease is in force, and of nothing else. The
//! figures are those of this cluster's own metrics-server, so no kubelet is asked.

mod caller;
mod counters;
mod front_proxy;
mod registration;
mod server;

use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

use comity_runtime::Clock;
use kube::Client;
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::Grants;
use crate::burst::webhook::make_certificates;
use crate::config::PodMetricsSettings;
use front_proxy::FrontProxy;
use server::Served;

pub use registration::remove as remove_registration;

/// How often certificates and registration are looked at.
const LOOK_EVERY: Duration = Duration::from_secs(60);
const RETRY: Duration = Duration::from_secs(5);
/// Certificates are good for three times as long.
const RENEW_AFTER: Duration = Duration::from_secs(30 * 86_400);

/// Serves until told to stop. Nothing else depends on it.
pub async fn run(
    client: Client,
    settings: PodMetricsSettings,
    grants: watch::Receiver<Arc<Grants>>,
    clock: Arc<dyn Clock>,
    stop: CancellationToken,
) {
    let listener = loop {
        match TcpListener::bind(settings.listen).await {
            Ok(listener) => break listener,
            Err(error) => {
                tracing::warn!(listen = %settings.listen, %error, "pods' metrics cannot be served; free the port or change liqo.podMetrics.listen");
            }
        }
        tokio::select! {
            () = stop.cancelled() => return,
            () = clock.sleep(RETRY) => {}
        }
    };
    let (show, served) = watch::channel(None);
    let answers = Arc::new(server::Answers { client: client.clone(), grants, counters: Mutex::default() });
    tokio::select! {
        () = stop.cancelled() => {}
        () = keep_right(&client, &settings, &show, clock.as_ref()) => {}
        () = server::serve(listener, served, answers) => {}
    }
}

/// Never ends.
async fn keep_right(
    client: &Client,
    settings: &PodMetricsSettings,
    show: &watch::Sender<Option<Arc<Served>>>,
    clock: &dyn Clock,
) {
    let mut shown: Option<Shown> = None;
    loop {
        let pause = match once(client, settings, &mut shown, show, clock.now()).await {
            Ok(()) => LOOK_EVERY,
            Err(error) => {
                tracing::warn!(error, "metrics of offloaded pods are not served yet");
                RETRY
            }
        };
        clock.sleep(pause).await;
    }
}

/// What is in force: whom the certificate trusts, and since when.
struct Shown {
    front_proxy: FrontProxy,
    ca_pem: String,
    since: SystemTime,
}

async fn once(
    client: &Client,
    settings: &PodMetricsSettings,
    shown: &mut Option<Shown>,
    show: &watch::Sender<Option<Arc<Served>>>,
    now: SystemTime,
) -> Result<(), String> {
    let front_proxy = FrontProxy::read(client).await?;
    let is_good = |shown: &Shown| shown.front_proxy == front_proxy && now < shown.since + RENEW_AFTER;
    let is_first = shown.is_none();
    if !shown.as_ref().is_some_and(is_good) {
        let host = format!("{}.{}.svc", settings.service.name, settings.service.namespace);
        // Its key is nowhere but here: each start makes another, and tells the API server.
        let fresh = make_certificates(&host, "", now).map_err(|error| format!("no certificate for {host}: {error}"))?;
        let served = Served::new(&fresh, front_proxy.clone())?;
        registration::ensure(client, &settings.service, &fresh.ca_pem).await?;
        show.send_replace(Some(Arc::new(served)));
        *shown = Some(Shown { front_proxy, ca_pem: fresh.ca_pem, since: now });
    } else if let Some(shown) = shown {
        registration::ensure(client, &settings.service, &shown.ca_pem).await?;
    }
    if is_first {
        tracing::info!(listen = %settings.listen, "metrics of offloaded pods are served");
    }
    Ok(())
}
