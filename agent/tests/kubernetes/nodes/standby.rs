//! Replicas of the agent with the rights of `deploy/agent/standby`: their Lease, their Secret and their Services.

use std::collections::BTreeSet;
use std::path::Path;
use std::time::{Duration, Instant};

use comity_agent::Config;
use comity_agent::standby::ActiveEndpoints;
use comity_agent_kubernetes::leader_lease::{LeaderLease, Renewed};
use comity_agent_model::boot_time::BootTime;
use comity_agent_workload::webhook::WebhookSettings;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::Secret;
use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube::Api;
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use crate::cluster::{Cluster, PATIENCE, eventually};

const NAMESPACE: &str = "comity-system";
/// A fifth of it is the limit of a call, on a machine that is busy.
const TERM: Duration = Duration::from_secs(10);
/// A term that no pause of a busy machine exceeds.
const LONG_TERM: Duration = Duration::from_secs(60);

fn candidate(cluster: &Cluster, name: &str, term: Duration) -> LeaderLease {
    LeaderLease::new(cluster.agent.client(), NAMESPACE, "comity-agent", name.to_owned(), term)
}

/// Repeats calls without an answer, as an agent does.
async fn take(candidate: &mut LeaderLease) -> Option<BootTime> {
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

/// A holder keeps a Lease that is deleted and made again, and a candidate does not take it.
pub(crate) async fn a_lease_that_is_made_again_has_no_second_holder(cluster: &Cluster) {
    let leases: Api<Lease> = Api::namespaced(cluster.admin(), NAMESPACE);
    let (mut holder, mut other) = (candidate(cluster, "holder", LONG_TERM), candidate(cluster, "other", LONG_TERM));
    assert_eq!(take(&mut holder).await, None, "a Lease without a holder may have been made again");
    let returned = json!({"spec": {"holderIdentity": "", "leaseDurationSeconds": 1}});
    leases.patch("comity-agent", &PatchParams::default(), &Patch::Merge(returned)).await.unwrap();
    assert!(take(&mut holder).await.is_some(), "one that was given back is free at once");

    leases.delete("comity-agent", &DeleteParams::default()).await.unwrap();
    let made = serde_json::from_value(json!({"metadata": {"name": "comity-agent"}})).unwrap();
    leases.create(&PostParams::default(), &made).await.unwrap();
    assert_eq!(take(&mut other).await, None);
    let renewed = renew(&mut holder).await;
    assert!(matches!(renewed, Renewed::Until(_)), "{renewed:?}");
    holder.release().await.unwrap();
}

pub(crate) async fn one_candidate_at_a_time_holds_the_lease(cluster: &Cluster) {
    let (mut first, mut second) = (candidate(cluster, "first", TERM), candidate(cluster, "second", TERM));
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
            break BootTime::now();
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

/// The Services of the active replica lead to it, by EndpointSlices that its successor changes.
pub(crate) async fn services_lead_to_the_active_replica(cluster: &Cluster) {
    let config = Config { webhook: Some(WebhookSettings::default()), ..Config::default() };
    let slices: Api<EndpointSlice> = Api::namespaced(cluster.admin(), NAMESPACE);
    for address in ["192.0.2.7", "192.0.2.8"] {
        let stop = CancellationToken::new();
        let endpoints = ActiveEndpoints::of(&config, address.parse().unwrap(), cluster.agent.client());
        let keeping = tokio::spawn(endpoints.run(stop.clone()));
        for service in ["comity-agent", "comity-agent-webhook", "comity-agent-fabric"] {
            eventually(&format!("{service} leads to {address}"), || async {
                let slice = slices.get_opt(service).await.unwrap();
                slice.is_some_and(|slice| slice.endpoints.iter().all(|endpoint| endpoint.addresses == [address]))
            })
            .await;
        }
        stop.cancel();
        keeping.await.unwrap();
    }
}

/// `deploy/agent/standby` with each of the bases that it names, as the API server admits it.
pub(crate) async fn the_component_makes_two_replicas(cluster: &Cluster) {
    let deploy = Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy/agent").canonicalize().unwrap();
    for base in ["netstack", "tun"] {
        let dir = cluster.dir.path().join(base);
        std::fs::create_dir(&dir).unwrap();
        // Kustomize takes no absolute paths.
        let depth = dir.canonicalize().unwrap().components().count() - 1;
        let deploy = format!("{}{}", "../".repeat(depth), deploy.strip_prefix("/").unwrap().display());
        let text = format!("resources: [{deploy}/{base}]\ncomponents: [{deploy}/standby]\n");
        std::fs::write(dir.join("kustomization.yaml"), text).unwrap();
        let rendered = cluster.plane().kubectl(&["kustomize", dir.to_str().unwrap()]).await.unwrap();
        cluster.plane().kubectl_with_input(&["apply", "--dry-run=server", "-f", "-"], &rendered).await.unwrap();

        let objects: Vec<Value> = serde_saphyr::from_multiple(&rendered).unwrap();
        let of_kind = |kind: &str| objects.iter().filter(|object| object["kind"] == kind).collect::<Vec<_>>();
        let names = |kind: &str| -> BTreeSet<&str> {
            of_kind(kind).into_iter().filter_map(|object| object["metadata"]["name"].as_str()).collect()
        };
        let fabric = (base == "netstack").then_some("comity-agent-fabric");
        assert_eq!(names("Service"), ["comity-agent", "comity-agent-webhook"].into_iter().chain(fabric).collect());
        for service in of_kind("Service") {
            assert!(
                service["spec"]["selector"].is_null(),
                "EndpointSlices of the cluster would lead to a standby: {service}"
            );
        }
        assert!(of_kind("PersistentVolumeClaim").is_empty());
        assert_eq!(names("Lease"), BTreeSet::from(["comity-agent"]));
        assert!(names("Secret").contains("comity-agent-state"));
        let [agent] = of_kind("Deployment")[..] else { panic!("{rendered}") };
        assert_eq!(
            (&agent["spec"]["replicas"], &agent["spec"]["strategy"]["type"]),
            (&json!(2), &json!("RollingUpdate"))
        );
        let pod = &agent["spec"]["template"]["spec"];
        let state = pod["volumes"].as_array().unwrap().iter().find(|volume| volume["name"] == "state").unwrap();
        assert!(state["persistentVolumeClaim"].is_null() && state["emptyDir"]["medium"] == "Memory", "{state}");
        let container = &pod["containers"][0];
        assert!(container["env"].to_string().contains("COMITY_AGENT_STANDBY_LEASE_SECONDS"), "{container}");
        assert_eq!(pod["hostNetwork"] == true, base == "tun");
    }
}
