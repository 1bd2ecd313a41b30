//! The origin's half of Liqo, with only the rights of `deploy/agent/`, on two clusters with real kubelets and real
//! Liqo. The test does the donor's half, with every right.

#[path = "liqo_origin/donor.rs"]
mod donor;
#[path = "liqo_origin/setting.rs"]
mod setting;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use comity_agent_liqo::LiqoPeer;
use comity_agent_liqo::origin::{DonorLine, LiqoOrigin, MaintenanceSettings, OriginSettings, SliceRequest};
use comity_agent_model::delivery_error::DeliveryError;
use comity_testkit::{self as testkit, RealClusters, Where};
use comity_types::LeaseId;
use futures::future::BoxFuture;
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::{ConfigMap, Event, Namespace, Node, Pod, Secret};
use kube::Api;
use kube::api::{DeleteParams, DynamicObject, ListParams, Patch, PatchParams, PostParams};
use serde_json::json;
use tokio_util::sync::CancellationToken;

use donor::Donor;
use setting::{Setting, eventually};

pub(crate) use setting::enter_network;

const TENANT: &str = "liqo-tenant-donor";
const NOT_FOR_TEAM_B: &str = "virtual node lease-7 is leased for another namespace: pods of team-b do not run on it";
/// Name of the donor's API server in its signed key bundle.
const SIGNED: &str = "203.0.113.10:6443";

/// The tests reach the donor without a tunnel.
struct NoTunnel;

impl DonorLine for NoTunnel {
    fn answers<'a>(&'a self, _donor: &'a str) -> BoxFuture<'a, bool> {
        Box::pin(async { false })
    }
}

pub(crate) async fn run(clusters: &RealClusters) {
    let setting = Setting::of(clusters).await;
    let donor = Donor::new(setting.donor.clone());
    let settings = OriginSettings { donor_patience: Duration::from_secs(6), ..OriginSettings::default() };
    let origin = LiqoOrigin::new(setting.agent.clone(), settings.clone());
    let stop = CancellationToken::new();
    let maintaining = {
        let (origin, stop) = (origin.clone(), stop.clone());
        let settings = MaintenanceSettings { keep_finished: Duration::from_secs(3_600) };
        tokio::spawn(async move { origin.maintain(settings, Arc::new(NoTunnel), stop).await })
    };
    let granting = donor.grant_everything();

    the_network_is_found(&origin, clusters).await;
    the_keys_are_exchanged(&origin, &donor).await;
    submitter_targets_other_tenants_namespace(&setting, &origin).await;
    broker_invents_lease_for_foreign_namespace(&setting, &origin).await;
    a_lease_is_a_node(&setting, &origin).await;
    user_removes_the_map_of_virtual_nodes(&setting, clusters).await;
    pod_of_tenant_b_tolerates_lease_taint_of_a(&setting).await;
    finished_pods_make_room(&setting).await;
    a_node_recovers_from_a_cut_line(&setting, clusters).await;
    an_idle_node_serves_the_next_lease(&setting, &origin).await;
    let thorough = LiqoOrigin::new(setting.agent.clone(), OriginSettings { idle_nodes: 0, ..settings });
    a_lease_goes_without_a_trace(&setting, &thorough, "lease-9", "lease-7").await;
    a_dead_donor_does_not_block_removal(&setting, &origin, clusters).await;

    granting.abort();
    stop.cancel();
    maintaining.await.unwrap();
}

fn peer() -> LiqoPeer {
    LiqoPeer { peering: "peer-1".into(), cluster: "north".into(), liqo_id: "donor".into() }
}

fn request(id: &str) -> SliceRequest {
    let resources = [("cpu", "2"), ("memory", "2Gi"), ("pods", "20"), ("nvidia.com/gpu", "2")];
    SliceRequest {
        lease_id: id.parse().unwrap(),
        slice: id.into(),
        resources: resources.map(|(name, amount)| (name.to_owned(), amount.to_owned())).into(),
        target_namespace: "team-a".into(),
        tenant: "vision".into(),
    }
}

