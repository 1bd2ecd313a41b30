//! Whether something shows that the CNI enforces the NetworkPolicies of guests.

use comity_runtime::checks::Check;
use kube::Client;

use crate::config::{CanarySettings, NetworkPolicies};
use crate::services::canary::{CANARY_NAMESPACE, check_policy};

const NETWORK_POLICIES_CHECK: &str = "network policies";

/// Checks a cluster that lends.
pub(super) async fn check(client: &Client, canary: Option<&CanarySettings>) -> Check {
    let policies = canary.map(|canary| canary.network_policies);
    let denies = match policies {
        Some(NetworkPolicies::Required) => check_policy(client).await,
        Some(NetworkPolicies::NotEnforced) | None => Ok(()),
    };
    judge(policies, denies)
}

/// `denies`: whether the NetworkPolicy of canaries is there.
fn judge(policies: Option<NetworkPolicies>, denies: Result<(), String>) -> Check {
    match (policies, denies) {
        (None, _) => Check::warning(
            NETWORK_POLICIES_CHECK,
            "nothing shows that the CNI enforces NetworkPolicies: if it does not, guests reach this cluster's networks",
            "set canary.image, so that each node is proved before it lends (docs/sharing.md)",
        ),
        (Some(NetworkPolicies::NotEnforced), _) => Check::warning(
            NETWORK_POLICIES_CHECK,
            "canary.networkPolicies is not-enforced: guests reach this cluster's networks",
            "use a CNI that enforces NetworkPolicies, and remove the setting",
        ),
        (Some(NetworkPolicies::Required), Ok(())) => {
            Check::ok(NETWORK_POLICIES_CHECK, "a node lends once a canary shows that the CNI enforces them there")
        }
        (Some(NetworkPolicies::Required), Err(reason)) => Check::failed(
            NETWORK_POLICIES_CHECK,
            format!("no node can be proved: {reason}"),
            format!("kubectl apply -f {}, as this cluster's owner", CANARY_NAMESPACE.manifest),
        ),
    }
}

#[cfg(test)]
mod tests {
    use comity_runtime::checks::Outcome;

    use super::*;

    #[test]
    fn a_donor_learns_that_nothing_shows_enforcement() {
        let unknown = judge(None, Ok(()));
        assert_eq!(unknown.result, Outcome::Warning);
        assert!(unknown.detail.starts_with("nothing shows that the CNI enforces NetworkPolicies"), "{unknown:?}");
        assert_eq!(judge(Some(NetworkPolicies::NotEnforced), Ok(())).result, Outcome::Warning);
        assert_eq!(judge(Some(NetworkPolicies::Required), Ok(())).result, Outcome::Ok);
        let missing = judge(Some(NetworkPolicies::Required), Err("it is missing".to_owned()));
        assert_eq!(missing.result, Outcome::Failed);
        assert_eq!(missing.detail, "no node can be proved: it is missing");
    }
}
