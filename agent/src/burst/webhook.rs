//! The admission webhook that gives GPU pods of opted-in namespaces a scheduling gate, so that they can be pinned to a lease.
//!
//! It is a help, not a guard: its failure policy is `Ignore`, and without it pending pods are rescued by tolerations. Its
//! certificates are the agent's own: a CA whose key is thrown away as soon as it has signed one server certificate, both in
//! a Secret, the CA also in the webhook's configuration. They are replaced long before they end.

mod certificate;
mod configuration;
mod review;
mod server;

use std::sync::Arc;
use std::time::Duration;

use comity_runtime::Clock;
use futures::StreamExt as _;
use k8s_openapi::api::admissionregistration::v1::MutatingWebhookConfiguration;
use kube::Api;
use kube::runtime::{WatchStreamExt as _, watcher};
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use super::settings::WebhookSettings;

pub(crate) use certificate::{Certificates, make as make_certificates};
pub use configuration::remove as remove_configuration;

/// How often everything is looked at, whatever the watch says.
const LOOK_EVERY: Duration = Duration::from_secs(60);
/// After a failure.
const RETRY: Duration = Duration::from_secs(2);

/// Serves reviews, and keeps certificates and configuration right, until told to stop.
pub async fn run(client: kube::Client, settings: WebhookSettings, clock: Arc<dyn Clock>, stop: CancellationToken) {
    let listener = loop {
        match TcpListener::bind(settings.listen).await {
            Ok(listener) => break listener,
            Err(error) => {
                tracing::warn!(listen = %settings.listen, %error, "the webhook cannot listen; free the port or change burst.webhook.listen");
            }
        }
        tokio::select! {
            () = stop.cancelled() => return,
            () = clock.sleep(RETRY) => {}
        }
    };
    let identity = server::Identity::default();
    let keep = keep_right(&client, &settings, &identity, clock.as_ref());
    tokio::select! {
        () = stop.cancelled() => {}
        () = keep => {}
        () = server::serve(listener, identity.clone()) => {}
    }
}

/// Never ends.
async fn keep_right(client: &kube::Client, settings: &WebhookSettings, identity: &server::Identity, clock: &dyn Clock) {
    let api = Api::<MutatingWebhookConfiguration>::all(client.clone());
    let only = watcher::Config::default().fields(&format!("metadata.name={}", configuration::NAME));
    let mut changes = watcher(api, only).default_backoff().boxed();
    let mut is_said = false;
    loop {
        let pause = match once(client, settings, identity, clock).await {
            Ok(()) => {
                if !is_said {
                    tracing::info!(listen = %settings.listen, "the admission webhook of burst serves");
                }
                is_said = true;
                LOOK_EVERY
            }
            Err(error) => {
                tracing::warn!(error, "the admission webhook cannot be set up yet; pending pods are rescued meanwhile");
                RETRY
            }
        };
        tokio::select! {
            () = clock.sleep(pause) => {}
            Some(_) = changes.next() => {}
        }
    }
}

async fn once(
    client: &kube::Client,
    settings: &WebhookSettings,
    identity: &server::Identity,
    clock: &dyn Clock,
) -> Result<(), String> {
    let certificates = certificate::ensure(client, settings, clock.now()).await?;
    // Whoever connects knows the new CA before the new certificate is shown, and the old one for as long as it is good.
    configuration::ensure(client, settings, &certificates.ca_pem).await?;
    identity.show(&certificates)
}
