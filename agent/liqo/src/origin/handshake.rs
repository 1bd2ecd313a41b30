//! The origin's half of Liqo's key exchange.

use std::time::Duration;

use comity_agent_kubernetes::call::{apply, call, call_opt, creating};
use comity_agent_model::delivery_error::DeliveryError;
use k8s_openapi::api::core::v1::{Namespace, Secret};
use kube::core::DynamicObject;
use kube::{Api, ResourceExt as _};
use sha2::{Digest as _, Sha256};
use zeroize::Zeroize as _;

use super::{LiqoOrigin, ORIGIN_RIGHTS, check, objects, signing};
use crate::{
    Challenge, IdentityParams, LiqoPeer, PEERING_LABEL, PeerCredential, TenantRequest, dynamic, foreign_cluster,
    identity,
    messages::Message as _,
    tenant_namespace,
    waiting::{Progress, Waiting},
};

/// Liqo's keys, in its own namespace.
const KEYS_SECRET: &str = "authentication-keys";
const PRIVATE_KEY: &str = "privateKey";
/// Time limit for Liqo to process an Identity; observed: 0.3 s.
const IDENTITY_PATIENCE: Duration = Duration::from_secs(20);

impl LiqoOrigin {
    /// Proves to the donor that this cluster holds its Liqo key, and asks for a certificate.
    ///
    /// # Errors
    /// [`DeliveryError`]; no part of the key is quoted.
    pub async fn answer(&self, peer: &LiqoPeer, challenge: &Challenge) -> Result<TenantRequest, DeliveryError> {
        let own_id = self.own_id().await?;
        check::peer(peer, own_id)?;
        self.ensure_tenant_namespace(peer).await?;
        let namespace = &self.settings.liqo_namespace;
        let secrets = Api::<Secret>::namespaced(self.client.clone(), namespace);
        let operation = format!("read Secret {namespace}/{KEYS_SECRET}, which Liqo makes");
        let mut data = call(&operation, secrets.get(KEYS_SECRET)).await?.data.unwrap_or_default();
        let key = data.get(PRIVATE_KEY).map(|key| key.0.as_slice()).unwrap_or_default();
        let answer = signing::answer(challenge, key, own_id);
        data.values_mut().for_each(|value| value.0.zeroize());
        answer
    }

    /// Gives Liqo the certificate that the donor signed and waits until Liqo uses it, or the token that the donor made.
    /// `signed_api_server` is the API server that the donor's signed key bundle names.
    ///
    /// # Errors
    /// [`DeliveryError`]; permanent if the parameters are not those of the key bundle.
    pub async fn accept_identity(
        &self,
        peer: &LiqoPeer,
        signed_api_server: &str,
        params: &IdentityParams,
    ) -> Result<(), DeliveryError> {
        let own_id = self.own_id().await?;
        check::peer(peer, own_id)?;
        check::identity(params, signed_api_server, own_id)?;
        let certificate = match &params.credential {
            PeerCredential::Certificate(certificate) => certificate,
            PeerCredential::Token(token) => return self.use_token(peer, params, token).await,
        };
        self.ensure_tenant_namespace(peer).await?;
        let identities = self.namespaced(&peer.tenant_namespace(), &identity());
        let name = objects::identity_name(peer);
        let digest = hex::encode(Sha256::digest(params.encode()));
        let found = call_opt(&format!("read Identity {name}"), identities.get(&name)).await?;
        // Liqo renews the certificate in it, so an Identity that was made from the same parameters is left unchanged.
        let current = found.is_some_and(|found| {
            found.metadata.deletion_timestamp.is_none() && found.annotations().get(objects::DIGEST) == Some(&digest)
        });
        if !current {
            dynamic::apply(&identities, &objects::control_plane_identity(peer, params, certificate, &digest)).await?;
        }
        let operation = format!("wait for Liqo to use the identity for cluster {}", peer.liqo_id);
        let waiting = Waiting { operation: &operation, hint: "", patience: IDENTITY_PATIENCE };
        waiting.until(&identities, &name, |identity| Ok(kubeconfig_secret(identity))).await?;
        let clusters = self.cluster_wide(&foreign_cluster());
        waiting.until(&clusters, &peer.liqo_id, |cluster| Ok(identity_ready(cluster))).await
    }

