//! Bursts on a real API server with a real scheduler: gates, pins, tolerations, limits, restarts, and the custom
//! resources.

use std::sync::Arc;

use comity_agent_model::node_service::NodeService;
use comity_agent_model::nodes::Nodes;
use comity_agent_workload::burst::{
    self, BurstContext, BurstSettings, CHECKPOINT_SECRET, GATE, GATE_WEBHOOK, GateReview, LEASE, REQUEST,
    gate_registration,
};
use comity_agent_workload::crd::{GpuLease, GpuRequest};
use comity_agent_workload::reclaim::Saved;
use comity_agent_workload::webhook::{
    self, ChangeKind, Effect, Registration, Renewal, Review, WebhookObjects, WebhookServer, WebhookSettings,
    check_webhooks, find_secret, install,
};
use comity_proto::v1;
use comity_runtime::{Clock as _, SystemClock};
use k8s_openapi::api::admissionregistration::v1::MutatingWebhookConfiguration;
use k8s_openapi::api::core::v1::{Namespace, Node, Pod};
use kube::Api;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams};
use prometheus::IntGauge;
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use crate::broker::Broker;
use crate::cluster::{Cluster, eventually, pod};

/// A running burst.
pub(crate) struct Running {
    stop: CancellationToken,
    task: JoinHandle<()>,
    /// The leases whose work the burst reports as saved.
    pub(crate) saved: watch::Sender<Saved>,
}

impl Running {
    pub(crate) fn start(cluster: &Cluster, broker: &Broker, nodes: &watch::Sender<Nodes>, port: Option<u16>) -> Self {
        let settings = BurstSettings { enabled: true, ..BurstSettings::default() };
        settings.check().unwrap();
        let service = watch::channel(NodeService { borrows: Ok(()), ..NodeService::none("") }).1;
        let (stores, saved) = (watch::Sender::default(), watch::Sender::default());
        let named = stores.subscribe();
        let context = BurstContext {
            cluster: "polytechnic".to_owned(),
            kubernetes: cluster.agent.clone(),
            settings,
            requests: Arc::new(broker.clone()),
            desired: broker.desired(),
            records: watch::channel(Arc::default()).1,
            nodes: nodes.subscribe(),
            service: service.clone(),
            stores,
            saved: saved.clone(),
            clock: Arc::new(SystemClock::new()),
        };
        let stop = CancellationToken::new();
        let gated = port.map(|port| served(cluster, port, Box::new(GateReview::new(service, named)), stop.clone()));
        let burst = burst::run(context, stop.clone());
        let task = tokio::spawn(async move {
            match gated {
                Some(gated) => drop(tokio::join!(burst, gated)),
                None => burst.await,
            }
        });
        Self { stop, task, saved }
    }

    pub(crate) async fn stop(self) {
        self.stop.cancel();
        self.task.await.unwrap();
    }
}

/// Serves one kind of review until stopped.
pub(crate) fn served(
    cluster: &Cluster,
    port: u16,
    review: Box<dyn Review>,
    stop: CancellationToken,
) -> impl Future<Output = ()> + use<> {
    let (owner, agent, settings) = (cluster.admin(), cluster.agent.client(), webhook_settings(port));
    async move {
        installed(&owner, &settings, &[review.registration()]).await;
        let reviews: [Box<dyn Review>; 1] = [review];
        let certificate_end = IntGauge::new("certificate_end", "Of the webhooks.").unwrap();
        let (reviews, clock, shown) = (Arc::new(reviews), Arc::new(SystemClock::new()), certificate_end.clone());
        WebhookServer { client: agent, settings, reviews, clock, certificate_end }.run(stop).await;
        assert!(shown.get() > 0, "nobody learns when the certificate ends");
    }
}

fn webhook_settings(port: u16) -> WebhookSettings {
    WebhookSettings {
        listen: ([127, 0, 0, 1], port).into(),
        url: Some(format!("https://127.0.0.1:{port}")),
        ..WebhookSettings::default()
    }
}