async fn the_network_is_found(origin: &LiqoOrigin, clusters: &RealClusters) {
    let error = origin.own_network().await.unwrap_err().to_string();
    assert!(error.contains("liqo.podCidrs"), "{error}");
    // As in a cluster that assigns CIDRs to its nodes.
    let cidr = clusters.origin.pod_cidr();
    let patch = json!({ "spec": { "podCIDR": cidr, "podCIDRs": [cidr] } }).to_string();
    clusters.origin.kubectl(&["patch", "node", &clusters.origin.node_name(), "-p", &patch]).await.unwrap();
    let network = origin.own_network().await.unwrap();
    assert_eq!(network.pod_cidrs, [clusters.origin.pod_cidr()]);
    assert_eq!((network.liqo_cluster_id.as_str(), network.liqo_version.as_str()), ("origin", "v1.2.0"));
}

async fn the_keys_are_exchanged(origin: &LiqoOrigin, donor: &Donor) {
    let began = Instant::now();
    let challenge = donor.challenge().await;
    let answer = origin.answer(&peer(), &challenge).await.unwrap();
    assert_eq!(origin.answer(&peer(), &challenge).await.unwrap(), answer);
    let params = donor.admit(&answer).await;
    let error = origin.accept_identity(&peer(), "203.0.113.11:6443", &params).await.unwrap_err().to_string();
    assert!(error.contains("203.0.113.11:6443"), "{error}");
    origin.accept_identity(&peer(), SIGNED, &params).await.unwrap();
    origin.accept_identity(&peer(), SIGNED, &params).await.unwrap();
    eprintln!("keys exchanged in {:?}", began.elapsed());
}

async fn a_lease_is_a_node(setting: &Setting, origin: &LiqoOrigin) {
    let began = Instant::now();
    origin.accept(&peer(), &request("lease-7")).await.unwrap();
    let accepted = began.elapsed();
    origin.ready(LeaseId(7)).await.unwrap();
    eprintln!("lease accepted after {accepted:?}, its node ready after {:?}", began.elapsed());
    origin.accept(&peer(), &request("lease-7")).await.unwrap();
    assert_eq!(origin.list().await.unwrap().into_iter().collect::<Vec<_>>(), [LeaseId(7)]);

    let node = Api::<Node>::all(setting.origin.clone()).get("lease-7").await.unwrap();
    let taints = node.spec.unwrap().taints.unwrap();
    let ours = taints.iter().find(|taint| taint.key == "comity.dev/lease").unwrap();
    assert_eq!((ours.value.as_deref(), ours.effect.as_str()), (Some("lease-7"), "NoSchedule"));
    let kubelets = Api::<Pod>::namespaced(setting.origin.clone(), TENANT).list(&ListParams::default()).await.unwrap();
    let arguments = kubelets.items[0].spec.as_ref().unwrap().containers[0].args.clone().unwrap();
    for wanted in ["--enable-apiserver-support=false", "--secret-reflection-type=AllowList"] {
        assert!(arguments.iter().any(|argument| argument == wanted), "{arguments:?}");
    }
    assert_eq!(
        arguments.iter().rfind(|argument| argument.starts_with("--secret-reflection-type")).unwrap(),
        "--secret-reflection-type=AllowList",
        "the last one counts"
    );
    only_allowed_secrets_are_reflected(setting).await;
}

/// Liqo copies Secrets of the namespace to the donor only if their owner says so.
async fn only_allowed_secrets_are_reflected(setting: &Setting) {
    let here = Api::<Secret>::namespaced(setting.origin.clone(), "team-a");
    let secret = |name: &str, allow: serde_json::Value| {
        let metadata = json!({ "name": name, "annotations": allow });
        serde_json::from_value(json!({ "metadata": metadata, "stringData": { "key": "value" } })).unwrap()
    };
    here.create(&PostParams::default(), &secret("kept", json!({}))).await.unwrap();
    here.create(&PostParams::default(), &secret("shown", json!({ "liqo.io/allow-reflection": "true" }))).await.unwrap();
    let there = Api::<Secret>::namespaced(setting.donor.clone(), "team-a-origin");
    eventually("the Secret is reflected", async || there.get_opt("shown").await.unwrap().is_some()).await;
    assert!(there.get_opt("kept").await.unwrap().is_none(), "a Secret that nobody allowed lies on the donor");
}

