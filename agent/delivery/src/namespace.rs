//! Delivers a lease as a namespace of this cluster; needs only Kubernetes.
//!
//! Objects are made in an order in which the tenant never has excess rights: the lease's resource on its nodes; the
//! namespace with Pod Security; quota, limits and network policy; then the ServiceAccount, its rights and the Secret
//! that tokens are bound to; and claims of devices that a DRA driver publishes. Removal is in reverse: the Secret, which voids all tokens; the binding, because an API
//! server caches a token for up to 10 s; the rest.
//!
//! It never changes a namespace without this lease's label, never grants more than `deploy/agent/tenant-role.yaml`, and
//! makes no namespace without the policies that hold guests to their leases.

mod claims;
mod objects;
mod quota;
mod removal;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use comity_agent_kubernetes::api::KubernetesApi;
use comity_agent_kubernetes::call::{Pager, apply, call, call_opt, creating};
use comity_agent_kubernetes::gpu_resource;
use comity_agent_model::api_port::API_PORT;
use comity_agent_model::delivery_error::DeliveryError;
use comity_agent_model::forward_target::ForwardTarget;
use comity_agent_model::guest_labels::GuestLabels;
use comity_agent_model::lease::lease_id::{LEASE_LABEL, namespace_name};
use comity_agent_model::local_policy::GuestEgress;
use comity_agent_model::node_id::NodeSalt;
use comity_runtime::clock::Clock;
use comity_runtime::secret::SecretString;
use comity_types::LeaseId;
use futures::future::BoxFuture;
use k8s_openapi::api::authentication::v1::{BoundObjectReference, TokenRequest, TokenRequestSpec};
use k8s_openapi::api::core::v1::{LimitRange, Namespace, Node, ResourceQuota, Secret, ServiceAccount};
use k8s_openapi::api::networking::v1::NetworkPolicy;
use k8s_openapi::api::rbac::v1::{ClusterRole, RoleBinding};
use kube::api::{ListParams, PostParams};
use kube::core::PartialObjectMeta;
use kube::{Api, ResourceExt as _};
use tokio::sync::Mutex;

use crate::guest_policies::{self, GuestPolicies};
use crate::lease_nodes::LeaseNodes;
use crate::lease_sharing::LeaseSharing;
use crate::{ApiCredential, CredentialKind, DonorDelivery, DonorLease, Prepared};

/// Shortest life of a token that an API server issues. If a lease ends earlier, the deletion of its Secret voids the
/// token.
const MIN_TOKEN_LIFE: Duration = Duration::from_secs(600);
/// Longest life of a token: if the agent is lost, tokens end within a day.
const MAX_TOKEN_LIFE: Duration = Duration::from_secs(24 * 3_600);
/// How long device names are cached: nodes with new kinds of devices are rare.
const DEVICE_NAMES_AGE: Duration = Duration::from_secs(60);
/// Time limit for the quota controller to count a new quota; until then no pod is admitted.
const QUOTA_PATIENCE: Duration = Duration::from_secs(20);
const QUOTA_POLL: Duration = Duration::from_millis(100);

/// Delivers leases as namespaces.
#[derive(Debug)]
pub struct NamespaceDelivery {
    api: KubernetesApi,
    clock: Arc<dyn Clock>,
    salt: NodeSalt,
    nodes: LeaseNodes,
    guests: GuestLabels,
    egress: GuestEgress,
    policies: GuestPolicies,
    /// Device names of the cluster and when they were read.
    devices: Mutex<Option<(Duration, Arc<BTreeSet<String>>)>>,
}

impl NamespaceDelivery {
    /// Delivers on the cluster behind `api`, whose offers name nodes by `salt`.
    #[must_use]
    pub fn new(api: KubernetesApi, clock: Arc<dyn Clock>, salt: NodeSalt) -> Self {
        let nodes = LeaseNodes::new(api.client(), salt.clone());
        let policies = GuestPolicies::new(api.client(), Arc::clone(&clock));
        let (guests, egress) = (GuestLabels::default(), GuestEgress::default());
        Self { api, clock, salt, nodes, guests, egress, policies, devices: Mutex::new(None) }
    }

