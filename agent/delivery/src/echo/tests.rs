#![expect(clippy::unwrap_used, reason = "tests")]

use std::time::Duration;

use comity_agent_model::gpu_demand::GpuDemand;
use comity_agent_model::lease::placement::Placement;
use comity_runtime::{ManualClock, SeededEntropy};

use super::*;
use crate::https::HttpsServer;
use crate::probe::probe;

const NOW: u64 = 1_790_000_000_000;

fn lease(id: u64) -> DonorLease {
    DonorLease {
        lease_id: LeaseId(id),
        tenant: "vision".into(),
        origin: "polytechnic".into(),
        target_namespace: String::new(),
        placement: Placement {
            resource_name: "nvidia.com/gpu".into(),
            resource_count: 3,
            ..Placement::new("here".parse().unwrap())
        },
        gpus: GpuDemand::default(),
        fencing_token: 1,
        ends_at_ms: NOW + 60_000,
    }
}

async fn start(dir: &Path, clock: &ManualClock) -> EchoDelivery {
    EchoDelivery::start(dir, Arc::new(clock.clone()), Arc::new(SeededEntropy::new(5))).await.unwrap()
}

async fn get(echo: &EchoDelivery, credential: &ApiCredential, path: &str) -> (u16, String) {
    let server = HttpsServer::new(echo.address(), &credential.tls_server_name, &credential.ca_pem).unwrap();
    let answer = server.get(path, &credential.token).await.unwrap();
    (answer.status, String::from_utf8(answer.body.to_vec()).unwrap())
}

#[tokio::test]
async fn a_lease_sees_itself_and_no_other_until_it_is_removed() {
    let dir = tempfile::tempdir().unwrap();
    let echo = start(dir.path(), &ManualClock::at_unix_ms(NOW)).await;
    for id in [1, 2] {
        echo.prepare(&lease(id)).await.unwrap();
    }
    let credential = echo.credential(&lease(1)).await.unwrap();
    probe(&credential, echo.address()).await.unwrap();
    let (status, body) = get(&echo, &credential, "/api/v1/namespaces/comity-lease-1/resourcequotas/gpus").await;
    assert_eq!(status, 200);
    assert!(
        body.contains("\"gpus\":3")
            && body.contains("\"lease\":\"lease-1\"")
            && body.contains("stands in for a kube-apiserver"),
        "{body}"
    );
    let (status, body) = get(&echo, &credential, "/api/v1/namespaces/comity-lease-2/resourcequotas/gpus").await;
    assert!(status == 403 && body.contains("stands in for"), "{status} {body}");
    echo.remove(LeaseId(1)).await.unwrap();
    echo.remove(LeaseId(1)).await.unwrap();
    assert_eq!(get(&echo, &credential, "/version").await.0, 401);
    assert!(matches!(probe(&credential, echo.address()).await, Err(DeliveryError::Temporary { .. })));
    assert_eq!(echo.list().await.unwrap(), BTreeSet::from([LeaseId(2)]));
}

#[tokio::test]
async fn kubectl_finds_the_quota_and_gets_a_table() {
    let dir = tempfile::tempdir().unwrap();
    let echo = start(dir.path(), &ManualClock::at_unix_ms(NOW)).await;
    echo.prepare(&lease(1)).await.unwrap();
    let credential = echo.credential(&lease(1)).await.unwrap();
    let text = crate::kubeconfig::render(LeaseId(1), &credential, &echo.address().to_string());
    let kubeconfig = kube::config::Kubeconfig::from_yaml(text.expose()).unwrap();
    let config =
        kube::Config::from_custom_kubeconfig(kubeconfig, &kube::config::KubeConfigOptions::default()).await.unwrap();
    let client = kube::Client::try_from(config).unwrap();

    assert_eq!(client.list_core_api_versions().await.unwrap().versions, ["v1"]);
    assert!(client.list_api_groups().await.unwrap().groups.is_empty());
    let resources = client.list_core_api_resources("v1").await.unwrap().resources;
    assert!(resources.iter().any(|it| it.name == "resourcequotas" && it.verbs == ["get", "list"]), "{resources:?}");

    let quotas = kube::Api::<k8s_openapi::api::core::v1::ResourceQuota>::default_namespaced(client.clone());
    let hard = |quota: &k8s_openapi::api::core::v1::ResourceQuota| {
        let hard = quota.spec.as_ref().and_then(|spec| spec.hard.as_ref());
        hard.map(|hard| hard["requests.nvidia.com/gpu"].0.clone())
    };
    let listed = quotas.list(&kube::api::ListParams::default()).await.unwrap().items;
    assert_eq!(listed.iter().map(hard).collect::<Vec<_>>(), [Some("3".to_owned())]);
    assert_eq!(hard(&quotas.get("gpus").await.unwrap()), Some("3".to_owned()));

    let table = http::Request::get("/api/v1/namespaces/comity-lease-1/resourcequotas")
        .header("accept", "application/json;as=Table;v=v1;g=meta.k8s.io,application/json")
        .body(Vec::new())
        .unwrap();
    let table: serde_json::Value = client.request(table).await.unwrap();
    assert_eq!(table["kind"], "Table");
    assert_eq!(table["rows"][0]["cells"], serde_json::json!(["gpus", "requests.nvidia.com/gpu: 3"]));
}

#[tokio::test]
async fn leases_and_credentials_survive_a_restart_and_end_in_time() {
    let dir = tempfile::tempdir().unwrap();
    let clock = ManualClock::at_unix_ms(NOW);
    let first = start(dir.path(), &clock).await;
    first.prepare(&lease(1)).await.unwrap();
    let credential = first.credential(&lease(1)).await.unwrap();
    drop(first);
    let second = start(dir.path(), &clock).await;
    probe(&credential, second.address()).await.unwrap();
    let on_disk = std::fs::read_to_string(dir.path().join("echo/leases.json")).unwrap();
    assert!(!on_disk.contains(credential.token.expose()));
    clock.advance(Duration::from_secs(61));
    assert_eq!(get(&second, &credential, "/version").await.0, 401);
}

#[tokio::test]
async fn a_wrong_token_and_an_unprepared_lease_get_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let echo = start(dir.path(), &ManualClock::at_unix_ms(NOW)).await;
    assert!(matches!(echo.credential(&lease(9)).await, Err(DeliveryError::Temporary { .. })));
    echo.prepare(&lease(1)).await.unwrap();
    let mut credential = echo.credential(&lease(1)).await.unwrap();
    credential.token = comity_runtime::SecretString::new("guess".into());
    assert_eq!(get(&echo, &credential, "/version").await.0, 401);
}

#[tokio::test]
async fn the_kubeconfig_works_with_a_kubernetes_client() {
    let dir = tempfile::tempdir().unwrap();
    let echo = start(dir.path(), &ManualClock::at_unix_ms(NOW)).await;
    echo.prepare(&lease(1)).await.unwrap();
    let credential = echo.credential(&lease(1)).await.unwrap();
    let text = crate::kubeconfig::render(LeaseId(1), &credential, &echo.address().to_string());
    let kubeconfig = kube::config::Kubeconfig::from_yaml(text.expose()).unwrap();
    let config =
        kube::Config::from_custom_kubeconfig(kubeconfig, &kube::config::KubeConfigOptions::default()).await.unwrap();
    let client = kube::Client::try_from(config).unwrap();
    let request = http::Request::post("/echo").body(b"hello".to_vec()).unwrap();
    let answer = client.request_text(request).await.unwrap();
    assert!(answer.contains("\"echo\":\"hello\"") && answer.contains("stands in for"), "{answer}");
}
