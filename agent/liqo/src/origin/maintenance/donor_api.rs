//! Calls the donor's API server with a slice's credential, the weakest that this cluster has there.

use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use comity_agent_kubernetes::api::donor_client;
use comity_agent_kubernetes::call::call;
use comity_agent_model::delivery_error::DeliveryError;
use k8s_openapi::api::core::v1::Secret;
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Api, Client};
use tokio::time::timeout;
use zeroize::Zeroize as _;

use crate::origin::token_secret::KUBECONFIG_KEY;
use crate::origin::{LiqoOrigin, objects};
use crate::tenant_namespace_of;

/// Time limit of one call to a donor: the return of a line is noticed within one or two seconds.
const ANSWER_TIMEOUT: Duration = Duration::from_millis(1_500);

impl LiqoOrigin {
    /// A client with a new connection: after a network failure an old one may hang for long.
    pub(super) async fn donor_api(&self, node: &str, donor: &str) -> Result<Client, DeliveryError> {
        let (kubeconfig, unusable) = self.slice_kubeconfig(node, donor).await?;
        let options = KubeConfigOptions::default();
        let mut config =
            kube::Config::from_custom_kubeconfig(kubeconfig, &options).await.map_err(|_| unusable.clone())?;
        if config.accept_invalid_certs || config.cluster_url.scheme_str() != Some("https") {
            return Err(unusable);
        }
        config.proxy_url = None;
        config.connect_timeout = Some(ANSWER_TIMEOUT);
        donor_client(config).map_err(|_| unusable)
    }

    /// Since when the certificate of a slice is valid, in seconds since 1970.
    ///
    /// # Errors
    /// [`DeliveryError`]; nothing of it is quoted.
    pub(super) async fn slice_certificate_since(&self, node: &str, donor: &str) -> Result<i64, DeliveryError> {
        let (kubeconfig, unusable) = self.slice_kubeconfig(node, donor).await?;
        valid_since(&kubeconfig).ok_or(unusable)
    }

    /// The kubeconfig of a slice, and the error for one that cannot be used.
    async fn slice_kubeconfig(&self, node: &str, donor: &str) -> Result<(Kubeconfig, DeliveryError), DeliveryError> {
        let namespace = tenant_namespace_of(donor);
        let name = objects::slice_secret(node);
        let secrets = Api::<Secret>::namespaced(self.client.clone(), &namespace);
        let mut secret = call(&format!("read Secret {namespace}/{name}"), secrets.get(&name)).await?;
        // The cause is dropped, because it might quote the kubeconfig.
        let unusable = DeliveryError::temporary(format!("use Secret {namespace}/{name}"), "it is no kubeconfig");
        let data = secret.data.get_or_insert_default();
        let kubeconfig = data.get(KUBECONFIG_KEY).and_then(|text| std::str::from_utf8(&text.0).ok());
        let parsed = kubeconfig.and_then(|text| Kubeconfig::from_yaml(text).ok());
        data.values_mut().for_each(|value| value.0.zeroize());
        parsed.map(|kubeconfig| (kubeconfig, unusable.clone())).ok_or(unusable)
    }

    /// Whether the donor's API server answers.
    ///
    /// # Errors
    /// [`DeliveryError`] when this cluster cannot check that.
    pub(super) async fn ask_donor(&self, node: &str, donor: &str) -> Result<bool, DeliveryError> {
        let client = self.donor_api(node, donor).await?;
        let answer = timeout(ANSWER_TIMEOUT, client.apiserver_version()).await;
        Ok(answer.is_ok_and(|answer| answer.is_ok()))
    }
}

/// Since when the client certificate of a kubeconfig's user is valid.
fn valid_since(kubeconfig: &Kubeconfig) -> Option<i64> {
    let user = kubeconfig.auth_infos.first()?.auth_info.as_ref()?;
    let pem = STANDARD.decode(user.client_certificate_data.as_ref()?).ok()?;
    let (_, pem) = x509_parser::pem::parse_x509_pem(&pem).ok()?;
    Some(pem.parse_x509().ok()?.validity().not_before.timestamp())
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    #[test]
    fn a_certificate_shows_since_when_it_is_valid() {
        let mut params = rcgen::CertificateParams::new(vec!["slice".to_owned()]).unwrap();
        params.not_before = rcgen::date_time_ymd(2026, 3, 1);
        let certificate = params.self_signed(&rcgen::KeyPair::generate().unwrap()).unwrap().pem();
        let kubeconfig =
            |user: &str| Kubeconfig::from_yaml(&format!("users: [{{name: u, user: {{{user}}}}}]")).unwrap();
        let data = format!("client-certificate-data: {}", STANDARD.encode(certificate));
        assert_eq!(valid_since(&kubeconfig(&data)), Some(1_772_323_200));
        assert_eq!(valid_since(&kubeconfig("client-certificate-data: bm8=")), None);
        assert_eq!(valid_since(&kubeconfig("token: secret")), None);
    }
}