    /// Opens and closes these networks to pods of leases.
    #[must_use]
    pub fn with_egress(self, egress: GuestEgress) -> Self {
        Self { egress, ..self }
    }

    /// Whether an agent that no policy restricts may lend.
    #[must_use]
    pub fn with_unrestricted_agent(self, is_accepted: bool) -> Self {
        Self { policies: self.policies.with_unrestricted_agent(is_accepted), ..self }
    }

    /// Sets these labels on namespaces of leases.
    #[must_use]
    pub fn with_guest_labels(self, guests: GuestLabels) -> Self {
        Self { guests, ..self }
    }

    fn namespaces(&self) -> Api<Namespace> {
        Api::all(self.api.client())
    }

    fn namespaced<K>(&self, lease_id: LeaseId) -> Api<K>
    where
        K: kube::Resource<Scope = kube::core::NamespaceResourceScope>,
        K::DynamicType: Default,
    {
        Api::namespaced(self.api.client(), &namespace_name(lease_id))
    }

    async fn make(&self, lease: &DonorLease) -> Result<Prepared, DeliveryError> {
        let id = lease.lease_id;
        let devices = self.device_names().await?;
        let metadata = |name: &str| objects::metadata(lease, name);
        let sharing = self.nodes.sharing(lease).await?;
        self.policies.check_all(&self.guests).await?;
        if sharing.hami().is_some() {
            self.policies.check(guest_policies::HAMI).await?;
        }
        let quota = quota::resource_quota(lease, &sharing, &devices, metadata)?;
        self.nodes.open_to(lease).await?;
        self.make_namespace(lease, &sharing).await?;
        let quotas = self.namespaced::<ResourceQuota>(id);
        apply(&quotas, &quota).await?;
        apply(&self.namespaced::<LimitRange>(id), &quota::limit_range(lease, &sharing, metadata)).await?;
        apply(&self.namespaced::<NetworkPolicy>(id), &objects::network_policy(lease, &self.egress)).await?;
        let accounts = self.namespaced::<ServiceAccount>(id);
        for name in [objects::DEFAULT_SERVICE_ACCOUNT, objects::SERVICE_ACCOUNT] {
            apply(&accounts, &objects::service_account(lease, name)).await?;
        }
        self.ensure_tenant_role().await?;
        apply(&self.namespaced::<RoleBinding>(id), &objects::role_binding(lease)).await?;
        apply(&self.namespaced::<Secret>(id), &objects::token_secret(lease)).await?;
        self.await_quota(&quotas, &quota).await?;
        claims::make(&self.api.client(), &self.salt, lease).await?;
        Ok(Prepared { namespace: namespace_name(id) })
    }

    /// Creates the namespace, or resets its labels if it is ours.
    async fn make_namespace(&self, lease: &DonorLease, sharing: &LeaseSharing) -> Result<(), DeliveryError> {
        let namespaces = self.namespaces();
        let wanted = objects::namespace(lease, sharing, &self.guests);
        let name = wanted.name_any();
        let operation = format!("create namespace {name}");
        if self.owned_namespace(lease.lease_id).await?.is_none() {
            let parameters = creating();
            // Create, unlike apply, never takes over an object that somebody else made meanwhile.
            return match call(&operation, namespaces.create(&parameters, &wanted)).await {
                Ok(_) => Ok(()),
                Err(error) => match self.owned_namespace(lease.lease_id).await? {
                    Some(_) => Ok(()),
                    None => Err(error),
                },
            };
        }
        apply(&namespaces, &wanted).await.map(drop)
    }

    /// The namespace of the lease, if it exists; an error if it is not ours, or is being deleted.
    async fn owned_namespace(&self, lease_id: LeaseId) -> Result<Option<Namespace>, DeliveryError> {
        let name = namespace_name(lease_id);
        let Some(namespace) = call_opt(&format!("read namespace {name}"), self.namespaces().get(&name)).await? else {
            return Ok(None);
        };
        check_owner(namespace.labels(), lease_id)?;
        if namespace.metadata.deletion_timestamp.is_some() {
            return Err(DeliveryError::temporary(
                format!("prepare namespace {name}"),
                "it is being deleted; its objects must go first",
            ));
        }
        Ok(Some(namespace))
    }

