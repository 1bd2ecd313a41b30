//! Chooses claims of a lease that no other pod uses.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use comity_agent_kubernetes::api::within_limit;
use comity_agent_kubernetes::dynamic_resources::{ClaimFacts, NodeClaim, choose_claims};
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::api::resource::v1::ResourceClaim;
use kube::api::ListParams;
use kube::{Api, Client};

use super::completion::requested_gpus;

/// Pods and claims of one lease in a list: more than any quota admits.
const MAX_OBJECTS: u32 = 10_000;

/// Claims that were chosen for pods which no list may show yet: namespace, name, and until when they count.
#[derive(Debug, Default)]
pub(super) struct ChosenClaims {
    until: BTreeMap<(String, String), Duration>,
}

impl ChosenClaims {
    /// As many claims as the pod requests GPUs, all on one node; `None` if no node has so many free ones.
    ///
    /// # Errors
    /// A sentence, if claims or pods cannot be read.
    pub(super) async fn choose(
        &mut self,
        client: &Client,
        namespace: &str,
        pod: &Pod,
        now: Duration,
    ) -> Result<Option<Vec<String>>, String> {
        self.until.retain(|_, until| *until > now);
        let all = ListParams::default().limit(MAX_OBJECTS);
        let claims = Api::<ResourceClaim>::namespaced(client.clone(), namespace);
        let claims = within_limit(claims.list(&all)).await.map_err(|error| format!("its claims: {error}"))?;
        let claims: Vec<NodeClaim> = claims.items.iter().filter_map(of_lease).collect();
        let unfinished = all.fields("status.phase!=Succeeded,status.phase!=Failed");
        let pods = Api::<Pod>::namespaced(client.clone(), namespace);
        let pods = within_limit(pods.list(&unfinished)).await.map_err(|error| format!("its pods: {error}"))?;
        let mut in_use: BTreeSet<String> = pods.items.iter().flat_map(claims_of).collect();
        in_use.extend(self.until.keys().filter(|(of, _)| of == namespace).map(|(_, name)| name.clone()));
        Ok(choose_claims(&claims, &in_use, requested_gpus(pod)))
    }

    /// Counts claims as used until a time of the same clock.
    pub(super) fn note(&mut self, namespace: &str, names: Vec<String>, until: Duration) {
        self.until.extend(names.into_iter().map(|name| ((namespace.to_owned(), name), until)));
    }
}

fn of_lease(claim: &ResourceClaim) -> Option<NodeClaim> {
    let facts = ClaimFacts::of(claim)?;
    Some(NodeClaim { name: facts.name, node: facts.leased?.node })
}

fn claims_of(pod: &Pod) -> impl Iterator<Item = String> + '_ {
    let claims = pod.spec.iter().flat_map(|spec| spec.resource_claims.iter().flatten());
    claims.filter_map(|claim| claim.resource_claim_name.clone())
}
