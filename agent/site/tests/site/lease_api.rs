//! The API of a lease on a host that runs no pods.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use comity_agent_delivery::{DonorDelivery as _, render_kubeconfig};
use comity_agent_model::delivery_error::DeliveryError;
use comity_agent_site::SiteDelivery;
use comity_runtime::{Clock as _, ManualClock, SystemClock};
use comity_types::LeaseId;
use k8s_openapi::api::core::v1::{Pod, ResourceQuota};
use kube::api::{ListParams, PostParams};
use kube::{Api, Client};
use serde_json::{Value, json};

use crate::host_under_test::{client, lease, seeded};

async fn start(dir: &Path, clock: &ManualClock) -> SiteDelivery {
    SiteDelivery::start(dir, None, Arc::new(clock.clone()), seeded()).await.unwrap()
}

fn now() -> ManualClock {
    ManualClock::at_unix_ms(SystemClock::new().unix_ms())
}

async fn lend(site: &SiteDelivery, id: u64) -> Client {
    site.prepare(&lease(id, &[0, 1, 2])).await.unwrap();
    let credential = site.credential(&lease(id, &[])).await.unwrap();
    client(render_kubeconfig(LeaseId(id), &credential, &site.address().to_string()).expose()).await
}

async fn get(client: &Client, path: &str, accept: &str) -> Result<Value, u16> {
    let request = http::Request::get(path).header("accept", accept).body(Vec::new()).unwrap();
    client.request(request).await.map_err(|error| match error {
        kube::Error::Api(status) => status.code,
        other => panic!("{other}"),
    })
}

#[tokio::test]
async fn a_lease_sees_itself_and_no_other_until_it_is_removed() {
    let dir = tempfile::tempdir().unwrap();
    let site = start(dir.path(), &now()).await;
    let (first, _second) = (lend(&site, 1).await, lend(&site, 2).await);
    let quota = get(&first, "/api/v1/namespaces/comity-lease-1/resourcequotas/gpus", "application/json").await.unwrap();
    assert_eq!(quota["status"]["hard"]["requests.nvidia.com/gpu"], "3");
    assert_eq!(quota["metadata"]["labels"]["comity.dev/lease"], "lease-1");
    tenant_uses_the_token_of_a_lease_in_anothers_namespace(&first).await;
    site.remove(LeaseId(1)).await.unwrap();
    site.remove(LeaseId(1)).await.unwrap();
    assert_eq!(get(&first, "/version", "application/json").await, Err(401));
    assert_eq!(site.list().await.unwrap(), BTreeSet::from([LeaseId(2)]));
}

#[tokio::test]
async fn kubectl_finds_the_quota_and_gets_a_table() {
    let dir = tempfile::tempdir().unwrap();
    let site = start(dir.path(), &now()).await;
    let client = lend(&site, 1).await;
    assert_eq!(client.list_core_api_versions().await.unwrap().versions, ["v1"]);
    assert!(client.list_api_groups().await.unwrap().groups.is_empty());
    let resources = client.list_core_api_resources("v1").await.unwrap().resources;
    assert!(resources.iter().any(|it| it.name == "resourcequotas" && it.verbs == ["get", "list"]), "{resources:?}");
    let quotas = Api::<ResourceQuota>::default_namespaced(client.clone());
    let listed = quotas.list(&ListParams::default()).await.unwrap().items;
    let hard = listed[0].spec.as_ref().unwrap().hard.as_ref().unwrap();
    assert_eq!((hard["requests.nvidia.com/gpu"].0.as_str(), hard["limits.memory"].0.as_str()), ("3", "1536Mi"));
    let path = "/api/v1/namespaces/comity-lease-1/resourcequotas";
    let table = get(&client, path, "application/json;as=Table;v=v1;g=meta.k8s.io,application/json").await.unwrap();
    assert_eq!(table["kind"], "Table");
    let cells = json!(["gpus", "requests.nvidia.com/gpu: 0/3", "limits.cpu: 0m/6000m, limits.memory: 0Mi/1536Mi"]);
    assert_eq!(table["rows"][0]["cells"], cells);
}

#[tokio::test]
async fn leases_and_credentials_survive_a_restart_and_end_in_time() {
    let dir = tempfile::tempdir().unwrap();
    let clock = now();
    let first = start(dir.path(), &clock).await;
    first.prepare(&lease(1, &[0])).await.unwrap();
    let credential = first.credential(&lease(1, &[0])).await.unwrap();
    drop(first);
    let second = start(dir.path(), &clock).await;
    let kubeconfig = render_kubeconfig(LeaseId(1), &credential, &second.address().to_string());
    let client = client(kubeconfig.expose()).await;
    assert!(get(&client, "/version", "application/json").await.is_ok());
    let on_disk = std::fs::read_to_string(dir.path().join("site/leases.json")).unwrap();
    assert!(!on_disk.contains(credential.token.expose()));
    clock.advance(Duration::from_secs(3_601));
    assert_eq!(get(&client, "/version", "application/json").await, Err(401));
}

#[tokio::test]
async fn a_wrong_token_and_an_unprepared_lease_get_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let site = start(dir.path(), &now()).await;
    assert!(matches!(site.credential(&lease(9, &[])).await, Err(DeliveryError::Temporary { .. })));
    site.prepare(&lease(1, &[0])).await.unwrap();
    let mut credential = site.credential(&lease(1, &[0])).await.unwrap();
    credential.token = comity_runtime::SecretString::new("guess".into());
    let kubeconfig = render_kubeconfig(LeaseId(1), &credential, &site.address().to_string());
    let client = client(kubeconfig.expose()).await;
    for path in ["/version", "/api/v1/namespaces/comity-lease-1/pods", "/nowhere"] {
        assert_eq!(get(&client, path, "application/json").await, Err(401), "{path}");
    }
}

#[tokio::test]
async fn a_host_without_the_section_site_says_that_it_runs_no_pods() {
    let dir = tempfile::tempdir().unwrap();
    let site = start(dir.path(), &now()).await;
    let client = lend(&site, 1).await;
    let pods = Api::<Pod>::default_namespaced(client);
    assert!(pods.list(&ListParams::default()).await.unwrap().items.is_empty());
    let pod = json!({ "metadata": { "name": "x" }, "spec": { "containers": [{ "name": "c", "image": "i" }] } });
    let error = pods.create(&PostParams::default(), &serde_json::from_value(pod).unwrap()).await.unwrap_err();
    assert!(error.to_string().contains("has not set the section site in agent.yaml"), "{error}");
}

async fn tenant_uses_the_token_of_a_lease_in_anothers_namespace(first: &Client) {
    for path in ["resourcequotas/gpus", "pods", "secrets", "configmaps", "pods/x/log"] {
        let path = format!("/api/v1/namespaces/comity-lease-2/{path}");
        assert_eq!(get(first, &path, "application/json").await, Err(403), "{path}");
    }
}
