//! The donor's own pods that want leased GPUs: placeholders hold these, or the pods count as local use.

use std::collections::BTreeSet;
use std::sync::Arc;

use comity_agent::observe::kubernetes::ObserverOptions;
use comity_agent::observe::{Inventory, PLACEHOLDER_NAMESPACE};
use comity_agent::services::placeholders::{self, PlaceholderContext};
use comity_agent_delivery::DonorDelivery as _;
use comity_agent_model::lent::LentLeases;
use comity_agent_model::local_policy::ReclaimForPending;
use comity_runtime::SystemClock;
use comity_types::LeaseId;
use k8s_openapi::api::core::v1::Pod;
use kube::Api;
use kube::api::{DeleteParams, ListParams, PostParams};
use serde_json::json;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use crate::cluster::{Cluster, eventually, lease, pod, refusal};
use crate::drift::{GPU, local_use, observe_with, observe_with_options};

/// The running task that makes placeholders.
pub(crate) struct Holder {
    stop: CancellationToken,
    task: JoinHandle<()>,
}

impl Holder {
    pub(crate) fn start(cluster: &Cluster, lent: &watch::Sender<LentLeases>, inventory: &Inventory) -> Self {
        let context = PlaceholderContext {
            client: cluster.agent.client(),
            image: "comity.local/pause:1".to_owned(),
            lent: lent.subscribe(),
            differences: inventory.differences(),
            clock: Arc::new(SystemClock::new()),
        };
        let stop = CancellationToken::new();
        let task = tokio::spawn(placeholders::run(context, stop.clone()));
        Self { stop, task }
    }

    pub(crate) async fn stop(self) {
        self.stop.cancel();
        self.task.await.unwrap();
    }
}

pub(crate) async fn leased_gpus_are_held_until_pods_of_the_lease_come(cluster: &Cluster) {
    let (donor, lease) = (cluster.donor(), lease("lease-52"));
    donor.prepare(&lease).await.unwrap();
    let (lent, inventory) = observe_with(cluster, &lease);
    let first = Holder::start(cluster, &lent, &inventory);
    let held = Api::<Pod>::namespaced(cluster.admin(), PLACEHOLDER_NAMESPACE.name);
    let bound = async || {
        let pods = held.list(&ListParams::default()).await.unwrap();
        let nodes = pods.items.into_iter().filter_map(|pod| pod.spec?.node_name);
        nodes.filter(|node| node == "gpu-1").count()
    };
    eventually("three GPUs of gpu-1 are held", || async { bound().await == 3 }).await;
    local_use(&inventory.nodes(), "gpu-1", 0).await;

    // The donor's own pods get the other five GPUs of the node, and no sixth.
    let research = Api::<Pod>::namespaced(cluster.admin(), "research");
    let here = |name: &str, gpus: u32| {
        let mut pod = pod(name, GPU, gpus);
        let host = [("kubernetes.io/hostname".to_owned(), "gpu-1".to_owned())];
        pod.spec.as_mut().unwrap().node_selector = Some(host.into());
        pod
    };
    let node_of = async |name: &str| research.get(name).await.unwrap().spec.unwrap().node_name;
    research.create(&PostParams::default(), &here("five", 5)).await.unwrap();
    eventually("five GPUs are used locally", || async { node_of("five").await.is_some() }).await;
    research.create(&PostParams::default(), &here("sixth", 1)).await.unwrap();
    eventually("the donor's own pod waits", || async {
        let conditions = research.get("sixth").await.unwrap().status.unwrap().conditions.unwrap_or_default();
        conditions.iter().any(|condition| condition.reason.as_deref() == Some("Unschedulable"))
    })
    .await;
    assert_eq!((node_of("sixth").await, bound().await), (None, 3));
    // It could win the race for a GPU that a placeholder gives up.
    research.delete("sixth", &DeleteParams::default().grace_period(0)).await.unwrap();

    // The agent is started again: nothing that holds a GPU lets it go before the leases are known.
    let uids = async || {
        let pods = held.list(&ListParams::default()).await.unwrap().items;
        pods.into_iter().filter_map(|pod| pod.metadata.uid).collect::<BTreeSet<String>>()
    };
    let before = uids().await;
    first.stop().await;
    let (lent, inventory) = observe_with(cluster, &lease);
    let second = Holder::start(cluster, &lent, &inventory);

    let tenant = cluster.tenant(&donor.credential(&lease).await.unwrap());
    let lent_pods = Api::<Pod>::default_namespaced(tenant);
    lent_pods.create(&PostParams::default(), &pod("two", GPU, 2)).await.unwrap();
    eventually("a pod of the lease takes the place of two", || async {
        lent_pods.get("two").await.unwrap().spec.unwrap().node_name.as_deref() == Some("gpu-1") && bound().await == 1
    })
    .await;
    assert!(uids().await.is_subset(&before), "the start of the agent replaced placeholders");
    lent_pods.delete("two", &DeleteParams::default().grace_period(0)).await.unwrap();
    eventually("all three are held again", || async { bound().await == 3 }).await;
    research.delete("five", &DeleteParams::default().grace_period(0)).await.unwrap();

    // Somebody who controls the agent gets no pods of his choice.
    let own = Api::<Pod>::namespaced(cluster.agent.client(), PLACEHOLDER_NAMESPACE.name);
    let mut chosen = serde_json::to_value(held.list(&ListParams::default()).await.unwrap().items[0].clone()).unwrap();
    chosen["metadata"] = json!({ "name": "chosen", "labels": { "comity.dev/lease": "lease-52" } });
    chosen["spec"]["nodeName"] = json!(null);
    chosen["spec"]["containers"][0]["command"] = json!(["mine"]);
    let chosen: Pod = serde_json::from_value(chosen).unwrap();
    let (code, message) = refusal(own.create(&PostParams::default(), &chosen).await);
    assert!((code == 403 || code == 422) && message.contains("its image's own command"), "{code} {message}");

    lent.send_modify(|leases| {
        let mut ending = leases.as_deref().unwrap().clone();
        ending.get_mut(&LeaseId(52)).unwrap().is_wanted = false;
        *leases = Some(Arc::new(ending));
    });
    eventually("nothing is held for a lease that ends", || async {
        held.list(&ListParams::default()).await.unwrap().items.is_empty()
    })
    .await;
    second.stop().await;
    donor.remove(LeaseId(52)).await.unwrap();
}

