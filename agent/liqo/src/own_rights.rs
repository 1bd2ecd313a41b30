//! The agent's own rights in tenant namespaces. RBAC cannot name future namespaces, so the agent binds its roles there
//! itself; `deploy/agent/admission.yaml` limits these bindings to tenant namespaces.

use std::time::Duration;

use comity_agent_kubernetes::call::{apply, call, own_labels};
use comity_agent_model::delivery_error::DeliveryError;
use k8s_openapi::api::authorization::v1::{ResourceAttributes, SelfSubjectAccessReview};
use k8s_openapi::api::rbac::v1::{RoleBinding, RoleRef, Subject};
use kube::api::{ObjectMeta, PostParams};
use kube::{Api, Client};

use crate::own_user_name;

/// Checks of the rights after binding them, within a second in total; observed: some milliseconds.
const RIGHTS_CHECKS: usize = 50;
const RIGHTS_POLL: Duration = Duration::from_millis(20);
/// API group of roles and their bindings.
pub(super) const RBAC_GROUP: &str = "rbac.authorization.k8s.io";

/// A ClusterRole for tenant namespaces.
pub(super) struct TenantRole {
    /// Its name, and that of its bindings.
    pub(super) name: &'static str,
    /// The manifest that has it.
    pub(super) manifest: &'static str,
    /// One of its rights, which shows whether it is in force: verb, API group and resource.
    pub(super) gives: (&'static str, &'static str, &'static str),
}

impl TenantRole {
    /// Binds it in a namespace, and waits until the rights are in force.
    pub(super) async fn bind(&self, client: &Client, namespace: &str) -> Result<(), DeliveryError> {
        let user = own_user_name(client).await?;
        let name = || self.name.to_owned();
        let binding = RoleBinding {
            metadata: ObjectMeta { name: Some(name()), labels: Some(own_labels([])), ..ObjectMeta::default() },
            role_ref: RoleRef { api_group: RBAC_GROUP.to_owned(), kind: "ClusterRole".to_owned(), name: name() },
            subjects: Some(vec![subject(&user)]),
        };
        apply(&Api::<RoleBinding>::namespaced(client.clone(), namespace), &binding).await?;
        self.await_rights(client, namespace).await
    }

    /// Waits for the rights: the API server needs a moment to apply a new binding.
    async fn await_rights(&self, client: &Client, namespace: &str) -> Result<(), DeliveryError> {
        let operation = format!("wait for the rights in namespace {namespace}");
        for _ in 0..RIGHTS_CHECKS {
            if self.is_in_force(client, namespace).await? {
                return Ok(());
            }
            tokio::time::sleep(RIGHTS_POLL).await;
        }
        Err(DeliveryError::temporary(
            operation,
            format!("ClusterRole {} gives none; apply {}", self.name, self.manifest),
        ))
    }

    /// Whether the agent has these rights in a namespace.
    pub(super) async fn is_in_force(&self, client: &Client, namespace: &str) -> Result<bool, DeliveryError> {
        let reviews = Api::<SelfSubjectAccessReview>::all(client.clone());
        let (verb, group, resource) = self.gives;
        let mut question = SelfSubjectAccessReview::default();
        question.spec.resource_attributes = Some(ResourceAttributes {
            namespace: Some(namespace.to_owned()),
            verb: Some(verb.to_owned()),
            group: Some(group.to_owned()),
            resource: Some(resource.to_owned()),
            ..ResourceAttributes::default()
        });
        let operation = format!("ask for the rights in namespace {namespace}");
        let answer = call(&operation, reviews.create(&PostParams::default(), &question)).await?;
        Ok(answer.status.is_some_and(|status| status.allowed))
    }
}

/// A user's name as a subject.
fn subject(user: &str) -> Subject {
    let account = user.strip_prefix("system:serviceaccount:").and_then(|rest| rest.split_once(':'));
    match account {
        Some((namespace, name)) => Subject {
            kind: "ServiceAccount".to_owned(),
            name: name.to_owned(),
            namespace: Some(namespace.to_owned()),
            api_group: None,
        },
        None => Subject {
            kind: "User".to_owned(),
            name: user.to_owned(),
            namespace: None,
            api_group: Some(RBAC_GROUP.to_owned()),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn accounts_and_users_are_distinguished() {
        let account = subject("system:serviceaccount:comity-system:comity-agent");
        assert_eq!((account.kind.as_str(), account.namespace.as_deref()), ("ServiceAccount", Some("comity-system")));
        assert_eq!(account.name, "comity-agent");
        let user = subject("admin");
        assert_eq!((user.kind.as_str(), user.name.as_str(), user.namespace), ("User", "admin", None));
    }
}
