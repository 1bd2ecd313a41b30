//! Two candidates for the Lease of the active agent, with the rights of `deploy/agent/standby`.

use std::time::{Duration, Instant};

use comity_agent_kubernetes::leader_lease::{LeaderLease, Renewed};
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::Secret;
use kube::Api;
use kube::api::{Patch, PatchParams, PostParams};
use serde_json::json;

use crate::cluster::{Cluster, PATIENCE};

const NAMESPACE: &str = "comity-system";
/// A fifth of it is the limit of a call, on a machine that is busy.
const TERM: Duration = Duration::from_secs(10);

fn candidate(cluster: &Cluster, name: &str) -> LeaderLease {
    LeaderLease::new(cluster.agent.client(), NAMESPACE, "comity-agent", name.to_owned(), TERM)
}

/// Repeats calls without an answer, as an agent does.
async fn take(candidate: &mut LeaderLease) -> Option<Instant> {
    let start = Instant::now();
    loop {
        match candidate.try_take().await {
            Ok(taken) => return taken,
            Err(error) => assert!(start.elapsed() < PATIENCE, "{error}"),
        }
    }
}

async fn renew(holder: &mut LeaderLease) -> Renewed {
    let start = Instant::now();
    loop {
        match holder.renew().await {
            Ok(renewed) => return renewed,
            Err(error) => assert!(start.elapsed() < PATIENCE, "{error}"),
        }
    }
}

pub(crate) async fn one_candidate_at_a_time_holds_the_lease(cluster: &Cluster) {
    let (mut first, mut second) = (candidate(cluster, "first"), candidate(cluster, "second"));
    assert!(take(&mut first).await.is_some());
    assert_eq!(take(&mut second).await, None);
    // Metadata that others change costs nobody the Lease.
    let leases: Api<Lease> = Api::namespaced(cluster.admin(), NAMESPACE);
    let note = json!({"metadata": {"annotations": {"example.org/note": "x"}}});
    leases.patch("comity-agent", &PatchParams::default(), &Patch::Merge(note)).await.unwrap();
    let Renewed::Until(until) = renew(&mut first).await else { panic!("it was not taken") };

    let start = Instant::now();
    let taken = loop {
        if take(&mut second).await.is_some() {
            break Instant::now();
        }
        assert!(start.elapsed() < PATIENCE + TERM, "the Lease never ends");
        tokio::time::sleep(second.interval()).await;
    };
    assert!(taken > until, "the first one still trusted it");
    assert_eq!(renew(&mut first).await, Renewed::Lost("second".to_owned()));

    second.release().await.unwrap();
    assert!(take(&mut first).await.is_some(), "a Lease that was given back is free at once");
    first.release().await.unwrap();
}

/// Neither another Lease nor another Secret of the agent's namespace.
pub(crate) async fn a_replica_has_one_lease_and_one_secret(cluster: &Cluster) {
    let leases: Api<Lease> = Api::namespaced(cluster.agent.client(), NAMESPACE);
    assert!(leases.get("other").await.is_err_and(|error| is_forbidden(&error)));
    let secrets: Api<Secret> = Api::namespaced(cluster.agent.client(), NAMESPACE);
    assert!(secrets.get("other").await.is_err_and(|error| is_forbidden(&error)));
    let own = secrets.get("comity-agent-state").await.unwrap();
    secrets.replace("comity-agent-state", &PostParams::default(), &own).await.unwrap();
}

fn is_forbidden(error: &kube::Error) -> bool {
    matches!(error, kube::Error::Api(status) if status.code == 403)
}