/// As the cluster's owner with `comity-agent webhook install`. Registrations of other webhooks go.
async fn installed(
    owner: &kube::Client,
    settings: &WebhookSettings,
    registrations: &[Registration],
) -> Vec<webhook::Change> {
    let (found, now) = (find_secret(owner, settings).await.unwrap(), SystemClock::new().now());
    let objects = WebhookObjects::plan(settings, registrations, found.as_ref(), Renewal::WhenNeeded, now).unwrap();
    install(owner, &objects, Effect::Apply).await.unwrap()
}

/// Removes the registrations of all webhooks.
pub(crate) async fn no_webhooks(cluster: &Cluster) {
    installed(&cluster.admin(), &webhook_settings(1), &[]).await;
}

pub(crate) async fn namespace(cluster: &Cluster, name: &str, annotations: Value) {
    let labels = json!({ "comity.dev/offload": "true", "comity.dev/tenant": "vision", "comity.dev/class": "frontier" });
    let object = json!({ "metadata": { "name": name, "labels": labels, "annotations": annotations } });
    let api = Api::<Namespace>::all(cluster.admin());
    api.create(&PostParams::default(), &serde_json::from_value(object).unwrap()).await.unwrap();
}

pub(crate) fn pods(cluster: &Cluster, namespace: &str) -> Api<Pod> {
    Api::namespaced(cluster.admin(), namespace)
}

async fn all(api: &Api<Pod>) -> Vec<Pod> {
    api.list(&ListParams::default()).await.unwrap().items
}

fn is_gated(pod: &Pod) -> bool {
    pod.spec.as_ref().unwrap().scheduling_gates.iter().flatten().any(|gate| gate.name == GATE)
}

pub(crate) fn annotation<'a>(pod: &'a Pod, key: &str) -> Option<&'a str> {
    pod.metadata.annotations.as_ref()?.get(key).map(String::as_str)
}

fn node_of(pod: &Pod) -> Option<&str> {
    pod.spec.as_ref()?.node_name.as_deref()
}

/// The node that Liqo would make for a lease: simulated, with the lease's label and taint, and Liqo's taint.
pub(crate) async fn virtual_node(cluster: &Cluster, lease: &str, gpus: u32) {
    let amounts = json!({ "cpu": "64", "memory": "256Gi", "pods": "110", "nvidia.com/gpu": gpus.to_string() });
    let node = json!({
        "metadata": {
            "name": lease,
            "labels": { LEASE: lease, "type": "virtual-kubelet", "kubernetes.io/hostname": lease },
            "annotations": { "kwok.x-k8s.io/node": "fake" },
        },
        "spec": { "taints": [
            { "key": LEASE, "value": lease, "effect": "NoSchedule" },
            { "key": "virtual-node.liqo.io/not-allowed", "value": "true", "effect": "NoExecute" },
        ] },
        "status": { "allocatable": amounts, "capacity": amounts },
    });
    let api = Api::<Node>::all(cluster.admin());
    api.create(&PostParams::default(), &serde_json::from_value(node).unwrap()).await.unwrap();
}

pub(crate) async fn events_say(cluster: &Cluster, namespace: &str, reason: &str) -> bool {
    let arguments = ["get", "events", "-n", namespace, "-o", "jsonpath={.items[*].reason}"];
    cluster.plane().kubectl(&arguments).await.unwrap().split(' ').any(|found| found == reason)
}

