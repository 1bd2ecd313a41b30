//! The donor's API server, with the credential of a slice: the least that this cluster has over there.

use std::time::Duration;

use k8s_openapi::api::core::v1::Secret;
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Api, Client};
use tokio::time::timeout;
use zeroize::Zeroize as _;

use crate::delivery::DeliveryError;
use crate::delivery::call::call;
use crate::liqo::origin::LiqoOrigin;
use crate::liqo::tenant_namespace_of;

/// Key in the Secrets that Liqo makes.
const KUBECONFIG: &str = "kubeconfig";
/// Longest that one question to a donor may take: a line that was cut is noticed within a second or two of its return.
const PATIENCE: Duration = Duration::from_millis(1_500);

impl LiqoOrigin {
    /// A new connection, for one that broke with the line may hang for long.
    pub(super) async fn donor_api(&self, lease_id: &str, donor: &str) -> Result<Client, DeliveryError> {
        let namespace = tenant_namespace_of(donor);
        let name = format!("kubeconfig-resourceslice-{lease_id}");
        let secrets = Api::<Secret>::namespaced(self.client.clone(), &namespace);
        let mut secret = call(&format!("read Secret {namespace}/{name}"), secrets.get(&name)).await?;
        // What is wrong with it is not told: it might quote it.
        let unusable = || DeliveryError::temporary(format!("use Secret {namespace}/{name}"), "it is no kubeconfig");
        let data = secret.data.get_or_insert_default();
        let kubeconfig = data.get(KUBECONFIG).and_then(|text| std::str::from_utf8(&text.0).ok());
        let parsed = kubeconfig.and_then(|text| Kubeconfig::from_yaml(text).ok());
        data.values_mut().for_each(|value| value.0.zeroize());
        let options = KubeConfigOptions::default();
        let mut config = kube::Config::from_custom_kubeconfig(parsed.ok_or_else(unusable)?, &options)
            .await
            .map_err(|_| unusable())?;
        if config.accept_invalid_certs || config.cluster_url.scheme_str() != Some("https") {
            return Err(unusable());
        }
        config.proxy_url = None;
        config.connect_timeout = Some(PATIENCE);
        Client::try_from(config).map_err(|_| unusable())
    }

    /// Whether the donor's API server answers.
    ///
    /// # Errors
    /// [`DeliveryError`] when this cluster cannot tell.
    pub(super) async fn ask_donor(&self, lease_id: &str, donor: &str) -> Result<bool, DeliveryError> {
        let client = self.donor_api(lease_id, donor).await?;
        let answer = timeout(PATIENCE, client.apiserver_version()).await;
        Ok(answer.is_ok_and(|answer| answer.is_ok()))
    }
}
