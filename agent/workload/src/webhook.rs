//! The agent's admission webhooks: one HTTPS server with one certificate, and a registration for each review.
//!
//! API servers have no client certificate by default, so each path ends with a token that only the registration and the
//! agent know. Other callers get no answer.
//!
//! The agent makes the certificates itself: a CA whose key is discarded after it signed one server certificate. Both
//! are in a Secret, the CA also in the registrations, and replaced long before they expire.

mod path_token;
mod registration;
mod secret;
mod server;
mod webhook_settings;

use std::sync::Arc;
use std::time::Duration;

use comity_agent_kubernetes::https_server;
use comity_runtime::Clock;
use futures::StreamExt as _;
use futures::future::BoxFuture;
use k8s_openapi::api::admissionregistration::v1::MutatingWebhookConfiguration;
use kube::Api;
use kube::core::DynamicObject;
use kube::core::admission::AdmissionReview;
use kube::runtime::{WatchStreamExt as _, watcher};
use serde_json::Value;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use server::Webhook;

pub use registration::remove;
pub use webhook_settings::WebhookSettings;

/// How often the registrations are checked without an event.
const CHECK_INTERVAL: Duration = Duration::from_secs(60);
/// Pause after a failure.
const WEBHOOK_RETRY_INTERVAL: Duration = Duration::from_secs(2);

/// One kind of review, with a registration of its own.
pub trait Review: Send + Sync {
    /// Name of its MutatingWebhookConfiguration.
    fn name(&self) -> &'static str;

    /// Path at which the API server posts it, before the token.
    fn path(&self) -> &'static str;

    /// Its entries in `webhooks`, without `clientConfig`.
    fn webhooks(&self) -> Vec<Value>;

    /// Called once its registration is as [`webhooks`](Self::webhooks) was right before.
    fn registered(&self) {}

    /// Waits until [`webhooks`](Self::webhooks) may have changed.
    fn changed(&self) -> BoxFuture<'_, ()> {
        Box::pin(std::future::pending())
    }

    /// Answers a review.
    ///
    /// # Errors
    /// A sentence, if the body is no review. The registration's failure policy then decides.
    fn answer<'a>(&'a self, body: &'a [u8]) -> BoxFuture<'a, Result<AdmissionReview<DynamicObject>, String>>;
}

/// The reviews that the agent answers.
pub type Reviews = Arc<[Box<dyn Review>]>;

/// Serves reviews, and keeps certificates and registrations up to date, until stopped.
pub async fn run(
    client: kube::Client,
    settings: WebhookSettings,
    reviews: Reviews,
    clock: Arc<dyn Clock>,
    stop: CancellationToken,
) {
    let (show, shown) = watch::channel(None);
    let keeper = Keeper { client, settings, reviews, show, clock };
    let served = async {
        let listener = https_server::listen(keeper.settings.listen, "webhook.listen", keeper.clock.as_ref()).await;
        tokio::join!(keeper.keep_registered(), https_server::serve(listener, shown));
    };
    tokio::select! {
        () = stop.cancelled() => {}
        () = served => {}
    }
}

struct Keeper {
    client: kube::Client,
    settings: WebhookSettings,
    reviews: Reviews,
    show: watch::Sender<Option<Arc<Webhook>>>,
    clock: Arc<dyn Clock>,
}

impl Keeper {
    /// Keeps certificates and registrations up to date. Never ends.
    async fn keep_registered(&self) {
        let api = Api::<MutatingWebhookConfiguration>::all(self.client.clone());
        let watched = self.reviews.iter().map(|review| {
            let only = watcher::Config::default().fields(&format!("metadata.name={}", review.name()));
            watcher(api.clone(), only).default_backoff().boxed()
        });
        let mut changes = futures::stream::select_all(watched);
        let mut is_logged = false;
        loop {
            let pause = match self.update().await {
                Ok(()) => {
                    if !is_logged {
                        tracing::info!(listen = %self.settings.listen, "the admission webhooks are registered");
                    }
                    is_logged = true;
                    CHECK_INTERVAL
                }
                Err(error) => {
                    tracing::warn!(error, "the admission webhooks cannot be set up yet");
                    WEBHOOK_RETRY_INTERVAL
                }
            };
            tokio::select! {
                () = self.clock.sleep(pause) => {}
                _ = futures::future::select_all(self.reviews.iter().map(|review| review.changed())) => {}
                Some(_) = changes.next() => {}
            }
        }
    }

    async fn update(&self) -> Result<(), String> {
        let certificates = secret::ensure(&self.client, &self.settings, self.clock.now()).await?;
        // Callers trust the new CA before the new certificate is shown, and the old CA while it is valid.
        for review in self.reviews.iter() {
            registration::ensure(&self.client, &self.settings, review.as_ref(), &certificates).await?;
        }
        if self.show.borrow().as_ref().is_none_or(|shown| !shown.shows(&certificates)) {
            let webhook = Webhook::new(&certificates, Arc::clone(&self.reviews))
                .map_err(|error| format!("{error}; delete Secret {} to have them made again", secret::SECRET))?;
            self.show.send_replace(Some(Arc::new(webhook)));
        }
        self.reviews.iter().for_each(|review| review.registered());
        Ok(())
    }
}
