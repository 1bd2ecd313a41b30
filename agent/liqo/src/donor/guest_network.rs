//! What pods of a consumer reach on this cluster. Pure.

use std::collections::{BTreeMap, BTreeSet};

use comity_agent_kubernetes::call::own_labels;
use comity_agent_kubernetes::guest_egress::{block, egress_rules, pods_of_namespaces};
use comity_agent_model::local_policy::GuestEgress;
use ipnet::{IpNet, Ipv4Net};
use k8s_openapi::api::networking::v1::{NetworkPolicy, NetworkPolicySpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use kube::api::{DynamicObject, ObjectMeta};
use serde_json::Value;

use crate::REMOTE_CLUSTER_LABEL;

/// Name of the policy in each remote namespace.
pub(crate) const POLICY_NAME: &str = "comity-egress";

/// Networks of other clusters' pods as this cluster sees them, by Liqo id.
pub type PeerNetworks = BTreeMap<String, BTreeSet<Ipv4Net>>;

/// The policy of a consumer's namespace: its pods reach its other pods here, those of its own cluster, DNS and public
/// addresses.
pub(crate) fn network_policy(
    namespace: &str,
    consumer: &str,
    networks: &BTreeSet<Ipv4Net>,
    egress: &GuestEgress,
) -> NetworkPolicy {
    let its_networks = networks.iter().filter_map(|network| block(IpNet::V4(*network), &egress.deny));
    let own = std::iter::once(pods_of_namespaces(REMOTE_CLUSTER_LABEL, &[consumer])).chain(its_networks);
    NetworkPolicy {
        metadata: ObjectMeta {
            name: Some(POLICY_NAME.to_owned()),
            namespace: Some(namespace.to_owned()),
            labels: Some(own_labels([])),
            ..ObjectMeta::default()
        },
        spec: Some(NetworkPolicySpec {
            pod_selector: Some(LabelSelector::default()),
            policy_types: Some(vec!["Egress".to_owned()]),
            ingress: None,
            egress: Some(egress_rules(own.collect(), egress)),
        }),
    }
}

/// Ranges of this cluster at which Liqo's own network shows another one, from its Configuration.
pub(crate) fn remapped_ranges(configuration: &DynamicObject) -> BTreeSet<Ipv4Net> {
    let kinds = ["pod", "external"].into_iter();
    let ranges = kinds.filter_map(|kind| configuration.data.pointer(&format!("/status/remote/cidr/{kind}")));
    ranges.filter_map(Value::as_array).flatten().filter_map(|range| range.as_str()?.parse().ok()).collect()
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use serde_json::json;

    use super::*;

    fn networks(text: &[&str]) -> BTreeSet<Ipv4Net> {
        text.iter().map(|network| network.parse().unwrap()).collect()
    }

    #[test]
    fn guests_reach_their_own_cluster_and_no_other_private_network() {
        let egress = GuestEgress { allow: Vec::new(), deny: vec!["10.44.7.0/24".parse().unwrap()] };
        let policy = network_policy("team-a-campus", "campus", &networks(&["10.44.0.0/16"]), &egress);
        let spec = serde_json::to_value(policy.spec.unwrap()).unwrap();
        assert_eq!(spec["policyTypes"], json!(["Egress"]));
        let own = json!([
            { "namespaceSelector": { "matchExpressions": [
                { "key": "liqo.io/remote-cluster-id", "operator": "In", "values": ["campus"] },
            ] } },
            { "ipBlock": { "cidr": "10.44.0.0/16", "except": ["10.44.7.0/24"] } },
        ]);
        assert_eq!(spec["egress"][0], json!({ "to": own }));
        let public = &spec["egress"][2]["to"][0]["ipBlock"];
        assert_eq!(public["cidr"], "0.0.0.0/0");
        let closed = public["except"].as_array().unwrap();
        assert!(closed.contains(&json!("10.0.0.0/8")) && closed.contains(&json!("169.254.0.0/16")), "{closed:?}");
    }

    #[test]
    fn ranges_of_liqos_network_are_those_that_it_chose_here() {
        let configuration: DynamicObject = serde_json::from_value(json!({
            "metadata": {}, "spec": { "remote": { "cidr": { "pod": ["10.200.0.0/16"] } } },
            "status": { "remote": { "cidr": { "pod": ["10.81.0.0/16"], "external": ["10.82.0.0/16", "none"] } } },
        }))
        .unwrap();
        assert_eq!(remapped_ranges(&configuration), networks(&["10.81.0.0/16", "10.82.0.0/16"]));
        let pending = serde_json::from_value(json!({ "metadata": {}, "spec": {} })).unwrap();
        assert!(remapped_ranges(&pending).is_empty());
    }
}
