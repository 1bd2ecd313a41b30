//! The donor's API server, with the credential of a slice: the least that this cluster has over there.

use std::time::Duration;

use futures::FutureExt as _;
use k8s_openapi::api::core::v1::Secret;
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Api, Client};
use tokio::net::TcpStream;
use tokio::time::timeout;
use zeroize::Zeroize as _;

use crate::delivery::DeliveryError;
use crate::delivery::call::call;
use crate::liqo::origin::LiqoOrigin;
use crate::liqo::tenant_namespace_of;

/// Port of https.
const HTTPS: u16 = 443;
/// Key in the Secrets that Liqo makes.
const KUBECONFIG: &str = "kubeconfig";
/// Longest that one question to a donor may take: a line that was cut is noticed within a second or two of its return.
const PATIENCE: Duration = Duration::from_millis(1_500);

/// How much of a donor answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Answer {
    /// Its API server.
    ApiServer,
    /// The line to it and the other end of the tunnel, without its API server: its pods run on, and are reached.
    LineOnly,
    /// Nothing.
    Nothing,
}

impl LiqoOrigin {
    /// A new connection, for one that broke with the line may hang for long.
    pub(super) async fn donor_api(&self, lease_id: &str, donor: &str) -> Result<Client, DeliveryError> {
        let config = self.donor_config(lease_id, donor).await?;
        Client::try_from(config).map_err(|_| unusable(lease_id, donor))
    }

    /// Where the donor's API server is, and this cluster's credential there.
    async fn donor_config(&self, lease_id: &str, donor: &str) -> Result<kube::Config, DeliveryError> {
        let (namespace, name) = (tenant_namespace_of(donor), secret_name(lease_id));
        let secrets = Api::<Secret>::namespaced(self.client.clone(), &namespace);
        let mut secret = call(&format!("read Secret {namespace}/{name}"), secrets.get(&name)).await?;
        let data = secret.data.get_or_insert_default();
        let kubeconfig = data.get(KUBECONFIG).and_then(|text| std::str::from_utf8(&text.0).ok());
        let parsed = kubeconfig.and_then(|text| Kubeconfig::from_yaml(text).ok());
        data.values_mut().for_each(|value| value.0.zeroize());
        let options = KubeConfigOptions::default();
        let parsed = parsed.ok_or_else(|| unusable(lease_id, donor))?;
        let mut config =
            kube::Config::from_custom_kubeconfig(parsed, &options).await.map_err(|_| unusable(lease_id, donor))?;
        if config.accept_invalid_certs || config.cluster_url.scheme_str() != Some("https") {
            return Err(unusable(lease_id, donor));
        }
        config.proxy_url = None;
        config.connect_timeout = Some(PATIENCE);
        Ok(config)
    }

    /// How much of the donor answers.
    ///
    /// # Errors
    /// [`DeliveryError`] when this cluster cannot tell.
    pub(super) async fn ask_donor(&self, lease_id: &str, donor: &str) -> Result<Answer, DeliveryError> {
        let config = self.donor_config(lease_id, donor).await?;
        let host = config.cluster_url.host().unwrap_or_default().trim_matches(['[', ']']).to_owned();
        let port = config.cluster_url.port_u16().unwrap_or(HTTPS);
        let client = Client::try_from(config).map_err(|_| unusable(lease_id, donor))?;
        // The other end of the tunnel takes connections whether or not the API server behind it lives.
        let line = timeout(PATIENCE, TcpStream::connect((host, port)));
        let api = timeout(PATIENCE, client.apiserver_version());
        let (line, api) = tokio::join!(line.map(|outcome| outcome.is_ok_and(|made| made.is_ok())), api);
        Ok(match api {
            Ok(Ok(_)) => Answer::ApiServer,
            _ if line => Answer::LineOnly,
            _ => Answer::Nothing,
        })
    }
}

fn secret_name(lease_id: &str) -> String {
    format!("kubeconfig-resourceslice-{lease_id}")
}

/// What is wrong with a kubeconfig is not told: it might quote it.
fn unusable(lease_id: &str, donor: &str) -> DeliveryError {
    let operation = format!("use Secret {}/{}", tenant_namespace_of(donor), secret_name(lease_id));
    DeliveryError::temporary(operation, "it is no kubeconfig")
}
