//! The admission policies that hold guests to their leases, and this agent to its task. Without them only quotas, Pod
//! Security and RBAC would, so the donor makes no namespace of a lease. And those that hold an origin's pods and
//! namespaces to its leases.

mod shipped_policy;

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use comity_agent_kubernetes::call::{call, call_opt};
use comity_agent_model::delivery_error::DeliveryError;
use comity_agent_model::guest_labels::GuestLabels;
use comity_agent_model::lease::lease_id::LEASE_LABEL;
use comity_runtime::clock::Clock;
use k8s_openapi::api::core::v1::Namespace;
use kube::api::{DynamicObject, ListParams};
use kube::core::{ApiResource, GroupVersionKind, PartialObjectMeta};
use kube::{Api, Client};
use tokio::sync::Mutex;

use crate::agent_restriction;
use shipped_policy::{BINDING, POLICY};

pub(crate) use shipped_policy::{GuestPolicy, HAMI};

/// Key of the check of the agent itself; no policy of guests has this name.
const AGENT: &str = "comity-agent";
/// How long a policy that was found counts as found: many leases may be prepared at once.
const FOUND_AGE: Duration = Duration::from_secs(2);
/// The same for the check of the agent itself, which is a refused request in the log of the API server.
const RESTRICTED_AGE: Duration = Duration::from_secs(30);

/// Policies that are not in force, by name, each with the reason and the file to apply.
pub type PolicyProblems = BTreeMap<&'static str, String>;

/// Checks policies of one cluster.
pub struct GuestPolicies {
    client: Client,
    clock: Arc<dyn Clock>,
    /// Whether the agent itself must be restricted, too.
    restricts_agent: bool,
    /// When each was found.
    found: Mutex<BTreeMap<&'static str, Duration>>,
}

impl fmt::Debug for GuestPolicies {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GuestPolicies").finish_non_exhaustive()
    }
}

impl GuestPolicies {
    /// Checks those of the cluster behind `client`.
    #[must_use]
    pub fn new(client: Client, clock: Arc<dyn Clock>) -> Self {
        Self { client, clock, restricts_agent: true, found: Mutex::default() }
    }

    /// Whether an agent that no policy restricts may lend (`kubernetes.unrestricted`).
    #[must_use]
    pub fn with_unrestricted_agent(self, is_accepted: bool) -> Self {
        Self { restricts_agent: !is_accepted, ..self }
    }

    /// Checks that a policy restricts this agent, unless the owner accepted that none does.
    ///
    /// # Errors
    /// A permanent error with the remedy, or a temporary one if the API server does not answer.
    pub async fn check_agent(&self) -> Result<(), DeliveryError> {
        let mut found = self.found.lock().await;
        let now = self.clock.elapsed();
        let is_recent = found.get(AGENT).is_some_and(|at| now.saturating_sub(*at) < RESTRICTED_AGE);
        if self.restricts_agent && !is_recent {
            found.remove(AGENT);
            agent_restriction::check(self.client.clone()).await?;
            found.insert(AGENT, now);
        }
        Ok(())
    }