    pub(super) async fn ensure_tenant_namespace(&self, peer: &LiqoPeer) -> Result<(), DeliveryError> {
        let namespaces = Api::<Namespace>::all(self.client.clone());
        let wanted = tenant_namespace(peer);
        let name = wanted.name_any();
        let operation = format!("make namespace {name}");
        match call_opt(&operation, namespaces.get(&name)).await? {
            Some(found) if found.metadata.deletion_timestamp.is_some() => {
                return Err(DeliveryError::temporary(operation, "the old one is still being deleted"));
            }
            Some(found) => {
                check_namespace(&found, peer)?;
                let has = |(key, value)| found.labels().get(key) == Some(value);
                if wanted.labels().iter().all(has) && ORIGIN_RIGHTS.is_in_force(&self.client, &name).await? {
                    return Ok(());
                }
            }
            None => {
                let parameters = creating();
                match call(&operation, namespaces.create(&parameters, &wanted)).await {
                    Ok(_) => {}
                    Err(error) => match call_opt(&operation, namespaces.get(&name)).await? {
                        Some(found) => check_namespace(&found, peer)?,
                        None => return Err(error),
                    },
                }
            }
        }
        apply(&namespaces, &wanted).await?;
        ORIGIN_RIGHTS.bind(&self.client, &name).await
    }
}

/// Refuses a namespace that was peered manually, or by another peering of ours.
fn check_namespace(found: &Namespace, peer: &LiqoPeer) -> Result<(), DeliveryError> {
    let name = found.name_any();
    match found.labels().get(PEERING_LABEL) {
        Some(peering) if *peering == peer.peering => Ok(()),
        Some(other) => Err(DeliveryError::temporary(
            format!("use namespace {name} for {}", peer.peering),
            format!("it still belongs to {other}, which is being taken down"),
        )),
        None => Err(DeliveryError::permanent(
            "liqo-peered-by-hand",
            format!(
                "namespace {name} was not made by Comity: cluster {} is peered manually; run liqoctl unpeer, or delete \
                 the namespace",
                peer.liqo_id
            ),
        )),
    }
}

fn kubeconfig_secret(identity: Option<&DynamicObject>) -> Progress<()> {
    match identity.map(|identity| &identity.data["status"]["kubeconfigSecretRef"]["name"]) {
        Some(name) if name.as_str().is_some_and(|name| !name.is_empty()) => Progress::Done(()),
        Some(_) => {
            Progress::NotYet("the Identity has no kubeconfig Secret; is liqo-controller-manager running?".to_owned())
        }
        None => Progress::NotYet("there is no Identity".to_owned()),
    }
}

fn identity_ready(cluster: Option<&DynamicObject>) -> Progress<()> {
    let Some(cluster) = cluster else { return Progress::NotYet("Liqo has made no ForeignCluster".to_owned()) };
    let conditions = &cluster.data["status"]["modules"]["authentication"]["conditions"];
    match objects::condition(conditions, "AuthIdentityControlPlaneStatus") {
        Some(("Ready", _)) => Progress::Done(()),
        Some((status, message)) => Progress::NotYet(format!("AuthIdentityControlPlaneStatus is {status}: {message}")),
        None => Progress::NotYet("the ForeignCluster has no condition AuthIdentityControlPlaneStatus".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn cluster(conditions: serde_json::Value) -> DynamicObject {
        DynamicObject::new("north", &foreign_cluster())
            .data(json!({ "status": { "modules": { "authentication": { "conditions": conditions } } } }))
    }

    #[test]
    fn an_identity_is_ready_when_liqo_says_so() {
        let ready = cluster(json!([{ "type": "AuthIdentityControlPlaneStatus", "status": "Ready" }]));
        assert!(matches!(identity_ready(Some(&ready)), Progress::Done(())));
        let not =
            cluster(json!([{ "type": "AuthIdentityControlPlaneStatus", "status": "NotReady", "message": "why" }]));
        assert!(matches!(identity_ready(Some(&not)), Progress::NotYet(text) if text.contains("why")));
        assert!(matches!(identity_ready(Some(&cluster(json!(null)))), Progress::NotYet(_)));
        assert!(matches!(identity_ready(None), Progress::NotYet(_)));
    }
}