    /// Creates or updates the tenant's role, if the agent has the rights; the agent's manifests contain it too.
    async fn ensure_tenant_role(&self) -> Result<(), DeliveryError> {
        let roles = Api::<ClusterRole>::all(self.api.client());
        let wanted = objects::tenant_role();
        let found = call_opt("read ClusterRole comity-tenant", roles.get(objects::TENANT_ROLE)).await?;
        if found.is_some_and(|role| role.rules == wanted.rules) {
            return Ok(());
        }
        apply(&roles, &wanted).await.map(drop).map_err(|error| match error {
            DeliveryError::Permanent { code, message } => DeliveryError::Permanent {
                code,
                message: format!(
                    "{message} (ClusterRole comity-tenant is absent or of another version: apply \
                    deploy/agent/tenant-role.yaml)"
                ),
            },
            temporary => temporary,
        })
    }

    /// All device names that nodes of the cluster count, and the well-known ones.
    async fn device_names(&self) -> Result<Arc<BTreeSet<String>>, DeliveryError> {
        let mut kept = self.devices.lock().await;
        let now = self.clock.elapsed();
        if let Some((read_at, names)) = kept.as_ref()
            && now.saturating_sub(*read_at) < DEVICE_NAMES_AGE
        {
            return Ok(Arc::clone(names));
        }
        let nodes = Api::<Node>::all(self.api.client());
        let mut on_nodes = BTreeSet::new();
        let mut pager = Pager::new(ListParams::default());
        while let Some(page) = pager.page() {
            let list = call("list nodes", nodes.list(page)).await?;
            pager.turn(&list.metadata);
            for status in list.items.iter().filter_map(|node| node.status.as_ref()) {
                on_nodes.extend(
                    [&status.capacity, &status.allocatable]
                        .into_iter()
                        .flatten()
                        .flat_map(|counts| counts.keys().cloned()),
                );
            }
        }
        let names = Arc::new(gpu_resource::all_known(on_nodes.iter().map(String::as_str)));
        *kept = Some((now, Arc::clone(&names)));
        Ok(names)
    }

    /// Waits until the quota is counted: until then the API server admits no pod, and the tenant's first pod would
    /// fail.
    async fn await_quota(&self, quotas: &Api<ResourceQuota>, wanted: &ResourceQuota) -> Result<(), DeliveryError> {
        let operation = "wait for the quota to be counted";
        let names = |hard: Option<&std::collections::BTreeMap<String, _>>| {
            hard.map(|hard| hard.keys().cloned().collect::<BTreeSet<String>>())
        };
        let wanted = names(wanted.spec.as_ref().and_then(|spec| spec.hard.as_ref()));
        let began = self.clock.elapsed();
        loop {
            let quota = call(operation, quotas.get(quota::QUOTA_NAME)).await?;
            let spec = quota.spec.as_ref().and_then(|spec| spec.hard.as_ref());
            let status = quota.status.as_ref();
            let counted = status.and_then(|status| status.hard.as_ref());
            if counted == spec && status.is_some_and(|status| status.used.is_some()) && names(counted) == wanted {
                return Ok(());
            }
            if self.clock.elapsed().saturating_sub(began) > QUOTA_PATIENCE {
                let reason =
                    format!("not done after {} s; is kube-controller-manager running?", QUOTA_PATIENCE.as_secs());
                return Err(DeliveryError::temporary(operation, reason));
            }
            self.clock.sleep(QUOTA_POLL).await;
        }
    }

