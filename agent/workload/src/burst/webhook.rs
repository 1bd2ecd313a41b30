//! The admission webhook that gives GPU pods of opted-in namespaces a scheduling gate, so that they can be pinned to a
//! lease.
//!
//! Its failure policy is `Ignore`: without it pending pods get tolerations instead. The agent makes the certificates
//! itself: a CA whose key is discarded after it signed one server certificate. Both are in a Secret, the CA also in the
//! webhook's configuration, and replaced long before they expire.

mod configuration;
mod review;
mod secret;
mod server;

use std::sync::Arc;
use std::time::Duration;

use comity_agent_kubernetes::https_server;
use comity_agent_model::node_service::NodeService;
use comity_runtime::Clock;
use futures::StreamExt as _;
use k8s_openapi::api::admissionregistration::v1::MutatingWebhookConfiguration;
use kube::Api;
use kube::runtime::{WatchStreamExt as _, watcher};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::settings::WebhookSettings;
use server::Webhook;

pub use configuration::remove as remove_configuration;

/// How often the configuration is checked without an event.
const CHECK_INTERVAL: Duration = Duration::from_secs(60);
/// Pause after a failure.
const WEBHOOK_RETRY_INTERVAL: Duration = Duration::from_secs(2);

/// Serves reviews, and keeps certificates and configuration up to date, until stopped.
pub async fn run(
    client: kube::Client,
    settings: WebhookSettings,
    service: watch::Receiver<NodeService>,
    clock: Arc<dyn Clock>,
    stop: CancellationToken,
) {
    let (show, shown) = watch::channel(None);
    let keeper = Keeper { client, settings, service, show, clock };
    let served = async {
        let listener =
            https_server::listen(keeper.settings.listen, "burst.webhook.listen", keeper.clock.as_ref()).await;
        tokio::join!(keeper.keep_configured(), https_server::serve(listener, shown));
    };
    tokio::select! {
        () = stop.cancelled() => {}
        () = served => {}
    }
}

struct Keeper {
    client: kube::Client,
    settings: WebhookSettings,
    /// Pods are held only where this cluster can have virtual nodes.
    service: watch::Receiver<NodeService>,
    show: watch::Sender<Option<Arc<Webhook>>>,
    clock: Arc<dyn Clock>,
}

impl Keeper {
    /// Keeps certificates and configuration up to date. Never ends.
    async fn keep_configured(&self) {
        let api = Api::<MutatingWebhookConfiguration>::all(self.client.clone());
        let only = watcher::Config::default().fields(&format!("metadata.name={}", configuration::NAME));
        let mut changes = watcher(api, only).default_backoff().boxed();
        let mut is_said = false;
        loop {
            let pause = match self.update().await {
                Ok(()) => {
                    if !is_said {
                        tracing::info!(listen = %self.settings.listen, "the admission webhook of burst serves");
                    }
                    is_said = true;
                    CHECK_INTERVAL
                }
                Err(error) => {
                    tracing::warn!(
                        error,
                        "the admission webhook cannot be set up yet; meanwhile pending pods get tolerations"
                    );
                    WEBHOOK_RETRY_INTERVAL
                }
            };
            tokio::select! {
                () = self.clock.sleep(pause) => {}
                Some(_) = changes.next() => {}
            }
        }
    }

    async fn update(&self) -> Result<(), String> {
        let certificates = secret::ensure(&self.client, &self.settings, self.clock.now()).await?;
        // Callers trust the new CA before the new certificate is shown, and the old CA while it is valid.
        configuration::ensure(&self.client, &self.settings, &certificates.ca_pem).await?;
        if self.show.borrow().as_ref().is_none_or(|shown| !shown.shows(&certificates)) {
            let webhook = Webhook::new(&certificates, self.service.clone())
                .map_err(|error| format!("{error}; delete Secret {} to have them made again", secret::SECRET))?;
            self.show.send_replace(Some(Arc::new(webhook)));
        }
        Ok(())
    }
}
