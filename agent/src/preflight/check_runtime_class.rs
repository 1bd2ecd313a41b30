//! The RuntimeClass of guests' pods: without it the API server refuses these pods, and canaries.

use comity_agent_kubernetes::api::{CallError, within_limit};
use comity_runtime::checks::Check;
use k8s_openapi::api::node::v1::RuntimeClass;
use kube::{Api, Client};

const RUNTIME_CLASS_CHECK: &str = "runtime class";

pub(super) async fn check(client: &Client, class: &str) -> Check {
    let found = within_limit(Api::<RuntimeClass>::all(client.clone()).get_opt(class)).await;
    judge(class, found.map(|found| found.is_some()))
}

fn judge(class: &str, exists: Result<bool, CallError>) -> Check {
    match exists {
        Ok(true) => Check::ok(RUNTIME_CLASS_CHECK, format!("guests' pods run under RuntimeClass {class}")),
        Ok(false) => Check::failed(
            RUNTIME_CLASS_CHECK,
            format!(
                "sharing.runtimeClass is {class}, and RuntimeClass {class:?} is not found: pods of leases are refused"
            ),
            "make that RuntimeClass, or correct sharing.runtimeClass",
        ),
        Err(error) => Check::warning(
            RUNTIME_CLASS_CHECK,
            format!("RuntimeClass {class} cannot be read: {error}"),
            "kubectl apply -f deploy/agent/rbac.yaml",
        ),
    }
}

#[cfg(test)]
mod tests {
    use comity_runtime::checks::Outcome;

    use super::*;

    #[test]
    fn a_missing_runtime_class_fails() {
        let results = [Ok(true), Ok(false), Err(CallError::Timeout)].map(|exists| judge("kata", exists).result);
        assert_eq!(results, [Outcome::Ok, Outcome::Failed, Outcome::Warning]);
        assert!(judge("kata", Ok(false)).detail.contains("RuntimeClass \"kata\" is not found"));
    }
}
