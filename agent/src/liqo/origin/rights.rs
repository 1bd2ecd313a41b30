//! The agent's rights in a tenant namespace: it reads credentials there, and in no other namespace. So it binds them for
//! itself there, with the one role that it may bind.

use std::time::Duration;

use k8s_openapi::api::authorization::v1::{ResourceAttributes, SelfSubjectAccessReview};
use k8s_openapi::api::rbac::v1::{RoleBinding, RoleRef, Subject};
use kube::Api;
use kube::api::{ObjectMeta, PostParams};

use super::LiqoOrigin;
use crate::delivery::DeliveryError;
use crate::delivery::call::{apply, call, own_labels};
use crate::liqo::{ORIGIN_ROLE as ROLE, own_user_name};

/// Looks at the rights after binding them: a second in all, where some milliseconds were seen.
const RIGHTS_LOOKS: usize = 50;
const RIGHTS_POLL: Duration = Duration::from_millis(20);
const RBAC: &str = "rbac.authorization.k8s.io";

impl LiqoOrigin {
    pub(super) async fn bind_own_rights(&self, namespace: &str) -> Result<(), DeliveryError> {
        let user = own_user_name(&self.client).await?;
        let binding = RoleBinding {
            metadata: ObjectMeta { name: Some(ROLE.to_owned()), labels: Some(own_labels([])), ..ObjectMeta::default() },
            role_ref: RoleRef { api_group: RBAC.to_owned(), kind: "ClusterRole".to_owned(), name: ROLE.to_owned() },
            subjects: Some(vec![subject(&user)]),
        };
        apply(&Api::<RoleBinding>::namespaced(self.client.clone(), namespace), &binding).await?;
        self.await_rights(namespace).await
    }

    /// The API server takes a moment to begin with a new binding.
    async fn await_rights(&self, namespace: &str) -> Result<(), DeliveryError> {
        let reviews = Api::<SelfSubjectAccessReview>::all(self.client.clone());
        let mut question = SelfSubjectAccessReview::default();
        question.spec.resource_attributes = Some(ResourceAttributes {
            namespace: Some(namespace.to_owned()),
            verb: Some("watch".to_owned()),
            resource: Some("secrets".to_owned()),
            ..ResourceAttributes::default()
        });
        let operation = format!("wait for the rights in namespace {namespace}");
        for _ in 0..RIGHTS_LOOKS {
            let answer = call(&operation, reviews.create(&PostParams::default(), &question)).await?;
            if answer.status.is_some_and(|status| status.allowed) {
                return Ok(());
            }
            tokio::time::sleep(RIGHTS_POLL).await;
        }
        Err(DeliveryError::temporary(
            operation,
            format!("ClusterRole {ROLE} gives none; apply deploy/agent/liqo-origin.yaml"),
        ))
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
            api_group: Some(RBAC.to_owned()),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn accounts_and_users_are_told_apart() {
        let account = subject("system:serviceaccount:comity-system:comity-agent");
        assert_eq!((account.kind.as_str(), account.namespace.as_deref()), ("ServiceAccount", Some("comity-system")));
        assert_eq!(account.name, "comity-agent");
        let user = subject("admin");
        assert_eq!((user.kind.as_str(), user.name.as_str(), user.namespace), ("User", "admin", None));
    }
}