/// Without placeholders: pods of the lease have its GPUs.
pub(crate) async fn pods_that_wait_for_leased_gpus_are_local_use(cluster: &Cluster) {
    let (donor, lease) = (cluster.donor(), lease("lease-53"));
    donor.prepare(&lease).await.unwrap();
    let settings = ReclaimForPending { after_seconds: 2, ..ReclaimForPending::default() };
    let options = ObserverOptions { pending: Some(settings), ..ObserverOptions::default() };
    let (_lent, inventory) = observe_with_options(cluster, &lease, options);
    let nodes = inventory.nodes();
    let lent_pods = Api::<Pod>::default_namespaced(cluster.tenant(&donor.credential(&lease).await.unwrap()));
    lent_pods.create(&PostParams::default(), &pod("lent", GPU, 3)).await.unwrap();
    eventually("the lease is used", || async {
        lent_pods.get("lent").await.unwrap().spec.unwrap().node_name.as_deref() == Some("gpu-1")
    })
    .await;

    let research = Api::<Pod>::namespaced(cluster.admin(), "research");
    let here = |name: &str, gpus: u32| {
        let mut pod = pod(name, GPU, gpus);
        let requirement = json!([{ "key": "kubernetes.io/hostname", "operator": "In", "values": ["gpu-1"] }]);
        let term = json!({ "matchExpressions": requirement });
        pod.spec.as_mut().unwrap().affinity = serde_json::from_value(json!({ "nodeAffinity": {
            "requiredDuringSchedulingIgnoredDuringExecution": { "nodeSelectorTerms": [term] },
        } }))
        .unwrap();
        pod
    };
    let at_once = DeleteParams::default().grace_period(0);
    research.create(&PostParams::default(), &here("five", 5)).await.unwrap();
    local_use(&nodes, "gpu-1", 5_000).await;
    research.create(&PostParams::default(), &here("four", 4)).await.unwrap();
    research.create(&PostParams::default(), &here("two", 2)).await.unwrap();
    local_use(&nodes, "gpu-1", 7_000).await;
    let names = |name: &'static str| {
        let research = research.clone();
        async move { research.get(name).await.unwrap().spec.unwrap().node_name }
    };
    assert_eq!((names("four").await, names("two").await), (None, None));

    // The lease ends, and the scheduler places the pod for which it ended.
    lent_pods.delete("lent", &at_once).await.unwrap();
    eventually("the pod has its GPUs", || async { names("two").await.as_deref() == Some("gpu-1") }).await;
    local_use(&nodes, "gpu-1", 7_000).await;
    for name in ["two", "four", "five"] {
        research.delete(name, &at_once).await.unwrap();
    }
    local_use(&nodes, "gpu-1", 0).await;
    donor.remove(LeaseId(53)).await.unwrap();
}