/// A NamespaceOffloading, as an attacker who has the agent's token makes it.
async fn offload(setting: &Setting, namespace: &str, tenant: &str) -> Result<(), String> {
    let api = Api::<DynamicObject>::namespaced_with(
        setting.agent.clone(),
        namespace,
        &comity_agent_liqo::namespace_offloading(),
    );
    let object = json!({
        "apiVersion": "offloading.liqo.io/v1beta1", "kind": "NamespaceOffloading",
        "metadata": { "name": "offloading", "labels": { "comity.dev/tenant": tenant } },
        "spec": { "podOffloadingStrategy": "LocalAndRemote" },
    });
    let made = api.create(&PostParams::default(), &serde_json::from_value(object).unwrap()).await;
    made.map(drop).map_err(|error| error.to_string())
}

/// The broker admits a request of tenant vision that names a namespace of tenant speech.
async fn submitter_targets_other_tenants_namespace(setting: &Setting, origin: &LiqoOrigin) {
    let request = SliceRequest { target_namespace: "team-b".into(), ..request("lease-6") };
    let refused = origin.accept(&peer(), &request).await.unwrap_err();
    assert!(matches!(refused, DeliveryError::Permanent { code: "foreign-target-namespace", .. }), "{refused}");
    assert!(origin.list().await.unwrap().is_empty(), "nothing was asked of the donor");
    let refused = offload(setting, "team-b", "vision").await.unwrap_err();
    assert!(refused.contains("team-b belongs to another tenant"), "{refused}");
}

/// The broker says a tenant that fits; nobody in this cluster let the namespace leave it.
async fn broker_invents_lease_for_foreign_namespace(setting: &Setting, origin: &LiqoOrigin) {
    let namespaces = Api::<Namespace>::all(setting.origin.clone());
    let label = async |offload: Option<&str>| {
        let patch = json!({ "metadata": { "labels": { "comity.dev/offload": offload } } });
        namespaces.patch("team-b", &PatchParams::default(), &Patch::Merge(&patch)).await.unwrap();
    };
    label(None).await;
    let request = SliceRequest { target_namespace: "team-b".into(), tenant: "speech".into(), ..request("lease-6") };
    let refused = origin.accept(&peer(), &request).await.unwrap_err();
    assert!(matches!(refused, DeliveryError::Permanent { code: "namespace-not-opted-in", .. }), "{refused}");
    let refused = offload(setting, "team-b", "speech").await.unwrap_err();
    assert!(refused.contains("team-b is not labelled comity.dev/offload=true"), "{refused}");
    label(Some("true")).await;
}

/// Without the map its policy would let pods of all namespaces onto all virtual nodes.
async fn user_removes_the_map_of_virtual_nodes(setting: &Setting, clusters: &RealClusters) {
    let kubectl = async |words: &[&str]| clusters.origin.kubectl(words).await.map_err(|error| error.to_string());
    let grant = ["--namespace=comity-system", "create", "rolebinding", "helper", "--clusterrole=edit", "--user=helper"];
    kubectl(&grant).await.unwrap();
    let (namespace, user) = ("--namespace=comity-system", "--as=helper");
    let (kind, name) = ("configmap", "comity-virtual-nodes");
    let take = r#"{"data":{"lease-7":"team-b"}}"#;
    let attempts: [&[&str]; 2] = [
        &[namespace, user, "delete", kind, name],
        &[namespace, user, "patch", kind, name, "--type=merge", "--patch", take],
    ];
    for attempt in attempts {
        let refused = kubectl(attempt).await.unwrap_err();
        assert!(refused.contains("says who may use virtual nodes: helper may not"), "{attempt:?}: {refused}");
    }
    let maps = Api::<ConfigMap>::namespaced(setting.origin.clone(), "comity-system");
    assert_eq!(maps.get("comity-virtual-nodes").await.unwrap().data.unwrap()["lease-7"], "team-a");
    // What it says is not changed by whoever applies the manifest again.
    kubectl(&[namespace, user, "annotate", kind, name, "reviewed=yes"]).await.unwrap();
    kubectl(&["--namespace=comity-system", "delete", "rolebinding", "helper"]).await.unwrap();
}

