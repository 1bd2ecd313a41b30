//! Whether the admission policy `comity-agent` restricts this agent.
//!
//! The policies of `deploy/agent/admission.yaml` name one ServiceAccount. An agent that runs as somebody else, such as by
//! an administrator's kubeconfig, has rights that nothing restricts, and so has whoever takes it over. So the agent asks
//! the API server for what the policy forbids, as a dry run, and lends only if the policy refuses it.

use comity_agent_kubernetes::api::{CallError, within_limit};
use comity_agent_kubernetes::call::creating;
use comity_agent_model::delivery_error::DeliveryError;
use comity_agent_model::lease::lease_id::namespace_name;
use comity_types::LeaseId;
use k8s_openapi::api::core::v1::Namespace;
use kube::api::{ObjectMeta, PostParams};
use kube::{Api, Client};

/// How API servers name the policy in a refusal.
const REFUSED_BY: &str = "ValidatingAdmissionPolicy 'comity-agent'";

/// The API server on a namespace of a lease without Pod Security.
#[derive(Debug, PartialEq, Eq)]
enum Verdict {
    Restricted,
    Unrestricted,
    /// Neither: it is to be asked again.
    Unclear(String),
}

/// Checks that the policy restricts this agent.
///
/// # Errors
/// A permanent error with the remedy, or a temporary one if the API server does not answer.
pub(crate) async fn check(client: Client) -> Result<(), DeliveryError> {
    let metadata = ObjectMeta { name: Some(namespace_name(LeaseId(0))), ..ObjectMeta::default() };
    let namespace = Namespace { metadata, ..Namespace::default() };
    let dry = PostParams { dry_run: true, ..creating() };
    let made = within_limit(Api::<Namespace>::all(client).create(&dry, &namespace)).await;
    match verdict_of(made.map(drop)) {
        Verdict::Restricted => Ok(()),
        Verdict::Unrestricted => Err(DeliveryError::permanent(
            "agent-unrestricted",
            "no admission policy restricts this agent, so whoever took it over would have all its rights: run it as \
             ServiceAccount comity-agent of namespace comity-system (a kubeconfig with a token of it will do), and apply \
             deploy/agent/admission.yaml; or accept that by kubernetes.unrestricted: true",
        )),
        Verdict::Unclear(reason) => Err(DeliveryError::temporary("see whether a policy restricts this agent", reason)),
    }
}

fn verdict_of(made: Result<(), CallError>) -> Verdict {
    match made {
        Err(CallError::Status(status)) if status.message.contains(REFUSED_BY) => Verdict::Restricted,
        // Without such a policy it would have been made, if there were none of this name.
        Ok(()) => Verdict::Unrestricted,
        Err(CallError::Status(status)) if status.code == 409 => Verdict::Unrestricted,
        Err(error) => Verdict::Unclear(error.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use kube::core::Status;

    use super::*;

    fn refused(code: u16, message: &str) -> Result<(), CallError> {
        Err(CallError::Status(Box::new(Status { code, message: message.to_owned(), ..Status::default() })))
    }

    #[test]
    fn only_the_policys_own_refusal_shows_that_the_agent_is_restricted() {
        let by_policy = "namespaces \"comity-lease-0\" is forbidden: ValidatingAdmissionPolicy 'comity-agent' with binding \
                         'comity-agent' denied request: a lease's namespace has the label of its lease";
        assert_eq!(verdict_of(refused(422, by_policy)), Verdict::Restricted);
        assert_eq!(verdict_of(Ok(())), Verdict::Unrestricted);
        assert_eq!(verdict_of(refused(409, "namespaces \"comity-lease-0\" already exists")), Verdict::Unrestricted);
        let by_another = "denied request by ValidatingAdmissionPolicy 'comity-agent-nodes'";
        for unclear in [refused(403, "cannot create resource \"namespaces\""), refused(422, by_another)] {
            assert!(matches!(verdict_of(unclear), Verdict::Unclear(_)));
        }
        assert!(matches!(verdict_of(Err(CallError::Timeout)), Verdict::Unclear(_)));
    }
}