pub(crate) fn free_port() -> u16 {
    std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

pub(crate) async fn pods_run_on_leases(cluster: &Cluster) {
    for node in ["gpu-1", "gpu-2"] {
        cluster.plane().kubectl(&["cordon", node]).await.unwrap();
    }
    let (broker, nodes) = (Broker::new(), watch::Sender::new(None));
    let port = free_port();
    let running = Running::start(cluster, &broker, &nodes, Some(port));
    let webhooks = Api::<MutatingWebhookConfiguration>::all(cluster.admin());
    eventually("the webhook is configured", || async { webhooks.get_opt(GATE_WEBHOOK).await.unwrap().is_some() }).await;

    let running = a_job_is_gated_requested_once_and_pinned(cluster, &broker, &nodes, port, running).await;
    changes_of_the_registration_are_noticed(cluster, port).await;
    a_pod_gets_the_store_of_the_request_whose_lease_it_uses(cluster, &broker).await;
    local_gpus_come_first_and_limits_hold(cluster, &broker, &nodes).await;
    running.stop().await;

    no_webhooks(cluster).await;
    let running = Running::start(cluster, &broker, &nodes, None);
    assert!(webhooks.get_opt(GATE_WEBHOOK).await.unwrap().is_none());
    a_pending_pod_gets_tolerations(cluster, &broker).await;
    a_gate_in_a_namespace_that_did_not_opt_in_is_removed(cluster).await;
    running.stop().await;
    for node in ["gpu-1", "gpu-2"] {
        cluster.plane().kubectl(&["uncordon", node]).await.unwrap();
    }
}

async fn a_job_is_gated_requested_once_and_pinned(
    cluster: &Cluster,
    broker: &Broker,
    nodes: &watch::Sender<Nodes>,
    port: u16,
    running: Running,
) -> Running {
    namespace(cluster, "team-a", json!({ "comity.dev/cooldown": "1s" })).await;
    let pods = pods(cluster, "team-a");
    // The API server needs a moment to call a new webhook.
    let dry = PostParams { dry_run: true, ..PostParams::default() };
    eventually("the webhook is asked", || async {
        is_gated(&pods.create(&dry, &pod("try", "nvidia.com/gpu", 1)).await.unwrap())
    })
    .await;
    let mut work = serde_json::to_value(pod("work", "nvidia.com/gpu", 1).spec.unwrap()).unwrap();
    work["restartPolicy"] = json!("Never");
    let job = json!({
        "apiVersion": "batch/v1", "kind": "Job", "metadata": { "name": "train", "namespace": "team-a" },
        "spec": { "parallelism": 2, "completions": 2, "template": { "spec": work } },
    });
    cluster.plane().kubectl_with_input(&["apply", "-f", "-"], &job.to_string()).await.unwrap();
    eventually("the Job's pods are one request", || async {
        let live = broker.live("team-a");
        live.len() == 1 && live[0].spec.as_ref().unwrap().gpus.as_ref().unwrap().count == 2
    })
    .await;
    eventually("both pods are held and say for what they wait", || async {
        let all = all(&pods).await;
        all.len() == 2 && all.iter().all(|pod| is_gated(pod) && annotation(pod, REQUEST) == Some("req-1"))
    })
    .await;
    eventually("an event says why", || events_say(cluster, "team-a", "ComityWaiting")).await;

    running.stop().await;
    let running = Running::start(cluster, broker, nodes, Some(port));
    tokio::time::sleep(std::time::Duration::from_secs(3)).await;
    assert_eq!(broker.submissions(), 1, "a restart requests nothing twice");

    let lease = broker.grant("req-1");
    virtual_node(cluster, &lease, 2).await;
    eventually("both pods are on the lease's node", || async {
        all(&pods).await.iter().all(|pod| node_of(pod) == Some("lease-1") && !is_gated(pod))
    })
    .await;
    eventually("the lease is shown", || async {
        let lease = Api::<GpuLease>::namespaced(cluster.admin(), "team-a").get_opt("lease-1").await.unwrap();
        lease.and_then(|lease| lease.status).and_then(|status| status.state).as_deref() == Some("Active")
    })
    .await;
    cluster.plane().kubectl(&["delete", "job", "train", "-n", "team-a", "--cascade=foreground"]).await.unwrap();
    eventually("the idle lease is released", || async { broker.live("team-a").is_empty() }).await;
    cluster.plane().kubectl(&["delete", "node", "lease-1"]).await.unwrap();
    assert_eq!(broker.submissions(), 1);
    running
}

/// The agent says what is wrong, with its own rights; the owner mends it.
async fn changes_of_the_registration_are_noticed(cluster: &Cluster, port: u16) {
    let (settings, gate) = (webhook_settings(port), [gate_registration()]);
    let api = Api::<MutatingWebhookConfiguration>::all(cluster.admin());
    let check = async || {
        let client = cluster.agent.client();
        check_webhooks(&client, &settings, &gate, SystemClock::new().now()).await
    };
    assert!(check().await.unwrap().is_some_and(|days| days > 365));
    for (change, noticed) in [
        (json!({ "op": "replace", "path": "/webhooks/0/failurePolicy", "value": "Fail" }), "failurePolicy"),
        (json!({ "op": "remove", "path": "/webhooks/0/clientConfig/caBundle" }), "does not trust"),
    ] {
        let patch = Patch::Json::<()>(serde_json::from_value(json!([change])).unwrap());
        api.patch(GATE_WEBHOOK, &PatchParams::default(), &patch).await.unwrap();
        let problem = check().await.unwrap_err();
        assert!(problem.contains(noticed) && problem.contains("comity-agent webhook install"), "{problem}");
        let changes = installed(&cluster.admin(), &settings, &gate).await;
        assert_eq!((changes[0].kind, changes[1].kind), (ChangeKind::Changed, ChangeKind::Unchanged), "{changes:?}");
        check().await.unwrap();
    }
    let changes = installed(&cluster.admin(), &settings, &gate).await;
    assert!(changes.iter().all(|change| change.kind == ChangeKind::Unchanged), "{changes:?}");
}

async fn a_pod_gets_the_store_of_the_request_whose_lease_it_uses(cluster: &Cluster, broker: &Broker) {
    namespace(cluster, "team-f", json!({})).await;
    let request = json!({
        "apiVersion": "comity.dev/v1alpha1", "kind": "GpuRequest",
        "metadata": { "name": "nightly", "namespace": "team-f" },
        "spec": { "gpus": 1, "cpuMilliPerGpu": 64_000, "memoryMibPerGpu": 262_144, "checkpointSecret": "checkpoints" },
    });
    cluster.plane().kubectl_with_input(&["apply", "-f", "-"], &request.to_string()).await.unwrap();
    eventually("the request names the store", || async {
        let named = |one: &v1::Request| one.spec.as_ref().is_some_and(|spec| spec.checkpoint_secret == "checkpoints");
        broker.live("team-f").iter().any(named)
    })
    .await;
    let lease = broker.grant(&broker.live("team-f")[0].id);
    virtual_node(cluster, &lease, 1).await;
    let (pods, submissions) = (pods(cluster, "team-f"), broker.submissions());
    let store_of = |pod: &Pod| {
        let container = &pod.spec.as_ref().unwrap().containers[0];
        container.env_from.iter().flatten().find_map(|from| from.secret_ref.as_ref()).map(|secret| secret.name.clone())
    };
    let dry = PostParams { dry_run: true, ..PostParams::default() };
    eventually("pods get the store", || async {
        let made = pods.create(&dry, &pod("try", "nvidia.com/gpu", 1)).await.unwrap();
        store_of(&made).as_deref() == Some("checkpoints")
    })
    .await;
    let part = pods.create(&dry, &pod("try", "nvidia.com/gpu.shared", 1)).await.unwrap();
    assert!(is_gated(&part) && store_of(&part).is_some(), "a part of a GPU is a GPU too");
    let made = pods.create(&PostParams::default(), &pod("work", "nvidia.com/gpu", 1)).await.unwrap();
    assert_eq!(
        (store_of(&made).as_deref(), annotation(&made, CHECKPOINT_SECRET)),
        (Some("checkpoints"), Some("checkpoints"))
    );
    eventually("it runs on the request's lease", || async {
        node_of(&pods.get("work").await.unwrap()) == Some(&lease)
    })
    .await;
    assert_eq!(broker.submissions(), submissions, "it needed no request of its own");
    pods.delete("work", &DeleteParams::default().grace_period(0)).await.unwrap();
    cluster.plane().kubectl(&["delete", "gpurequest", "nightly", "-n", "team-f"]).await.unwrap();
    eventually("its request is cancelled", || async { broker.live("team-f").is_empty() }).await;
    cluster.plane().kubectl(&["delete", "node", &lease]).await.unwrap();
}

async fn local_gpus_come_first_and_limits_hold(cluster: &Cluster, broker: &Broker, nodes: &watch::Sender<Nodes>) {
    let device = v1::Device { healthy: true, resource_name: "nvidia.com/gpu".to_owned(), ..v1::Device::default() };
    let node = v1::Node { id: "a".to_owned(), schedulable: true, devices: vec![device], ..v1::Node::default() };
    nodes.send_replace(Some(Arc::new(vec![node])));
    cluster.plane().kubectl(&["uncordon", "gpu-1"]).await.unwrap();
    namespace(cluster, "team-b", json!({ "comity.dev/max-gpus": "1" })).await;
    let pods = pods(cluster, "team-b");
    let dry = PostParams { dry_run: true, ..PostParams::default() };
    eventually("the webhook is asked", || async {
        is_gated(&pods.create(&dry, &pod("try", "nvidia.com/gpu", 1)).await.unwrap())
    })
    .await;
    pods.create(&PostParams::default(), &pod("stays", "nvidia.com/gpu", 1)).await.unwrap();
    eventually("it runs on a GPU of this cluster", || async {
        node_of(&pods.get("stays").await.unwrap()) == Some("gpu-1")
    })
    .await;
    assert!(broker.live("team-b").is_empty());
    nodes.send_replace(Some(Arc::new(Vec::new())));
    cluster.plane().kubectl(&["cordon", "gpu-1"]).await.unwrap();
    for name in ["first", "second"] {
        pods.create(&PostParams::default(), &pod(name, "nvidia.com/gpu", 1)).await.unwrap();
    }
    eventually("the limit is in an event", || events_say(cluster, "team-b", "ComityLimit")).await;
    assert_eq!(broker.live("team-b").len(), 1);
    // Pods that cannot be offloaded get no gate.
    let mut tied = pod("tied", "nvidia.com/gpu", 1);
    tied.spec.as_mut().unwrap().node_selector = Some([("disk".to_owned(), "fast".to_owned())].into());
    pods.create(&PostParams::default(), &tied).await.unwrap();
    eventually("an event says why it stays", || events_say(cluster, "team-b", "ComityNotOffloadable")).await;
    assert!(!is_gated(&pods.get("tied").await.unwrap()));
    for name in ["stays", "first", "second", "tied"] {
        pods.delete(name, &DeleteParams::default().grace_period(0)).await.unwrap();
    }
    eventually("requests without pods are cancelled", || async { broker.live("team-b").is_empty() }).await;
}

async fn a_pending_pod_gets_tolerations(cluster: &Cluster, broker: &Broker) {
    namespace(cluster, "team-c", json!({})).await;
    let pods = pods(cluster, "team-c");
    let made = pods.create(&PostParams::default(), &pod("late", "nvidia.com/gpu", 2)).await.unwrap();
    assert!(!is_gated(&made));
    eventually("the pending pod is a request", || async { broker.live("team-c").len() == 1 }).await;
    let request = broker.live("team-c")[0].clone();
    let spec = request.spec.unwrap();
    assert!(spec.topology.unwrap().same_node && spec.gpus.unwrap().count == 2);
    let lease = broker.grant(&request.id);
    virtual_node(cluster, &lease, 2).await;
    eventually("it is on the lease's node", || async {
        let pod = pods.get("late").await.unwrap();
        node_of(&pod) == Some(&lease) && annotation(&pod, LEASE) == Some(&lease)
    })
    .await;
    pods.delete("late", &DeleteParams::default().grace_period(0)).await.unwrap();
    cluster.plane().kubectl(&["delete", "node", &lease]).await.unwrap();
}

async fn a_gate_in_a_namespace_that_did_not_opt_in_is_removed(cluster: &Cluster) {
    let pods = pods(cluster, "research");
    let mut left = pod("left-behind", "nvidia.com/gpu", 1);
    left.metadata.labels = Some([(GATE.to_owned(), "true".to_owned())].into());
    left.spec.as_mut().unwrap().scheduling_gates = serde_json::from_value(json!([{ "name": GATE }])).unwrap();
    pods.create(&PostParams::default(), &left).await.unwrap();
    eventually("the gate is off", || async { !is_gated(&pods.get("left-behind").await.unwrap()) }).await;
    pods.delete("left-behind", &DeleteParams::default().grace_period(0)).await.unwrap();
}

pub(crate) async fn a_gpu_request_lives_and_ends(cluster: &Cluster) {
    namespace(cluster, "team-d", json!({})).await;
    let (broker, nodes) = (Broker::new(), watch::Sender::new(None));
    let running = Running::start(cluster, &broker, &nodes, None);
    let object = json!({
        "apiVersion": "comity.dev/v1alpha1", "kind": "GpuRequest",
        "metadata": { "name": "nightly", "namespace": "team-d" }, "spec": { "gpus": 2, "duration": "8h" },
    });
    cluster.plane().kubectl_with_input(&["apply", "-f", "-"], &object.to_string()).await.unwrap();
    let api = Api::<GpuRequest>::namespaced(cluster.admin(), "team-d");
    let state = || async { api.get("nightly").await.unwrap().status.unwrap_or_default() };
    eventually("it is queued", || async { state().await.state.as_deref() == Some("Queued") }).await;
    assert_eq!(state().await.message.as_deref(), Some("every donor's GPUs are taken"));
    let request = broker.live("team-d").remove(0);
    assert_eq!(request.spec.as_ref().unwrap().duration_ms, 8 * 3_600_000);
    broker.grant(&request.id);
    eventually("it is active", || async {
        let status = state().await;
        status.state.as_deref() == Some("Active") && status.donor.as_deref() == Some("institute")
    })
    .await;
    let row = cluster.plane().kubectl(&["get", "gpureq", "-n", "team-d", "--no-headers"]).await.unwrap();
    assert!(row.contains("nightly") && row.contains("Active") && row.contains("lease-1"), "{row}");

    // A deleted object waits while the broker is silent, and goes when it answers.
    broker.be_silent(true);
    api.delete("nightly", &DeleteParams::default()).await.unwrap();
    tokio::time::sleep(std::time::Duration::from_secs(3)).await;
    assert!(api.get_opt("nightly").await.unwrap().is_some());
    broker.be_silent(false);
    eventually("it is gone", || async { api.get_opt("nightly").await.unwrap().is_none() }).await;
    assert!(broker.live("team-d").is_empty());

    // A request with another tenant than the namespace's is refused, with the reason.
    let mut wrong = object.clone();
    wrong["spec"]["tenant"] = json!("robotics");
    cluster.plane().kubectl_with_input(&["apply", "-f", "-"], &wrong.to_string()).await.unwrap();
    eventually("it is refused", || async {
        let status = state().await;
        status.state.as_deref() == Some("Refused") && status.message.unwrap_or_default().contains("robotics")
    })
    .await;
    api.delete("nightly", &DeleteParams::default()).await.unwrap();
    eventually("it is gone too", || async { api.get_opt("nightly").await.unwrap().is_none() }).await;

    let from_template = json!({
        "apiVersion": "comity.dev/v1alpha1", "kind": "GpuRequest",
        "metadata": { "name": "nightly", "namespace": "team-d" }, "spec": { "template": "notebook-small" },
    });
    cluster.plane().kubectl_with_input(&["apply", "-f", "-"], &from_template.to_string()).await.unwrap();
    eventually("it is submitted", || async { !broker.live("team-d").is_empty() }).await;
    let asked = broker.live("team-d").remove(0).spec.unwrap();
    assert_eq!((asked.template.as_str(), asked.gpus.map(|gpus| gpus.count)), ("notebook-small", Some(0)));
    api.delete("nightly", &DeleteParams::default()).await.unwrap();
    eventually("it is gone at last", || async { api.get_opt("nightly").await.unwrap().is_none() }).await;
    running.stop().await;
}

pub(crate) async fn definitions_refuse_invalid_objects(cluster: &Cluster) {
    let apply = |spec: Value| async move {
        let object = json!({
            "apiVersion": "comity.dev/v1alpha1", "kind": "GpuRequest",
            "metadata": { "name": "bad", "namespace": "default" }, "spec": spec,
        });
        cluster.plane().kubectl_with_input(&["apply", "-f", "-"], &object.to_string()).await
    };
    for (spec, message) in [
        (json!({ "gpus": 0 }), "gpus must be from 1 to 4096"),
        (json!({ "class": "a" }), "gpus is required"),
        (json!({ "template": "My Notebook" }), "template must be a DNS label"),
        (json!({ "gpus": 1, "class": "Big One" }), "class must be a DNS label"),
        (json!({ "gpus": 1, "class": "a", "selector": "true" }), "give either class or selector"),
        (json!({ "gpus": 1, "milli": 20 }), "milli must be from 50 to 1000"),
        (json!({ "gpus": 1, "migProfile": "bad profile!" }), "migProfile must be a name"),
        (json!({ "gpus": 1, "memoryMib": 1_u64 << 41 }), "memoryMib must be from 1 to 1099511627776"),
        (json!({ "gpus": 1, "cpuMilliPerGpu": 1_u64 << 41 }), "cpuMilliPerGpu must be from 0 to 1099511627776"),
        (json!({ "gpus": 1, "memoryMibPerGpu": -1 }), "memoryMibPerGpu must be from 0 to 1099511627776"),
        (json!({ "gpus": 1, "duration": "91d" }), "duration must be from 10s to 90d"),
        (json!({ "gpus": 1, "duration": "9s" }), "duration must be from 10s to 90d"),
        (json!({ "gpus": 1, "milli": 500, "migProfile": "1g.10gb" }), "at most one of milli"),
        (json!({ "gpus": 1, "duration": "a week" }), "duration must be a number"),
        (json!({ "gpus": 1, "gpuz": 1 }), "unknown field"),
        (json!({ "gpus": 1, "members": { "min": 3, "desired": 2 } }), "members.min must not be more"),
        (json!({ "gpus": 1_024, "members": { "min": 1, "desired": 8 } }), "at most 4096"),
        (json!({ "gpus": 2, "topology": { "nvlink": "required" } }), "Unsupported value"),
        (json!({ "gpus": 2, "isolation": "memory" }), "Unsupported value"),
        (json!({ "gpus": 2, "topology": { "numa": "Aligned" } }), "cpuMilliPerGpu or memoryMibPerGpu"),
        (json!({ "gpus": 2, "migProfile": "1g.10gb", "topology": { "nvlink": "Required" } }), "does not join MIG"),
        (json!({ "gpus": 2, "sameNode": true, "topology": { "sameNode": true } }), "either sameNode or topology"),
        (json!({ "gpus": 2, "topology": { "rdmaGbits": 0 } }), "topology.rdmaGbits must be"),
        (json!({ "gpus": 2, "priorityClass": "Very High" }), "priorityClass must be a DNS label"),
        (json!({ "gpus": 2, "purpose": "For fun" }), "purpose must be a DNS label"),
        (json!({ "gpus": 2, "preemptible": { "graceSeconds": 90_000 } }), "a day"),
        (json!({ "gpus": 2, "window": { "startBy": "tonight" } }), "date-time"),
        (json!({ "gpus": 2, "checkpointSecret": "My Bucket" }), "checkpointSecret must be the name of a Secret"),
        (json!({ "gpus": 2, "checkpointSecret": "a", "delivery": "Namespace" }), "only pods on a virtual node"),
        (
            json!({ "gpus": 2, "window": { "notBefore": "2026-03-02T00:00:00Z", "startBy": "2026-03-01T00:00:00Z" } }),
            "startBy must be after",
        ),
    ] {
        let error = apply(spec.clone()).await.unwrap_err().to_string();
        assert!(error.contains(message), "{spec}: {error}");
    }
    let all = json!({
        "gpus": 2, "cpuMilliPerGpu": 4_000, "isolation": "Hardware", "members": { "min": 1, "desired": 2 },
        "topology": { "nvlink": "Required", "numa": "Aligned", "rdmaGbits": 400, "sameNode": false, "wholeNode": true },
        "priorityClass": "urgent", "preemptible": { "graceSeconds": 600, "checkpoint": true },
        "checkpointSecret": "checkpoints.team-a",
        "window": { "notBefore": "2026-03-01T00:00:00Z", "startBy": "2026-03-02T00:00:00+01:00" },
    });
    apply(all).await.unwrap();
    cluster.plane().kubectl(&["delete", "gpurequest", "bad", "-n", "default"]).await.unwrap();
    apply(json!({ "gpus": 1 })).await.unwrap();
    let error = apply(json!({ "gpus": 2 })).await.unwrap_err().to_string();
    assert!(error.contains("cannot be changed"), "{error}");
    cluster.plane().kubectl(&["delete", "gpurequest", "bad", "-n", "default"]).await.unwrap();
}
