//! The agent's admission webhooks: one HTTPS server with one certificate, and a registration for each review.
//!
//! The cluster's owner installs the registrations and the certificate (`comity-agent webhook install`). The agent only
//! reads them, and says what is wrong: whoever may write a registration has every right in the cluster.
//!
//! API servers have no client certificate by default, so each path ends with a token that only the registration and the
//! agent know. Other callers get no answer.

mod path_token;
mod registration;
mod server;
mod serving_secret;
mod webhook_check;
mod webhook_install;
mod webhook_settings;

use std::sync::Arc;
use std::time::Duration;

use comity_agent_kubernetes::https_server;
use comity_runtime::Clock;
use futures::future::BoxFuture;
use kube::core::DynamicObject;
use kube::core::admission::AdmissionReview;
use prometheus::IntGauge;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use server::Webhook;

pub use registration::Registration;
pub use webhook_check::check_webhooks;
pub use webhook_install::{Change, ChangeKind, Effect, Renewal, WebhookObjects, find_secret, install};
pub use webhook_settings::WebhookSettings;

/// How often the Secret and the registrations are read.
const CHECK_INTERVAL: Duration = Duration::from_secs(10);
/// Label of registrations of this agent's webhooks.
const MANAGED_BY: (&str, &str) = ("app.kubernetes.io/managed-by", "comity-agent");
/// Remedy for everything that the owner installs.
pub const INSTALL: &str = "the cluster's owner runs `comity-agent webhook install --config AGENT.YAML`";

/// One kind of review, with a registration of its own.
pub trait Review: Send + Sync {
    /// The objects that the API server sends.
    fn registration(&self) -> Registration;

    /// Called whenever its registration was found right.
    fn registered(&self) {}

    /// Answers a review.
    ///
    /// # Errors
    /// A sentence, if the body is no review. The registration's failure policy then decides.
    fn answer<'a>(&'a self, body: &'a [u8]) -> BoxFuture<'a, Result<AdmissionReview<DynamicObject>, String>>;
}

/// The reviews that the agent answers.
pub type Reviews = Arc<[Box<dyn Review>]>;

/// What serves the webhooks.
pub struct WebhookServer {
    /// With the agent's rights.
    pub client: kube::Client,
    /// Address and place of the certificate.
    pub settings: WebhookSettings,
    /// What is answered.
    pub reviews: Reviews,
    /// Time.
    pub clock: Arc<dyn Clock>,
    /// Shows when the certificate that is served ends, in seconds since 1970.
    pub certificate_end: IntGauge,
}

impl WebhookServer {
    /// Serves reviews with the owner's certificate until stopped, and logs what the owner has to do.
    pub async fn run(self, stop: CancellationToken) {
        let (show, shown) = watch::channel(None);
        let served = async {
            let listener = https_server::listen(self.settings.listen, "webhook.listen", self.clock.as_ref()).await;
            tokio::join!(self.follow(&show), https_server::serve(listener, shown));
        };
        tokio::select! {
            () = stop.cancelled() => {}
            () = served => {}
        }
    }

    /// Follows the Secret, and compares the registrations with it. Never ends.
    async fn follow(&self, show: &watch::Sender<Option<Arc<Webhook>>>) {
        let mut last = None;
        loop {
            let now = self.update(show).await;
            if last.as_ref() != Some(&now) {
                match &now {
                    Ok(()) => tracing::info!(listen = %self.settings.listen, "the admission webhooks are registered"),
                    Err(problem) => tracing::warn!(problem, "the admission webhooks need the cluster's owner"),
                }
            }
            last = Some(now);
            self.clock.sleep(CHECK_INTERVAL).await;
        }
    }

    async fn update(&self, show: &watch::Sender<Option<Arc<Webhook>>>) -> Result<(), String> {
        let secret = serving_secret::load(&self.client, &self.settings).await?;
        if show.borrow().as_ref().is_none_or(|shown| !shown.shows(&secret)) {
            let webhook = Webhook::new(&secret, Arc::clone(&self.reviews))
                .map_err(|error| format!("Secret {}: {error}; {INSTALL}", serving_secret::SECRET))?;
            show.send_replace(Some(Arc::new(webhook)));
            self.certificate_end.set(secret.end().and_then(|end| i64::try_from(end).ok()).unwrap_or_default());
        }
        let mut result = Ok(());
        for review in self.reviews.iter() {
            let registrations = [review.registration()];
            let now = self.clock.now();
            match webhook_check::check_registered(&self.client, &self.settings, &registrations, &secret, now).await {
                Ok(()) => review.registered(),
                Err(problem) => result = result.and(Err(problem)),
            }
        }
        result?;
        webhook_check::check_end(&self.settings, &secret, self.clock.now())
    }
}
