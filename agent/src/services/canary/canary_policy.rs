//! The NetworkPolicy of `deploy/agent/canary.yaml`, which denies canaries all egress. The agent only reads it: its own
//! admission policy lets it write none there.

use comity_agent_kubernetes::api::{CallError, within_limit};
use k8s_openapi::api::networking::v1::NetworkPolicy;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use kube::{Api, Client};

use super::canary_pod::{CANARY_NAMESPACE, ROLE_LABEL, Role};

/// Its name.
const POLICY_NAME: &str = "restricted";

/// Whether the NetworkPolicy is as the manifest has it.
///
/// # Errors
/// One sentence with the remedy.
pub async fn check_policy(client: &Client) -> Result<(), String> {
    let policies = Api::<NetworkPolicy>::namespaced(client.clone(), CANARY_NAMESPACE.name);
    judge(within_limit(policies.get_opt(POLICY_NAME)).await)
}

fn judge(found: Result<Option<NetworkPolicy>, CallError>) -> Result<(), String> {
    let (namespace, manifest) = (CANARY_NAMESPACE.name, CANARY_NAMESPACE.manifest);
    let refuse = |problem: &str| Err(format!("NetworkPolicy {namespace}/{POLICY_NAME} {problem}; apply {manifest}"));
    match found {
        Ok(Some(policy)) if denies_egress(&policy) => Ok(()),
        Ok(Some(_)) => refuse("does not deny canaries all egress"),
        Ok(None) => refuse("is missing"),
        Err(error) => refuse(&format!("cannot be read: {error}")),
    }
}

fn denies_egress(policy: &NetworkPolicy) -> bool {
    let restricted = [(ROLE_LABEL.to_owned(), Role::Restricted.as_str().to_owned())];
    let selector = LabelSelector { match_labels: Some(restricted.into()), match_expressions: None };
    policy.spec.as_ref().is_some_and(|spec| {
        spec.pod_selector.as_ref() == Some(&selector)
            && spec.policy_types.iter().flatten().any(|direction| direction == "Egress")
            && spec.egress.iter().flatten().next().is_none()
    })
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use k8s_openapi::api::networking::v1::{NetworkPolicyEgressRule, NetworkPolicySpec};

    use super::*;

    const MANIFEST: &str = include_str!("../../../../deploy/agent/canary.yaml");

    fn shipped() -> NetworkPolicy {
        let documents = MANIFEST.split("\n---\n");
        let policies: Vec<&str> = documents.filter(|document| document.contains("kind: NetworkPolicy\n")).collect();
        assert_eq!(policies.len(), 1, "NetworkPolicies add up: another could open what this one denies");
        let policy: NetworkPolicy = serde_saphyr::from_str(policies[0]).unwrap();
        assert_eq!(policy.metadata.name.as_deref(), Some(POLICY_NAME));
        assert_eq!(policy.metadata.namespace.as_deref(), Some(CANARY_NAMESPACE.name));
        policy
    }

    #[test]
    fn the_shipped_policy_denies_canaries_all_egress() {
        assert_eq!(judge(Ok(Some(shipped()))), Ok(()));
    }

    #[test]
    fn a_missing_or_changed_policy_proves_nothing() {
        let changed = |change: fn(&mut NetworkPolicySpec)| {
            let mut policy = shipped();
            change(policy.spec.as_mut().unwrap());
            judge(Ok(Some(policy))).unwrap_err()
        };
        let open: fn(&mut NetworkPolicySpec) = |spec| spec.egress = Some(vec![NetworkPolicyEgressRule::default()]);
        for change in [
            open,
            |spec| spec.policy_types = Some(vec!["Ingress".to_owned()]),
            |spec| spec.pod_selector = Some(LabelSelector::default()),
            |spec| spec.pod_selector = None,
        ] {
            let error = changed(change);
            let wanted = "NetworkPolicy comity-canary/restricted does not deny canaries all egress; apply \
                          deploy/agent/canary.yaml";
            assert_eq!(error, wanted);
        }
        assert!(judge(Ok(None)).unwrap_err().contains("is missing; apply deploy/agent/canary.yaml"));
        assert!(judge(Err(CallError::Timeout)).unwrap_err().contains("cannot be read"));
    }
}
