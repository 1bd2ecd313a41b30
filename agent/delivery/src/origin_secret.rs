//! Kubeconfig Secrets for leases of an origin with Kubernetes, in the namespace that the request names.
//!
//! A Secret goes into a namespace of the lease's tenant, or into `comity-leases`, which the agent makes and never deletes.
//! Before it makes a Secret the agent records its namespace in a ledger, so that it finds all of them after a crash
//! without the right to list Secrets.

mod ledger;

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;

use comity_agent_kubernetes::api::KubernetesApi;
use comity_agent_kubernetes::call::{apply, call, call_opt, creating, own_labels};
use comity_agent_model::delivery_error::DeliveryError;
use comity_agent_model::forward_target::client_check::ClientCheck;
use comity_agent_model::lease::lease_id::{LEASE_LABEL, namespace_name};
use comity_agent_model::lease::target_namespace::{DEFAULT_TARGET_NAMESPACE, NamespaceUse, TENANT_LABEL};
use comity_types::LeaseId;
use futures::future::BoxFuture;
use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::{Namespace, Secret};
use kube::api::{DeleteParams, ObjectMeta};
use kube::{Api, ResourceExt as _};

use self::ledger::Ledger;
use crate::namespace_clients::NamespaceClients;
use crate::{Accepted, ApiCredential, OriginDelivery, OriginLease, kubeconfig, probe};

/// Label with the lending cluster.
const DONOR_LABEL: &str = "comity.dev/donor";
/// Key in the Secret; tools for cluster access look for it.
const KEY: &str = "kubeconfig";

/// Writes kubeconfig Secrets.
#[derive(Debug)]
pub struct OriginSecret {
    api: KubernetesApi,
    ledger: Ledger,
    /// Tenant of namespaces that name none; empty: none.
    default_tenant: String,
}

impl OriginSecret {
    /// Writes to the cluster behind `api`, and keeps its ledger in the agent's state folder. Namespaces that name no
    /// tenant are `default_tenant`'s, if it is not empty. Blocks.
    ///
    /// # Errors
    /// [`DeliveryError`] when the ledger cannot be read.
    pub fn open(api: KubernetesApi, state_dir: &Path, default_tenant: &str) -> Result<Self, DeliveryError> {
        Ok(Self { api, ledger: Ledger::open(state_dir)?, default_tenant: default_tenant.to_owned() })
    }

    fn secrets(&self, namespace: &str) -> Api<Secret> {
        Api::namespaced(self.api.client(), namespace)
    }

    async fn write(
        &self,
        lease: &OriginLease,
        credential: &ApiCredential,
        server: &str,
    ) -> Result<Accepted, DeliveryError> {
        let namespace = lease.namespace();
        let name = namespace_name(lease.lease_id);
        self.ensure_namespace(namespace, &lease.tenant).await?;
        let secrets = self.secrets(namespace);
        let found = call_opt(&format!("read Secret {namespace}/{name}"), secrets.get(&name)).await?;
        if found.is_some_and(|secret| !is_of(&secret, lease.lease_id)) {
            let message = format!(
                "Secret {namespace}/{name} exists and was not made by Comity; it is left alone: rename or delete it"
            );
            return Err(DeliveryError::permanent("secret-not-ours", message));
        }
        self.ledger.note(lease.lease_id, namespace)?;
        let kubeconfig = kubeconfig::render(lease.lease_id, credential, server);
        let id = lease.lease_id.to_string();
        let labels = [(LEASE_LABEL, id.as_str()), (TENANT_LABEL, &lease.tenant), (DONOR_LABEL, &lease.donor)];
        let secret = Secret {
            metadata: ObjectMeta {
                name: Some(name.clone()),
                namespace: Some(namespace.to_owned()),
                labels: Some(own_labels(labels)),
                ..ObjectMeta::default()
            },
            type_: Some("Opaque".to_owned()),
            data: Some(BTreeMap::from([(KEY.to_owned(), ByteString(kubeconfig.expose().clone().into_bytes()))])),
            ..Secret::default()
        };
        apply(&secrets, &secret).await?;
        Ok(Accepted { secret_name: name, kubeconfig })
    }

