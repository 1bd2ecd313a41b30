//! Admits an origin by token: a ServiceAccount with Liqo's consumer role, and short-lived tokens for it.
//!
//! The ServiceAccount is made once per peering: deleting it revokes the origin's access for good.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use comity_agent_kubernetes::call::{apply, call, call_opt, own_labels};
use comity_agent_model::delivery_error::DeliveryError;
use k8s_openapi::api::authentication::v1::{TokenRequest, TokenRequestSpec};
use k8s_openapi::api::core::v1::ServiceAccount;
use k8s_openapi::api::rbac::v1::{RoleBinding, RoleRef, Subject};
use kube::Api;
use kube::api::{DeleteParams, DynamicObject, ListParams, ObjectMeta, PostParams};
use serde_json::{Value, json};

use super::rights::rights;
use super::{LiqoDonor, server_name};
use crate::{
    BearerToken, IdentityParams, LiqoPeer, ORIGIN_ROLE, PEERING_LABEL, PeerCredential, REMOTE_CLUSTER_LABEL, dynamic,
    own_rights::RBAC_GROUP,
    tenant,
    waiting::{CONTROLLER_HINT, Progress, Waiting},
};

/// Name of the ServiceAccount and of its RoleBinding.
pub(super) const ACCOUNT: &str = "comity-liqo-peer";
/// The role that Liqo gives the control planes of consumers.
const ROLE: &str = "liqo-remote-controlplane";
/// Policy of a Tenant whose keys Liqo does not check.
const NO_KEYS: &str = "TolerateNoHandshake";
/// Shortest life of a token that an API server grants, in seconds.
const MIN_TOKEN_LIFE: u64 = 600;

/// A token that was made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Minted {
    /// Parameters for the origin.
    pub params: IdentityParams,
    /// When the token ends, in milliseconds since 1970.
    pub expires_at_ms: u64,
}

/// Life of a token in seconds: 1.5 times its rotation period.
const fn life_seconds(rotation_ms: u64) -> u64 {
    let life = rotation_ms.saturating_mul(3) / 2 / 1_000;
    if life < MIN_TOKEN_LIFE { MIN_TOKEN_LIFE } else { life }
}

impl LiqoDonor {
    /// Admits an origin by its first token: makes the Tenant and the ServiceAccount, then the token.
    ///
    /// # Errors
    /// As [`mint_token`](Self::mint_token).
    pub async fn admit_by_token(&self, peer: &LiqoPeer, rotation_ms: u64) -> Result<Minted, DeliveryError> {
        self.check_peer(peer).await?;
        self.ensure_tenant_namespace(peer).await?;
        self.admit_without_keys(peer).await?;
        self.make_account(peer).await?;
        self.mint_token(peer, rotation_ms).await
    }

    /// Makes a token for an admitted origin, to be replaced after `rotation_ms`.
    ///
    /// # Errors
    /// [`DeliveryError`]; permanent with code `liqo-token-revoked` if the ServiceAccount was deleted, otherwise as
    /// [`challenge`](Self::challenge) and [`admit_tenant`](Self::admit_tenant).
    pub async fn mint_token(&self, peer: &LiqoPeer, rotation_ms: u64) -> Result<Minted, DeliveryError> {
        let (token, expires_at_ms) = self.token(peer, life_seconds(rotation_ms)).await?;
        let params = IdentityParams {
            ca: STANDARD.encode(&self.settings.ca_pem),
            credential: PeerCredential::Token(token),
            api_server: format!("https://{}", self.settings.advertised),
            tenant_namespace: peer.tenant_namespace(),
        };
        server_name::check(&self.settings.api_server, &params.api_server, &params.ca).await?;
        Ok(Minted { params, expires_at_ms })
    }

    async fn admit_without_keys(&self, peer: &LiqoPeer) -> Result<(), DeliveryError> {
        let tenants = dynamic::namespaced(&self.client, &tenant(), &peer.tenant_namespace());
        self.delete_outdated_tenant(peer, None, &tenants).await?;
        rights(dynamic::apply(&tenants, &tenant_object(peer)).await)?;
        let operation = format!("wait until Liqo has taken {} on", peer.liqo_id);
        let waiting = Waiting { operation: &operation, hint: CONTROLLER_HINT, patience: self.settings.patience };
        let wanted = peer.tenant_namespace();
        let named = |tenant: &DynamicObject| {
            let named = tenant.data.pointer("/status/tenantNamespace").and_then(Value::as_str);
            (named == Some(wanted.as_str())).then_some(())
        };
        let check =
            |tenant: Option<&DynamicObject>| Ok(Progress::of(tenant.and_then(named), "the Tenant has no namespace"));
        waiting.until(&tenants, &peer.liqo_id, check).await
    }