    async fn issue(&self, lease: &DonorLease) -> Result<ApiCredential, DeliveryError> {
        let id = lease.lease_id;
        if self.owned_namespace(id).await?.is_none() {
            return Err(DeliveryError::temporary(
                format!("issue a token for {id}"),
                "its namespace does not exist; it is made again",
            ));
        }
        // Applied, not read: a tenant that deleted the Secret voided its token, and gets a new one.
        let secret = apply(&self.namespaced::<Secret>(id), &objects::token_secret(lease)).await?;
        let remaining = Duration::from_millis(lease.ends_at_ms.saturating_sub(self.clock.unix_ms()));
        let seconds = remaining.clamp(MIN_TOKEN_LIFE, MAX_TOKEN_LIFE).as_secs();
        let request = TokenRequest {
            spec: TokenRequestSpec {
                // None: the API server's own audience.
                audiences: Vec::new(),
                expiration_seconds: Some(i64::try_from(seconds).unwrap_or(i64::MAX)),
                bound_object_ref: Some(BoundObjectReference {
                    api_version: Some("v1".to_owned()),
                    kind: Some("Secret".to_owned()),
                    name: Some(objects::TOKEN_SECRET.to_owned()),
                    uid: secret.metadata.uid,
                }),
            },
            ..TokenRequest::default()
        };
        let operation = format!("issue a token for {id}");
        let accounts = self.namespaced::<ServiceAccount>(id);
        let answer =
            call(&operation, accounts.create_token_request(objects::SERVICE_ACCOUNT, &PostParams::default(), &request))
                .await?;
        let status = answer.status.ok_or_else(|| DeliveryError::temporary(&operation, "the API server sent none"))?;
        let token_ends = u64::try_from(status.expiration_timestamp.0.as_millisecond()).unwrap_or(0);
        Ok(ApiCredential {
            kind: CredentialKind::Kubernetes,
            ca_pem: self.api.ca_pem().to_owned(),
            tls_server_name: self.api.tls_server_name().to_owned(),
            token: SecretString::new(status.token),
            namespace: namespace_name(id),
            expires_at_ms: token_ends,
            server_port: API_PORT,
        })
    }

    async fn leases(&self) -> Result<BTreeSet<LeaseId>, DeliveryError> {
        let mut leases = self.nodes.leases_with_resource().await?;
        let namespaces = self.namespaces();
        let mut pager = Pager::new(ListParams::default().labels(LEASE_LABEL));
        while let Some(page) = pager.page() {
            let list = call("list the namespaces of leases", namespaces.list_metadata(page)).await?;
            pager.turn(&list.metadata);
            leases.extend(list.items.iter().filter_map(lease_of));
        }
        Ok(leases)
    }
}

impl DonorDelivery for NamespaceDelivery {
    fn prepare<'a>(&'a self, lease: &'a DonorLease) -> BoxFuture<'a, Result<Prepared, DeliveryError>> {
        Box::pin(self.make(lease))
    }

    fn credential<'a>(&'a self, lease: &'a DonorLease) -> BoxFuture<'a, Result<ApiCredential, DeliveryError>> {
        Box::pin(self.issue(lease))
    }

    fn reopen<'a>(&'a self, lease: &'a DonorLease) -> BoxFuture<'a, Result<(), DeliveryError>> {
        Box::pin(self.nodes.reopen(lease))
    }

    fn remove(&self, lease_id: LeaseId) -> BoxFuture<'_, Result<(), DeliveryError>> {
        Box::pin(self.take_down(lease_id))
    }

    fn list(&self) -> BoxFuture<'_, Result<BTreeSet<LeaseId>, DeliveryError>> {
        Box::pin(self.leases())
    }

    fn api_target(&self) -> ForwardTarget {
        self.api.target()
    }
}

/// The lease of a namespace; `None` if label and name disagree.
fn lease_of(namespace: &PartialObjectMeta<Namespace>) -> Option<LeaseId> {
    let lease = namespace.labels().get(LEASE_LABEL)?.parse().ok()?;
    (namespace_name(lease) == namespace.name_any()).then_some(lease)
}

/// Checks that the namespace has this lease's label.
fn check_owner(labels: &std::collections::BTreeMap<String, String>, lease_id: LeaseId) -> Result<(), DeliveryError> {
    let name = namespace_name(lease_id);
    match labels.get(LEASE_LABEL) {
        Some(lease) if *lease == lease_id.to_string() => Ok(()),
        Some(other) => Err(DeliveryError::permanent(
            "namespace-not-ours",
            format!(
                "namespace {name} carries {LEASE_LABEL}={other}, not {lease_id}; it is left alone: rename or delete it"
            ),
        )),
        None => Err(DeliveryError::permanent(
            "namespace-not-ours",
            format!(
                "namespace {name} exists and was not made by Comity: it has no label {LEASE_LABEL}; it is left alone: \
                 rename or delete it"
            ),
        )),
    }
}
