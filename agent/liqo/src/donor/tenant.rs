//! Admits an origin: nonce, Tenant, signed certificate. Every step can be repeated.

#[cfg(test)]
mod fuzz_request;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use comity_agent_kubernetes::call::{apply, call, call_opt, creating, own_labels};
use comity_agent_model::delivery_error::DeliveryError;
use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::{Namespace, Secret};
use kube::api::{DeleteParams, DynamicObject, ObjectMeta};
use kube::{Api, ResourceExt as _};
use serde_json::{Value, json};

use super::csr::{certificate_is, tenant_subject_is};
use super::rights::rights;
use super::{LiqoDonor, server_name};
use crate::{
    Challenge, IdentityParams, LiqoPeer, PEERING_LABEL, PeerCredential, REMOTE_CLUSTER_LABEL, TENANT_NAMESPACE_LABEL,
    TenantRequest, dynamic, tenant, tenant_namespace,
    waiting::{CONTROLLER_HINT, Progress, Waiting},
};

pub(super) const NONCE_SECRET: &str = "liqo-nonce";
/// Longest field of a message, in characters of base64: an RSA key of 8192 bits fits many times.
const MAX_FIELD: usize = 16 << 10;

impl LiqoDonor {
    /// The nonce that the origin has to sign; made if there is none.
    ///
    /// # Errors
    /// [`DeliveryError`]; permanent with code `bad-liqo-id`, `liqo-id-in-rbac` or `namespace-not-ours` if this cluster
    /// will never admit such a peer.
    pub async fn challenge(&self, peer: &LiqoPeer) -> Result<Challenge, DeliveryError> {
        self.check_peer(peer).await?;
        self.ensure_tenant_namespace(peer).await?;
        let secrets = Api::<Secret>::namespaced(self.client.clone(), &peer.tenant_namespace());
        let labels =
            [(PEERING_LABEL, peer.peering.as_str()), ("liqo.io/nonce", "true"), (REMOTE_CLUSTER_LABEL, &peer.liqo_id)];
        let wanted = Secret {
            metadata: ObjectMeta {
                name: Some(NONCE_SECRET.to_owned()),
                labels: Some(own_labels(labels)),
                ..ObjectMeta::default()
            },
            type_: Some("Opaque".to_owned()),
            ..Secret::default()
        };
        rights(apply(&secrets, &wanted).await)?;
        let operation = format!("wait for the nonce for {}", peer.liqo_id);
        let waiting = Waiting { operation: &operation, hint: CONTROLLER_HINT, patience: self.settings.patience };
        let check = |secret: Option<&Secret>| Ok(Progress::of(secret.and_then(nonce), "there is no nonce"));
        let nonce = waiting.until(&secrets, NONCE_SECRET, check).await?;
        Ok(Challenge { nonce })
    }

    /// Makes the Tenant, and returns Liqo's answer.
    ///
    /// # Errors
    /// [`DeliveryError`]; permanent with code `bad-liqo-message` if the request is invalid, `liqo-api-address` if the
    /// address that Liqo gives out would fail the origin's check.
    pub async fn admit_tenant(
        &self,
        peer: &LiqoPeer,
        request: &TenantRequest,
    ) -> Result<IdentityParams, DeliveryError> {
        self.check_peer(peer).await?;
        check_request(peer, request)?;
        self.ensure_tenant_namespace(peer).await?;
        let tenants = dynamic::namespaced(&self.client, &tenant(), &peer.tenant_namespace());
        self.delete_outdated_tenant(peer, Some(&request.csr), &tenants).await?;
        rights(dynamic::apply(&tenants, &tenant_object(peer, request)).await)?;
        let operation = format!("wait until Liqo has signed the certificate of {}", peer.liqo_id);
        let hint = format!("{CONTROLLER_HINT} The events of Tenant {} say more: kubectl describe", peer.liqo_id);
        let waiting = Waiting { operation: &operation, hint: &hint, patience: self.settings.patience };
        let check =
            |tenant: Option<&DynamicObject>| Ok(Progress::of(tenant.and_then(identity_params), "nothing is signed"));
        let params = waiting.until(&tenants, &peer.liqo_id, check).await?;
        let PeerCredential::Certificate(signed) = &params.credential else { return Ok(params) };
        if !certificate_is(&STANDARD.decode(signed).unwrap_or_default(), &peer.liqo_id) {
            let text =
                format!("Liqo signed a certificate for {} with other content; it is not passed on", peer.liqo_id);
            return Err(DeliveryError::permanent("bad-liqo-certificate", text));
        }
        server_name::check(&self.settings.api_server, &params.api_server, &params.ca).await?;
        Ok(params)
    }

    /// Creates the namespace, or uses the one that this peer has.
    pub(super) async fn ensure_tenant_namespace(&self, peer: &LiqoPeer) -> Result<(), DeliveryError> {
        let name = peer.tenant_namespace();
        let namespaces = Api::<Namespace>::all(self.client.clone());
        let read = format!("read namespace {name}");
        if let Some(found) = rights(call_opt(&read, namespaces.get(&name)).await)? {
            return usable(&found, peer);
        }
        let parameters = creating();
        match rights(
            call(&format!("create namespace {name}"), namespaces.create(&parameters, &tenant_namespace(peer))).await,
        ) {
            Ok(_) => Ok(()),
            // The agent's other role may have made it in the meantime.
            Err(error) => match rights(call_opt(&read, namespaces.get(&name)).await)? {
                Some(found) => usable(&found, peer),
                None => Err(error),
            },
        }
    }