/// Any user who may create pods can write the lease's selector and tolerations, or every toleration.
async fn pod_of_tenant_b_tolerates_lease_taint_of_a(setting: &Setting) {
    let maps = Api::<ConfigMap>::namespaced(setting.origin.clone(), "comity-system");
    maps.delete("comity-virtual-nodes", &DeleteParams::default()).await.unwrap();
    let published = async || maps.get_opt("comity-virtual-nodes").await.unwrap().and_then(|map| map.data);
    eventually("the ConfigMap is back", async || published().await.is_some()).await;
    assert_eq!(published().await.unwrap()["lease-7"], "team-a");

    let pods = Api::<Pod>::namespaced(setting.origin.clone(), "team-b");
    let events = Api::<Event>::namespaced(setting.origin.clone(), "team-b");
    let mut tolerant = setting::gpu_pod("lease-7", &[]);
    tolerant["tolerations"] = json!([{ "operator": "Exists" }]);
    for (name, spec) in [("thief", setting::gpu_pod("lease-7", &[])), ("tolerant", tolerant)] {
        let pod = json!({ "metadata": { "name": name }, "spec": spec });
        pods.create(&PostParams::default(), &serde_json::from_value(pod).unwrap()).await.unwrap();
        let of_pod = ListParams::default().fields(&format!("involvedObject.name={name},reason=FailedScheduling"));
        eventually("the scheduler may not bind the pod", async || {
            let events = events.list(&of_pod).await.unwrap();
            events.items.iter().filter_map(|event| event.message.as_deref()).any(|text| text.contains(NOT_FOR_TEAM_B))
        })
        .await;
        assert_eq!(pods.get(name).await.unwrap().spec.unwrap().node_name, None);
    }
    let mut placed = setting::gpu_pod("lease-7", &[]);
    placed["nodeName"] = json!("lease-7");
    let pod = json!({ "metadata": { "name": "placed" }, "spec": placed });
    let refused = pods.create(&PostParams::default(), &serde_json::from_value(pod).unwrap()).await.unwrap_err();
    assert!(refused.to_string().contains(NOT_FOR_TEAM_B), "{refused}");
    pods.delete_collection(&DeleteParams::default().grace_period(0), &ListParams::default()).await.unwrap();
}

/// Two pods on two GPUs finish; the next needs the share that they still hold at the donor.
async fn finished_pods_make_room(setting: &Setting) {
    let jobs = Api::<Job>::namespaced(setting.origin.clone(), "team-a");
    let pods = Api::<Pod>::namespaced(setting.origin.clone(), "team-a");
    for name in ["first", "second"] {
        let job = serde_json::from_value(json!({
            "metadata": { "name": name },
            "spec": { "template": { "spec": setting::gpu_pod("lease-7", &["env"]) } },
        }))
        .unwrap();
        jobs.create(&PostParams::default(), &job).await.unwrap();
        eventually("the Job is complete", async || {
            jobs.get(name).await.unwrap().status.and_then(|status| status.succeeded) == Some(1)
        })
        .await;
    }
    let began = Instant::now();
    for name in ["third", "server"] {
        let arguments: &[&str] = if name == "server" { &[] } else { &["env"] };
        let pod = json!({ "metadata": { "name": name, "labels": { "app": name } }, "spec": setting::gpu_pod("lease-7", arguments) });
        pods.create(&PostParams::default(), &serde_json::from_value(pod).unwrap()).await.unwrap();
        eventually("the pod ran", async || {
            let pod = pods.get(name).await.unwrap();
            matches!(pod.status.and_then(|status| status.phase).as_deref(), Some("Running" | "Succeeded"))
        })
        .await;
        eprintln!("pod {name} runs or ran {:?} after the first was asked for", began.elapsed());
    }
    // The history stays.
    assert_eq!(jobs.get("first").await.unwrap().status.unwrap().succeeded, Some(1));
    let of_jobs = ListParams::default().labels("batch.kubernetes.io/job-name");
    assert_eq!(pods.list(&of_jobs).await.unwrap().items.len(), 2);
}

