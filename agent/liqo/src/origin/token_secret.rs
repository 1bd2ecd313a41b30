//! Access to the donor's API server by token: the agent writes the Secret that Liqo would make of an Identity.
//!
//! Liqo's controller manager recreates its client only when the *certificate* in the Secret changes. So each token
//! comes with a self-signed certificate of no other use: no API server trusts its issuer, and all fall back to the
//! token.

use std::collections::BTreeMap;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use comity_agent_kubernetes::call::{apply, call_opt, own_labels, patching};
use comity_agent_model::delivery_error::DeliveryError;
use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::Secret;
use kube::Api;
use kube::api::{ObjectMeta, Patch};
use rcgen::{CertificateParams, DistinguishedName, DnType, KeyPair};
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};
use zeroize::{Zeroize as _, Zeroizing};

use super::{LiqoOrigin, objects};
use crate::version::Version;
use crate::{BearerToken, IdentityParams, LiqoPeer, PEERING_LABEL, REMOTE_CLUSTER_LABEL, foreign_cluster};

/// Key in the Secret, as Liqo names it.
pub(super) const KUBECONFIG_KEY: &str = "kubeconfig";
/// Label of the ForeignCluster: changes with each token, which makes Liqo's controller manager look at it again.
const TOKEN_LABEL: &str = "comity.dev/token";
/// Liqo's controller manager reads the Secret from a cache, which follows within moments.
const CACHE: Duration = Duration::from_secs(1);

impl LiqoOrigin {
    /// Gives Liqo a token for the donor's control plane: the first one, or its successor.
    ///
    /// # Errors
    /// [`DeliveryError`]; permanent with code `liqo-version` if this cluster's Liqo would keep using the first token.
    pub(super) async fn use_token(
        &self,
        peer: &LiqoPeer,
        params: &IdentityParams,
        token: &BearerToken,
    ) -> Result<(), DeliveryError> {
        if !self.liqo_version().await?.is_none_or(Version::takes_new_tokens) {
            let text = format!(
                "cluster {} lends by token (liqo.authentication: token), and this cluster's Liqo, older than 1.2, \
                 would not take newer tokens; install Liqo 1.2 here, or ask that cluster for liqo.authentication: \
                 keys-exchange",
                peer.cluster
            );
            return Err(DeliveryError::permanent("liqo-version", text));
        }
        self.ensure_tenant_namespace(peer).await?;
        let secrets = Api::<Secret>::namespaced(self.client.clone(), &peer.tenant_namespace());
        let digest = hex::encode(Sha256::digest(token.expose()).get(..8).unwrap_or_default());
        let name = objects::token_secret(peer);
        let found = call_opt(&format!("read Secret {name}"), secrets.get_metadata(&name)).await?;
        let has_it = found.is_some_and(|found| {
            let metadata = found.metadata;
            metadata.deletion_timestamp.is_none()
                && metadata.annotations.is_some_and(|all| all.get(objects::DIGEST) == Some(&digest))
        });
        if !has_it {
            let (certificate, key) = throwaway_certificate(&digest)?;
            let mut secret = secret(peer, params, &digest, kubeconfig(params, token, &certificate, &key));
            let applied = apply(&secrets, &secret).await;
            secret.data.iter_mut().flat_map(BTreeMap::values_mut).for_each(|value| value.0.zeroize());
            applied?;
            tokio::time::sleep(CACHE).await;
        }
        let clusters = self.cluster_wide(&foreign_cluster());
        let patch = json!({ "metadata": { "labels": { TOKEN_LABEL: digest } } });
        // Liqo makes it with the first virtual node.
        let operation = format!("make Liqo check ForeignCluster {} again", peer.liqo_id);
        call_opt(&operation, clusters.patch(&peer.liqo_id, &patching(), &Patch::Merge(&patch))).await.map(drop)
    }
}

fn secret(peer: &LiqoPeer, params: &IdentityParams, digest: &str, kubeconfig: Vec<u8>) -> Secret {
    let annotations = [(objects::DIGEST, digest), ("liqo.io/remote-tenant-namespace", &params.tenant_namespace)];
    Secret {
        metadata: ObjectMeta {
            name: Some(objects::token_secret(peer)),
            labels: Some(own_labels([
                ("liqo.io/identity-type", "ControlPlane"),
                (REMOTE_CLUSTER_LABEL, peer.liqo_id.as_str()),
                (PEERING_LABEL, &peer.peering),
            ])),
            annotations: Some(annotations.map(|(key, value)| (key.to_owned(), value.to_owned())).into()),
            ..ObjectMeta::default()
        },
        data: Some([(KUBECONFIG_KEY.to_owned(), ByteString(kubeconfig))].into()),
        type_: Some("Opaque".to_owned()),
        ..Secret::default()
    }
}