    async fn make_account(&self, peer: &LiqoPeer) -> Result<(), DeliveryError> {
        let namespace = peer.tenant_namespace();
        let metadata = || ObjectMeta {
            name: Some(ACCOUNT.to_owned()),
            labels: Some(own_labels([
                (PEERING_LABEL, peer.peering.as_str()),
                (REMOTE_CLUSTER_LABEL, peer.liqo_id.as_str()),
            ])),
            ..ObjectMeta::default()
        };
        let account = ServiceAccount {
            metadata: metadata(),
            automount_service_account_token: Some(false),
            ..ServiceAccount::default()
        };
        rights(apply(&Api::<ServiceAccount>::namespaced(self.client.clone(), &namespace), &account).await)?;
        let binding = RoleBinding {
            metadata: metadata(),
            role_ref: RoleRef {
                api_group: RBAC_GROUP.to_owned(),
                kind: "ClusterRole".to_owned(),
                name: ROLE.to_owned(),
            },
            subjects: Some(vec![Subject {
                kind: "ServiceAccount".to_owned(),
                name: ACCOUNT.to_owned(),
                namespace: Some(namespace.clone()),
                api_group: None,
            }]),
        };
        rights(apply(&Api::<RoleBinding>::namespaced(self.client.clone(), &namespace), &binding).await).map(drop)
    }

    async fn token(&self, peer: &LiqoPeer, life_seconds: u64) -> Result<(BearerToken, u64), DeliveryError> {
        let namespace = peer.tenant_namespace();
        let operation = format!("make a token for {}", peer.liqo_id);
        let request = TokenRequest {
            spec: TokenRequestSpec {
                expiration_seconds: Some(i64::try_from(life_seconds).unwrap_or(i64::MAX)),
                ..TokenRequestSpec::default()
            },
            ..TokenRequest::default()
        };
        let accounts = Api::<ServiceAccount>::namespaced(self.client.clone(), &namespace);
        let parameters = PostParams::default();
        let answer = rights(call_opt(&operation, accounts.create_token_request(ACCOUNT, &parameters, &request)).await)?;
        let answer = answer.ok_or_else(|| {
            let text = format!(
                "ServiceAccount {namespace}/{ACCOUNT} was deleted, which takes cluster {} its access; it is not made \
                 again for this peering",
                peer.cluster
            );
            DeliveryError::permanent("liqo-token-revoked", text)
        })?;
        let status = answer.status.ok_or_else(|| DeliveryError::temporary(&operation, "the API server sent none"))?;
        let expires_at_ms = u64::try_from(status.expiration_timestamp.0.as_millisecond()).unwrap_or(0);
        Ok((BearerToken::new(status.token), expires_at_ms))
    }

    /// Whether the origin's ServiceAccount exists.
    pub(super) async fn has_account(&self, peer: &LiqoPeer) -> Result<bool, DeliveryError> {
        let namespace = peer.tenant_namespace();
        let accounts = Api::<ServiceAccount>::namespaced(self.client.clone(), &namespace);
        let operation = format!("read ServiceAccount {namespace}/{ACCOUNT}");
        Ok(rights(call_opt(&operation, accounts.get_metadata(ACCOUNT)).await)?.is_some())
    }

    /// Revokes the origin's tokens, if it authenticates by token.
    pub(super) async fn remove_account(&self, peer: &LiqoPeer) -> Result<(), DeliveryError> {
        let namespace = peer.tenant_namespace();
        let parameters = DeleteParams::default();
        let accounts = Api::<ServiceAccount>::namespaced(self.client.clone(), &namespace);
        let operation = format!("delete ServiceAccount {namespace}/{ACCOUNT}");
        rights(call_opt(&operation, accounts.delete(ACCOUNT, &parameters)).await)?;
        let bindings = Api::<RoleBinding>::namespaced(self.client.clone(), &namespace);
        let operation = format!("delete RoleBinding {namespace}/{ACCOUNT}");
        rights(call_opt(&operation, bindings.delete(ACCOUNT, &parameters)).await).map(drop)
    }

    /// Whether this cluster, as an origin of the same peer, has rights of its own in the tenant namespace.
    pub(super) async fn has_origins_rights(&self, peer: &LiqoPeer) -> Result<bool, DeliveryError> {
        let bindings = Api::<RoleBinding>::namespaced(self.client.clone(), &peer.tenant_namespace());
        let named = ListParams::default().fields(&format!("metadata.name={}", ORIGIN_ROLE));
        Ok(!rights(call("list RoleBindings", bindings.list_metadata(&named)).await)?.items.is_empty())
    }
}

/// Whether a Tenant authenticates by token.
pub(super) fn uses_token(tenant: &DynamicObject) -> bool {
    tenant.data.pointer("/spec/authzPolicy").and_then(Value::as_str) == Some(NO_KEYS)
}

fn tenant_object(peer: &LiqoPeer) -> DynamicObject {
    let spec = json!({ "clusterID": peer.liqo_id, "authzPolicy": NO_KEYS, "tenantCondition": "Active" });
    let mut object =
        DynamicObject::new(&peer.liqo_id, &tenant()).within(&peer.tenant_namespace()).data(json!({ "spec": spec }));
    object.metadata.labels =
        Some(own_labels([(PEERING_LABEL, peer.peering.as_str()), (REMOTE_CLUSTER_LABEL, &peer.liqo_id)]));
    object
}

#[cfg(test)]
mod tests {
    use super::life_seconds;

    #[test]
    fn a_token_outlives_its_rotation_by_half_and_is_never_shorter_than_kubernetes_allows() {
        assert_eq!(life_seconds(2_400_000), 3_600);
        assert_eq!(life_seconds(10_000), 600);
        assert!(life_seconds(u64::MAX) > 3_600);
    }
}