/// Cuts the line for longer than a node may be silent.
async fn a_node_recovers_from_a_cut_line(setting: &Setting, clusters: &RealClusters) {
    let nodes = Api::<Node>::all(setting.origin.clone());
    let pods = Api::<Pod>::namespaced(setting.origin.clone(), "team-a");
    let node_ready = async || setting::node_status(&nodes.get("lease-7").await.unwrap()) == "True";
    let pod_ready = async || setting::pod_is_ready(&pods.get("server").await.unwrap());
    eventually("the server is ready", pod_ready).await;
    let container = setting.container_of("server").await;
    let history = setting.follow_ready("server", "lease-7");
    clusters.set_line(testkit::Line::Cut).await.unwrap();
    tokio::time::sleep(Duration::from_secs(34)).await;
    eventually("the node is in doubt", async || !node_ready().await).await;
    clusters.set_line(testkit::Line::Whole).await.unwrap();
    let began = Instant::now();
    eventually("the node is ready again", node_ready).await;
    let node = began.elapsed();
    assert!(node < Duration::from_secs(10), "{node:?}\n{}", history.text());
    // The pod follows with the virtual-kubelet's next answer from the donor. That connection has no tunnel here and
    // recovers at TCP's next retry. The scenario `burst` requires pod and Service within 5 s through the agents'
    // tunnel.
    eventually("the server is ready again", pod_ready).await;
    eprintln!("line back: node ready after {node:?}, pod ready after {:?}", began.elapsed());
    // The node stays ready.
    for _ in 0..40 {
        tokio::time::sleep(Duration::from_secs(1)).await;
        assert!(node_ready().await, "{:?} after the line is back", began.elapsed());
    }
    assert_eq!(setting.container_of("server").await, container, "the container never stopped");
}

/// Its virtual-kubelet runs already, so a lease takes it over at once; until then no pod can use it.
async fn an_idle_node_serves_the_next_lease(setting: &Setting, origin: &LiqoOrigin) {
    let nodes = Api::<Node>::all(setting.origin.clone());
    let lease_taints = async || {
        let taints = nodes.get("lease-7").await.unwrap().spec.unwrap().taints.unwrap_or_default();
        let ours = taints.into_iter().filter(|taint| taint.key == "comity.dev/lease");
        ours.map(|taint| (taint.value.unwrap_or_default(), taint.effect)).collect::<Vec<_>>()
    };
    let began = Instant::now();
    origin.remove(LeaseId(7)).await.unwrap();
    eprintln!("lease-7 ended in {:?}", began.elapsed());
    origin.remove(LeaseId(7)).await.unwrap();
    assert!(origin.list().await.unwrap().is_empty());
    eventually("the node is shut to everybody", async || {
        lease_taints().await == [("none".to_owned(), "NoSchedule".to_owned())]
    })
    .await;
    let labels = nodes.get("lease-7").await.unwrap().metadata.labels.unwrap_or_default();
    assert!(!labels.contains_key("comity.dev/lease"), "{labels:?}");
    let pods = Api::<Pod>::namespaced(setting.origin.clone(), "team-a");
    assert!(pods.list(&ListParams::default().fields("spec.nodeName=lease-7")).await.unwrap().items.is_empty());
    let maps = Api::<ConfigMap>::namespaced(setting.origin.clone(), "comity-system");
    assert_eq!(maps.get("comity-virtual-nodes").await.unwrap().data.unwrap_or_default(), BTreeMap::new());

    let began = Instant::now();
    origin.accept(&peer(), &SliceRequest { slice: "lease-7".into(), ..request("lease-9") }).await.unwrap();
    origin.ready(LeaseId(9)).await.unwrap();
    eprintln!("lease-9 has the node of lease-7 after {:?}", began.elapsed());
    // Liqo copies the taint to the node, which was ready before.
    eventually("the node is lease-9's", async || {
        lease_taints().await == [("lease-9".to_owned(), "NoSchedule".to_owned())]
    })
    .await;
    let error = origin.accept(&peer(), &SliceRequest { slice: "lease-7".into(), ..request("lease-10") }).await;
    let error = error.unwrap_err().to_string();
    assert!(error.contains("still belongs to lease-9"), "{error}");
    // A donor cannot choose the name of a new node.
    let error = origin.accept(&peer(), &SliceRequest { slice: "lease-77".into(), ..request("lease-10") }).await;
    let error = error.unwrap_err().to_string();
    assert!(error.contains("\"lease-77\""), "{error}");
}