fn kubeconfig(params: &IdentityParams, token: &BearerToken, certificate: &str, key: &Zeroizing<String>) -> Vec<u8> {
    let one = |name: &str, kind: &str, value: Value| json!([{ "name": name, kind: value }]);
    let mut content = json!({
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": one("donor", "cluster", json!({ "server": params.api_server, "certificate-authority-data": params.ca })),
        "users": one("origin", "user", json!({
            "token": token.expose(),
            "client-certificate-data": STANDARD.encode(certificate),
            "client-key-data": STANDARD.encode(key.as_bytes()),
        })),
        "contexts": one("donor", "context", json!({
            "cluster": "donor", "user": "origin", "namespace": params.tenant_namespace,
        })),
        "current-context": "donor",
    });
    let text = content.to_string().into_bytes();
    if let Some(Value::String(token)) = content.pointer_mut("/users/0/user/token") {
        token.zeroize();
    }
    text
}

/// A self-signed certificate and its key, PEM. Another `name` gives another certificate.
fn throwaway_certificate(name: &str) -> Result<(String, Zeroizing<String>), DeliveryError> {
    let made = || {
        let key = KeyPair::generate_for(&rcgen::PKCS_ECDSA_P256_SHA256)?;
        let mut params = CertificateParams::default();
        params.distinguished_name = DistinguishedName::new();
        params.distinguished_name.push(DnType::CommonName, format!("comity-token-{name}"));
        Ok::<_, rcgen::Error>((params.self_signed(&key)?.pem(), Zeroizing::new(key.serialize_pem())))
    };
    made().map_err(|error| DeliveryError::temporary("make the certificate that goes beside a token", error))
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use kube::config::Kubeconfig;

    use super::*;
    use crate::PeerCredential;

    #[test]
    fn the_secret_is_as_liqo_reads_it_and_another_token_brings_another_certificate() {
        let peer = LiqoPeer { peering: "peer-1".into(), cluster: "north".into(), liqo_id: "north-liqo".into() };
        let params = |token: &str| IdentityParams {
            ca: "Y2E=".into(),
            credential: PeerCredential::Token(BearerToken::new(token.into())),
            api_server: "https://10.0.0.1:6443".into(),
            tenant_namespace: "liqo-tenant-south".into(),
        };
        let written = |token: &str| {
            let (certificate, key) = throwaway_certificate(token).unwrap();
            let text = kubeconfig(&params(token), &BearerToken::new(token.into()), &certificate, &key);
            secret(&peer, &params(token), token, text)
        };
        let user = |secret: &Secret| {
            let text = &secret.data.as_ref().unwrap()[KUBECONFIG_KEY].0;
            let read = Kubeconfig::from_yaml(std::str::from_utf8(text).unwrap()).unwrap();
            assert_eq!(read.clusters[0].cluster.as_ref().unwrap().server.as_deref(), Some("https://10.0.0.1:6443"));
            assert_eq!(read.contexts[0].context.as_ref().unwrap().namespace.as_deref(), Some("liqo-tenant-south"));
            read.auth_infos[0].auth_info.clone().unwrap()
        };
        let (first, second) = (written("first"), written("second"));
        assert_eq!(first.metadata.name.as_deref(), Some("kubeconfig-controlplane-north-liqo"));
        let labels = first.metadata.labels.as_ref().unwrap();
        assert_eq!(labels["liqo.io/identity-type"], "ControlPlane");
        assert_eq!(labels["liqo.io/remote-cluster-id"], "north-liqo");
        assert_eq!(
            first.metadata.annotations.as_ref().unwrap()["liqo.io/remote-tenant-namespace"],
            "liqo-tenant-south"
        );
        assert!(
            String::from_utf8_lossy(&first.data.as_ref().unwrap()[KUBECONFIG_KEY].0).contains(r#""token":"first""#)
        );
        assert_ne!(user(&first).client_certificate_data, user(&second).client_certificate_data);
        let pem = STANDARD.decode(user(&second).client_certificate_data.unwrap()).unwrap();
        let (_, pem) = x509_parser::pem::parse_x509_pem(&pem).unwrap();
        assert_eq!(pem.parse_x509().unwrap().subject().to_string(), "CN=comity-token-second");
    }
}