    /// Checks all that a namespace of a lease needs; returns the policies of guests.
    ///
    /// # Errors
    /// A permanent error that names the file to apply, or a temporary one if the API server does not answer.
    pub async fn check_all(&self, guests: &GuestLabels) -> Result<Vec<&'static str>, DeliveryError> {
        self.check_agent().await?;
        let mut names = Vec::new();
        for policy in GuestPolicy::required(guests) {
            self.check(policy).await?;
            names.push(policy.name);
        }
        Ok(names)
    }

    /// All that is not in force of what namespaces of leases need, those that run here included.
    ///
    /// # Errors
    /// A temporary error if the API server does not answer, unless it showed a problem before.
    pub async fn problems(&self, guests: &GuestLabels) -> Result<PolicyProblems, DeliveryError> {
        let mut needed: Vec<GuestPolicy> = GuestPolicy::required(guests).collect();
        for namespace in self.namespaces_of_leases().await? {
            for policy in GuestPolicy::of_namespace(&namespace.metadata) {
                if !needed.contains(&policy) {
                    needed.push(policy);
                }
            }
        }
        let mut checked = vec![(AGENT, self.check_agent().await)];
        for policy in needed {
            checked.push((policy.name, self.check(policy).await));
        }
        let (mut problems, mut unclear) = (PolicyProblems::new(), None);
        for (name, result) in checked {
            match result {
                Ok(()) => {}
                Err(DeliveryError::Permanent { message, .. }) => drop(problems.insert(name, message)),
                Err(temporary) => unclear = Some(temporary),
            }
        }
        unclear.filter(|_| problems.is_empty()).map_or(Ok(problems), Err)
    }

    async fn namespaces_of_leases(&self) -> Result<Vec<PartialObjectMeta<Namespace>>, DeliveryError> {
        let namespaces = Api::<Namespace>::all(self.client.clone());
        let of_leases = ListParams::default().labels(LEASE_LABEL);
        Ok(call("list the namespaces of leases", namespaces.list_metadata(&of_leases)).await?.items)
    }

    /// Checks all that a cluster needs to borrow virtual nodes; returns their names.
    ///
    /// # Errors
    /// As [`check_all`](Self::check_all).
    pub async fn check_origin(&self) -> Result<Vec<&'static str>, DeliveryError> {
        for policy in GuestPolicy::OF_ORIGINS {
            self.check(policy).await?;
        }
        Ok(GuestPolicy::OF_ORIGINS.map(|policy| policy.name).to_vec())
    }

    /// Checks that a policy is there and denies what the shipped one does.
    ///
    /// # Errors
    /// A permanent error that names the file to apply, or a temporary one if the API server does not answer.
    pub(crate) async fn check(&self, policy: GuestPolicy) -> Result<(), DeliveryError> {
        let mut found = self.found.lock().await;
        let now = self.clock.elapsed();
        if found.get(policy.name).is_some_and(|at| now.saturating_sub(*at) < FOUND_AGE) {
            return Ok(());
        }
        found.remove(policy.name);
        let problem = match self.problem(policy).await {
            Ok(None) => {
                found.insert(policy.name, now);
                return Ok(());
            }
            Ok(Some(problem)) => problem,
            Err(DeliveryError::Permanent { message, .. }) => message,
            Err(temporary) => return Err(temporary),
        };
        Err(DeliveryError::permanent("admission-policy", policy.complaint(&problem)))
    }

    async fn problem(&self, of: GuestPolicy) -> Result<Option<String>, DeliveryError> {
        let policy = self.read(POLICY, "validatingadmissionpolicies", of.name).await?;
        let binding = self.read(BINDING, "validatingadmissionpolicybindings", of.name).await?;
        Ok(of.problem(policy.as_ref(), binding.as_ref()))
    }

    /// Reads an object with all its fields, also those that this agent does not know.
    async fn read(&self, kind: &str, plural: &str, name: &str) -> Result<Option<DynamicObject>, DeliveryError> {
        let kind = GroupVersionKind::gvk("admissionregistration.k8s.io", "v1", kind);
        let resource = ApiResource::from_gvk_with_plural(&kind, plural);
        let objects = Api::<DynamicObject>::all_with(self.client.clone(), &resource);
        call_opt(&format!("read {} {name}", kind.kind), objects.get(name)).await
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use std::collections::BTreeSet;
    use std::sync::Mutex as StdMutex;

    use comity_runtime::SystemClock;
    use http::{Request, Response};
    use kube::client::Body;
    use serde_json::json;

    use super::shipped_policy::tests::in_cluster;
    use super::*;

    /// What an API server does not have.
    type Missing = Arc<StdMutex<BTreeSet<&'static str>>>;

    /// The check of an API server that has all shipped policies but the missing ones, and one namespace of a lease.
    fn policies_without(missing: &Missing, namespace: serde_json::Value) -> GuestPolicies {
        let missing = Arc::clone(missing);
        let service = tower::service_fn(move |request: Request<Body>| {
            let path = request.uri().path();
            let name = path.rsplit('/').next().unwrap_or_default();
            let kind = if path.contains("policybindings") { BINDING } else { POLICY };
            let is_there = |policy: &&GuestPolicy| policy.name == name && !missing.lock().unwrap().contains(name);
            let (status, body) = if path.ends_with("/namespaces") {
                let list = json!({
                    "apiVersion": "meta.k8s.io/v1", "kind": "PartialObjectMetadataList", "metadata": {},
                    "items": [{ "apiVersion": "v1", "kind": "Namespace", "metadata": namespace }],
                });
                (200, list.to_string())
            } else if let Some(policy) = GuestPolicy::ALL.iter().find(is_there) {
                (200, serde_json::to_string(&in_cluster(*policy, kind)).unwrap())
            } else {
                (404, r#"{"kind":"Status","status":"Failure","reason":"NotFound","code":404}"#.to_owned())
            };
            let answer = Response::builder().status(status).body(Body::from(body.into_bytes()));
            async move { answer.map_err(std::io::Error::other) }
        });
        GuestPolicies::new(Client::new(service, "default"), Arc::new(SystemClock::new())).with_unrestricted_agent(true)
    }

    #[tokio::test]
    async fn origin_offloads_without_its_policies() {
        let missing = Missing::default();
        policies_without(&missing, json!({})).check_origin().await.unwrap();
        for policy in GuestPolicy::OF_ORIGINS {
            *missing.lock().unwrap() = [policy.name].into();
            let error = policies_without(&missing, json!({})).check_origin().await.unwrap_err();
            let DeliveryError::Permanent { code, message } = error else { panic!("{error}") };
            assert_eq!(code, "admission-policy");
            assert!(
                message.contains(policy.name) && message.contains("apply deploy/agent/liqo-origin.yaml"),
                "{message}"
            );
        }
    }

    #[tokio::test]
    async fn every_policy_that_running_guests_lack_is_told() {
        let missing = Missing::default();
        let guests = GuestLabels { void_devices: true, ..GuestLabels::default() };
        let told = async |namespace| policies_without(&missing, namespace).problems(&guests).await.unwrap();
        let parts = json!({ "annotations": { "comity.dev/hami-devices": "GPU-a" } });
        assert!(told(parts.clone()).await.is_empty());
        *missing.lock().unwrap() = GuestPolicy::ALL.map(|policy| policy.name).into();
        let plain = told(json!({})).await;
        assert_eq!(plain.keys().copied().collect::<Vec<_>>(), ["comity-tenant", "comity-void-devices"]);
        assert!(plain["comity-tenant"].ends_with("it is absent; apply deploy/agent/admission.yaml"), "{plain:?}");
        let in_parts = told(parts).await;
        assert!(
            in_parts.len() == 3 && in_parts["comity-hami"].ends_with("apply deploy/agent/hami.yaml"),
            "{in_parts:?}"
        );
        // As of a setting that was turned off while the lease runs.
        let earlier = told(json!({ "labels": { "comity.dev/always-pull": "true" } })).await;
        assert!(earlier.len() == 3 && earlier.contains_key("comity-always-pull"), "{earlier:?}");
    }
}
