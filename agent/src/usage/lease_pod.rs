//! The facts kept of a pod of a lease.

use comity_agent_kubernetes::gpu_resource::counts_gpus;
use comity_agent_kubernetes::pod_request::effective_request;
use comity_agent_liqo::CREATOR_LABEL;
use comity_agent_model::lease::lease_id::lease_of_namespace;
use comity_types::LeaseId;
use k8s_openapi::api::core::v1::Pod;

/// To whom a pod belongs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Owner {
    /// The lease of its namespace.
    Namespace(LeaseId),
    /// The lease whose virtual node's credential made it, by the credential's user.
    Creator(String),
}

/// An unfinished pod of a lease.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct LeasePod {
    pub(super) owner: Owner,
    pub(super) namespace: String,
    pub(super) name: String,
    /// Its containers run.
    pub(super) runs: bool,
    pub(super) requests_gpus: bool,
}

impl LeasePod {
    /// Key and facts of a pod; no facts of one that has finished or is of no lease.
    pub(super) fn entry(pod: &Pod) -> Option<(String, Option<Self>)> {
        let (namespace, name) = (pod.metadata.namespace.as_deref()?, pod.metadata.name.as_deref()?);
        let key = format!("{namespace}/{name}");
        let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref()).unwrap_or_default();
        let creator = pod.metadata.labels.as_ref().and_then(|labels| labels.get(CREATOR_LABEL));
        let owner = match (lease_of_namespace(namespace), creator) {
            _ if matches!(phase, "Succeeded" | "Failed") => None,
            (Some(lease), _) => Some(Owner::Namespace(lease)),
            (None, Some(user)) => Some(Owner::Creator(user.clone())),
            (None, None) => None,
        };
        let facts = owner.map(|owner| Self {
            owner,
            namespace: namespace.to_owned(),
            name: name.to_owned(),
            runs: phase == "Running",
            requests_gpus: effective_request(pod).iter().any(|(name, amount)| counts_gpus(name) && *amount > 0),
        });
        Some((key, facts))
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use serde_json::json;

    use super::*;

    fn facts(namespace: &str, labels: serde_json::Value, phase: &str) -> Option<LeasePod> {
        let pod = json!({
            "metadata": { "name": "p", "namespace": namespace, "labels": labels }, "status": { "phase": phase },
            "spec": { "containers": [{ "name": "c", "resources": { "limits": { "nvidia.com/gpu": "1" } } }] },
        });
        LeasePod::entry(&serde_json::from_value(pod).unwrap()).unwrap().1
    }

    #[test]
    fn a_pod_belongs_to_the_lease_of_its_namespace_or_creator() {
        let own = facts("comity-lease-7", json!({}), "Running").unwrap();
        assert_eq!(own.owner, Owner::Namespace(LeaseId(7)));
        assert!(own.runs && own.requests_gpus);
        let guest = facts("lab-campus", json!({ CREATOR_LABEL: "lease-7-0a1b" }), "Pending").unwrap();
        assert_eq!((guest.owner, guest.runs), (Owner::Creator("lease-7-0a1b".to_owned()), false));
        assert_eq!(facts("comity-system", json!({}), "Running"), None);
    }

    #[test]
    fn finished_pods_use_nothing() {
        for phase in ["Succeeded", "Failed"] {
            assert_eq!(facts("comity-lease-7", json!({}), phase), None);
        }
        for phase in ["", "Pending", "Unknown"] {
            assert!(!facts("comity-lease-7", json!({}), phase).unwrap().runs, "{phase}");
        }
    }
}