async fn a_lease_goes_without_a_trace(setting: &Setting, origin: &LiqoOrigin, lease: &str, slice: &str) {
    let began = Instant::now();
    origin.remove(lease.parse().unwrap()).await.unwrap();
    eprintln!("{lease} removed in {:?}", began.elapsed());
    origin.remove(lease.parse().unwrap()).await.unwrap();
    assert!(origin.list().await.unwrap().is_empty());
    assert!(Api::<Node>::all(setting.origin.clone()).get_opt(slice).await.unwrap().is_none());
    for kind in [comity_agent_liqo::resource_slice(), comity_agent_liqo::virtual_node()] {
        let api = Api::<DynamicObject>::all_with(setting.origin.clone(), &kind);
        assert!(api.list(&ListParams::default()).await.unwrap().items.is_empty(), "{}", kind.kind);
    }
    let offloadings =
        Api::<DynamicObject>::all_with(setting.origin.clone(), &comity_agent_liqo::namespace_offloading());
    assert!(offloadings.list(&ListParams::default()).await.unwrap().items.is_empty());
    let secrets = Api::<Secret>::namespaced(setting.origin.clone(), TENANT);
    assert!(secrets.get_opt(&format!("kubeconfig-resourceslice-{slice}")).await.unwrap().is_none());
    let namespace = Api::<Namespace>::all(setting.origin.clone()).get("team-a").await.unwrap();
    assert!(!namespace.metadata.labels.unwrap_or_default().contains_key("liqo.io/scheduling-enabled"));
}

/// The donor dies with a lease in use; this side still ends clean.
async fn a_dead_donor_does_not_block_removal(setting: &Setting, origin: &LiqoOrigin, clusters: &RealClusters) {
    origin.accept(&peer(), &request("lease-8")).await.unwrap();
    origin.ready(LeaseId(8)).await.unwrap();
    let pods = Api::<Pod>::namespaced(setting.origin.clone(), "team-a");
    let pod = json!({ "metadata": { "name": "lost" }, "spec": setting::gpu_pod("lease-8", &[]) });
    pods.create(&PostParams::default(), &serde_json::from_value(pod).unwrap()).await.unwrap();
    eventually("the pod runs", async || setting::pod_is_ready(&pods.get("lost").await.unwrap())).await;

    clusters.kill_api_server(Where::Donor).await.unwrap();
    let began = Instant::now();
    while let Err(error) = origin.remove(LeaseId(8)).await {
        eprintln!("after {:?}: {error}", began.elapsed());
        assert!(began.elapsed() < Duration::from_secs(240), "{error}");
    }
    eprintln!("lease of a dead donor removed in {:?}", began.elapsed());
    assert!(Api::<Node>::all(setting.origin.clone()).get_opt("lease-8").await.unwrap().is_none());
    let began = Instant::now();
    while let Err(error) = origin.remove_identity(&peer()).await {
        eprintln!("after {:?}: {error}", began.elapsed());
        assert!(began.elapsed() < Duration::from_secs(240), "{error}");
    }
    eprintln!("peering with a dead donor removed in {:?}", began.elapsed());
    assert!(Api::<Namespace>::all(setting.origin.clone()).get_opt(TENANT).await.unwrap().is_none());
    let clusters = Api::<DynamicObject>::all_with(setting.origin.clone(), &comity_agent_liqo::foreign_cluster());
    assert!(clusters.get_opt("donor").await.unwrap().is_none());
    origin.remove_identity(&peer()).await.unwrap();
}