    /// Liqo signs a Tenant's request once, so a Tenant with another request, or with none where one is needed, is
    /// deleted first.
    pub(super) async fn delete_outdated_tenant(
        &self,
        peer: &LiqoPeer,
        csr: Option<&str>,
        tenants: &Api<DynamicObject>,
    ) -> Result<(), DeliveryError> {
        let read = format!("read Tenant {}", peer.liqo_id);
        let Some(found) = rights(call_opt(&read, tenants.get(&peer.liqo_id)).await)? else { return Ok(()) };
        if !found.labels().contains_key(PEERING_LABEL) {
            let text = format!(
                "Tenant {0} in namespace {1} exists and was not made by Comity: somebody peered with {0} manually; \
                 undo that with liqoctl unpeer",
                peer.liqo_id,
                peer.tenant_namespace()
            );
            return Err(DeliveryError::permanent("tenant-not-ours", text));
        }
        let same = found.data.pointer("/spec/csr").and_then(Value::as_str) == csr;
        if same && found.metadata.deletion_timestamp.is_none() {
            return Ok(());
        }
        let operation = format!("delete Tenant {}, which has another certificate request", peer.liqo_id);
        rights(call_opt(&operation, tenants.delete(&peer.liqo_id, &DeleteParams::default())).await)?;
        let waiting = Waiting { operation: &operation, hint: CONTROLLER_HINT, patience: self.settings.patience };
        waiting.gone(tenants, &peer.liqo_id, found.uid()).await?;
        // Liqo keeps the signed certificate in it, and would return that again.
        let secrets = Api::<Secret>::namespaced(self.client.clone(), &peer.tenant_namespace());
        rights(
            call_opt(
                "delete Secret liqo-remote-certificate",
                secrets.delete("liqo-remote-certificate", &DeleteParams::default()),
            )
            .await,
        )?;
        Ok(())
    }
}

fn usable(namespace: &Namespace, peer: &LiqoPeer) -> Result<(), DeliveryError> {
    let name = peer.tenant_namespace();
    let label = |key: &str| namespace.labels().get(key).map(String::as_str);
    if label(REMOTE_CLUSTER_LABEL) != Some(&peer.liqo_id) || label(TENANT_NAMESPACE_LABEL) != Some("true") {
        let text = format!(
            "namespace {name} exists without the labels {REMOTE_CLUSTER_LABEL}={} and {TENANT_NAMESPACE_LABEL}=true; \
             it is left alone: rename or delete it",
            peer.liqo_id
        );
        return Err(DeliveryError::permanent("namespace-not-ours", text));
    }
    if namespace.metadata.deletion_timestamp.is_some() {
        return Err(DeliveryError::temporary(
            format!("use namespace {name}"),
            "it is being deleted; its objects must go first",
        ));
    }
    Ok(())
}

fn check_request(peer: &LiqoPeer, request: &TenantRequest) -> Result<(), DeliveryError> {
    let bad = |field: &str, reason: &str| {
        let text = format!("the origin's {field} {reason}; nothing is signed for it");
        DeliveryError::permanent("bad-liqo-message", text)
    };
    let fields =
        [("public key", &request.public_key), ("certificate request", &request.csr), ("signature", &request.signature)];
    for (field, value) in fields {
        if value.is_empty() || value.len() > MAX_FIELD {
            return Err(bad(field, &format!("has {} characters, 1 to {MAX_FIELD} are read", value.len())));
        }
        STANDARD.decode(value).map_err(|_| bad(field, "is not base64"))?;
    }
    let csr = STANDARD.decode(&request.csr).unwrap_or_default();
    if !tenant_subject_is(&csr, &peer.liqo_id) {
        return Err(bad("certificate request", &format!("does not ask for exactly O=liqo.io, CN={}", peer.liqo_id)));
    }
    Ok(())
}

fn tenant_object(peer: &LiqoPeer, request: &TenantRequest) -> DynamicObject {
    let mut object = DynamicObject::new(&peer.liqo_id, &tenant()).within(&peer.tenant_namespace()).data(json!({
        "spec": {
            "clusterID": peer.liqo_id,
            "authzPolicy": "KeysExchange",
            "publicKey": request.public_key,
            "csr": request.csr,
            "signature": request.signature,
            "tenantCondition": "Active",
        },
    }));
    object.metadata.labels =
        Some(own_labels([(PEERING_LABEL, peer.peering.as_str()), (REMOTE_CLUSTER_LABEL, &peer.liqo_id)]));
    object
}

fn nonce(secret: &Secret) -> Option<String> {
    let ByteString(nonce) = secret.data.as_ref()?.get("nonce")?;
    (!nonce.is_empty() && nonce.len() <= MAX_FIELD).then(|| STANDARD.encode(nonce))
}

fn identity_params(tenant: &DynamicObject) -> Option<IdentityParams> {
    let text = |pointer: &str| {
        let value = tenant.data.pointer(pointer).and_then(Value::as_str)?;
        (!value.is_empty()).then(|| value.to_owned())
    };
    Some(IdentityParams {
        ca: text("/status/authParams/ca")?,
        credential: PeerCredential::Certificate(text("/status/authParams/signedCRT")?),
        api_server: text("/status/authParams/apiServer")?,
        tenant_namespace: text("/status/tenantNamespace")?,
    })
}