    /// Checks that a namespace is the tenant's. The default one belongs to no tenant, and is made if it is absent.
    async fn ensure_namespace(&self, name: &str, tenant: &str) -> Result<(), DeliveryError> {
        let namespaces = Api::<Namespace>::all(self.api.client());
        let is_default = name == DEFAULT_TARGET_NAMESPACE;
        let operation = format!("find namespace {name} for kubeconfig Secrets");
        match call_opt(&operation, namespaces.get(name)).await? {
            Some(_) if is_default => return Ok(()),
            Some(found) => {
                let usage = NamespaceUse { namespace: name, tenant, default_tenant: &self.default_tenant };
                return usage.check_tenant(found.labels());
            }
            None if is_default => {}
            None => {
                let message = format!(
                    "target_namespace {name} does not exist in this cluster; create it with the label \
                     {TENANT_LABEL}={tenant}, and request again"
                );
                return Err(DeliveryError::permanent("no-target-namespace", message));
            }
        }
        let wanted = Namespace {
            metadata: ObjectMeta { name: Some(name.to_owned()), labels: Some(own_labels([])), ..ObjectMeta::default() },
            ..Namespace::default()
        };
        let parameters = creating();
        match call(&operation, namespaces.create(&parameters, &wanted)).await {
            Ok(_) => Ok(()),
            // Somebody else made it in the meantime.
            Err(error) => call_opt(&operation, namespaces.get(name)).await?.map(drop).ok_or(error),
        }
    }

    async fn delete(&self, lease_id: LeaseId) -> Result<(), DeliveryError> {
        let Some(namespace) = self.ledger.namespace(lease_id) else { return Ok(()) };
        let name = namespace_name(lease_id);
        let secrets = self.secrets(&namespace);
        let operation = format!("delete Secret {namespace}/{name}");
        match call_opt(&operation, secrets.get(&name)).await? {
            Some(secret) if is_of(&secret, lease_id) => {
                call_opt(&operation, secrets.delete(&name, &DeleteParams::default())).await?;
                if call_opt(&operation, secrets.get(&name)).await?.is_some_and(|left| left.uid() == secret.uid()) {
                    return Err(DeliveryError::temporary(operation, "a finalizer holds it"));
                }
            }
            Some(_) => {
                tracing::warn!(namespace, name, "a Secret of this name was not made by Comity; it is left alone")
            }
            None => {}
        }
        self.ledger.forget(lease_id)
    }
}

fn is_of(secret: &Secret, lease_id: LeaseId) -> bool {
    secret.labels().get(LEASE_LABEL).is_some_and(|lease| *lease == lease_id.to_string())
}

impl OriginDelivery for OriginSecret {
    fn accept<'a>(
        &'a self,
        lease: &'a OriginLease,
        credential: &'a ApiCredential,
        server: &'a str,
    ) -> BoxFuture<'a, Result<Accepted, DeliveryError>> {
        Box::pin(self.write(lease, credential, server))
    }

    fn clients(&self, lease: &OriginLease) -> Option<Arc<dyn ClientCheck>> {
        Some(Arc::new(NamespaceClients::new(self.api.client(), lease.namespace())))
    }

    fn probe<'a>(
        &'a self,
        _lease: &'a OriginLease,
        credential: &'a ApiCredential,
        local_api: SocketAddr,
    ) -> BoxFuture<'a, Result<(), DeliveryError>> {
        Box::pin(probe::probe(credential, local_api))
    }

    fn remove(&self, lease_id: LeaseId) -> BoxFuture<'_, Result<(), DeliveryError>> {
        Box::pin(self.delete(lease_id))
    }

    fn list(&self) -> BoxFuture<'_, Result<BTreeSet<LeaseId>, DeliveryError>> {
        Box::pin(async move { Ok(self.ledger.leases()) })
    }
}
