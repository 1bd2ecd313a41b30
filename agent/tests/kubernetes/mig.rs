//! MIG devices are cut for leases and merged back, with a stand-in of the MIG manager; the agent writes nothing else.

use std::sync::Arc;

use comity_agent::mig::mig_book::{LeaseCut, MigBook};
use comity_agent::mig::mig_keeper::{MigChannels, MigKeeper, preview};
use comity_agent::mig::mig_settings::MigSettings;
use comity_agent::observe::kubernetes::ObserverOptions;
use comity_agent::observe::{self, InventorySettings, LocalReserve};
use comity_agent_model::desired::Update;
use comity_agent_model::desired_state::DesiredState;
use comity_agent_model::lease::Lease;
use comity_agent_model::nodes::Nodes;
use comity_agent_state::record::{AdmittedCapacity, AdmittedPart, AdmittedShare, DonorRecord, Records};
use comity_proto::v1::sharing::{MigLayout, Mode};
use comity_runtime::SystemClock;
use comity_types::{Delivery, LeaseId, LeaseState, PeeringId, RequestId};
use k8s_openapi::api::core::v1::{ConfigMap, Node, Pod};
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use kube::{Api, ResourceExt as _};
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::cluster::{Cluster, PATIENCE, SALT, eventually, pod, refusal};
use crate::mig_node::{self, BEFORE, CONFIG, CONFIG_MAP, MigManager, NAMESPACE, NODE, OWNERS};

pub(crate) async fn devices_are_cut_and_merged_back(cluster: &Cluster) {
    mig_node::create(cluster).await;
    let manager = MigManager::start(cluster.admin());
    let settings = InventorySettings { salt: SALT, reserve: LocalReserve::default(), rdma: Vec::new() };
    let (channels, view) = MigChannels::new();
    let options = ObserverOptions { mig: Some(view), ..ObserverOptions::default() };
    let inventory = observe::kubernetes::observe_with(&cluster.agent, settings, observe::no_leases(), options);
    let (desired, updates) = watch::channel(Update::default());
    let (records, admitted) = watch::channel(Arc::new(Records::default()));
    let agent = Agent { book: channels.book(), nodes: inventory.nodes(), desired, records };
    let stop = CancellationToken::new();
    let keeper = MigKeeper {
        client: cluster.agent.client(),
        settings: mig_settings(),
        channels,
        remembered: DesiredState::default(),
        desired: updates,
        records: admitted,
        clock: Arc::new(SystemClock::new()),
    };
    let keeper = tokio::spawn(keeper.run(stop.clone()));

    empty_devices_may_be_cut(cluster, &agent).await;
    leases_are_cut_and_end(cluster, &agent).await;
    a_failed_change_is_refused(cluster, &agent, &manager).await;
    stop.cancel();
    keeper.await.unwrap();
    doctor_sees_the_same_layouts(cluster).await;
    the_agent_writes_nothing_else(cluster).await;
    drop(manager);
    cluster.plane().kubectl(&["delete", "node", NODE]).await.unwrap();
}

fn mig_settings() -> MigSettings {
    MigSettings {
        repartition: true,
        config_map: format!("{NAMESPACE}/{CONFIG_MAP}"),
        empty_seconds: 1,
        backoff_seconds: 1,
        ..MigSettings::default()
    }
}

async fn doctor_sees_the_same_layouts(cluster: &Cluster) {
    let settings = InventorySettings { salt: SALT, reserve: LocalReserve::default(), rdma: Vec::new() };
    let (channels, view) = MigChannels::new();
    let options = ObserverOptions { mig: Some(view), ..ObserverOptions::default() };
    let inventory = observe::kubernetes::observe_with(&cluster.agent, settings, observe::no_leases(), options);
    let (desired, records) = (watch::Sender::default(), watch::Sender::default());
    let doctor = Agent { book: channels.book(), nodes: inventory.nodes(), desired, records };
    preview(cluster.agent.client(), mig_settings(), Arc::new(SystemClock::new()), channels).await;
    doctor
        .offers("two devices that could be cut", |layouts| {
            layouts.len() == 2 && layouts.iter().all(|layout| layout.repartition)
        })
        .await;
}

/// The agent's parts as the test sees them.
struct Agent {
    book: watch::Receiver<MigBook>,
    nodes: watch::Receiver<Nodes>,
    desired: watch::Sender<Update>,
    records: watch::Sender<Arc<Records>>,
}

/// A lease as a broker says it, and as the donor admitted it.
type Lent = (Lease, DonorRecord);

impl Agent {
    fn lend(&self, lent: Vec<Lent>) {
        let (leases, records): (Vec<Lease>, Vec<DonorRecord>) = lent.into_iter().unzip();
        let donors = records.into_iter().map(|record| (record.lease, Arc::new(record))).collect();
        self.records.send_replace(Arc::new(Records { donors, ..Records::default() }));
        self.desired.send_modify(|update| {
            update.number += 1;
            update.state = Some(Arc::new(DesiredState { leases, ..DesiredState::default() }));
        });
    }

    async fn offers(&self, what: &str, holds: impl Fn(&[MigLayout]) -> bool) {
        let mut nodes = self.nodes.clone();
        let id = SALT.node_id(NODE);
        let seen = nodes.wait_for(|nodes| {
            let node = nodes.iter().flat_map(|nodes| nodes.iter()).find(|node| node.id == id);
            let layout = |device: &comity_proto::v1::Device| match device.sharing.as_ref()?.mode.as_ref()? {
                Mode::Mig(mig) => mig.layout.clone(),
                _ => None,
            };
            node.is_some_and(|node| {
                let layouts: Vec<MigLayout> = node.devices.iter().filter_map(layout).collect();
                layouts.len() == node.devices.len() && holds(&layouts)
            })
        });
        assert!(tokio::time::timeout(PATIENCE, seen).await.is_ok(), "not offered: {what}: {:?}", self.nodes.borrow());
    }

    async fn cut(&self, lease: u64) -> LeaseCut {
        let mut book = self.book.clone();
        let decided = book
            .wait_for(|book| matches!(book.leases.get(&LeaseId(lease)), Some(LeaseCut::Ready | LeaseCut::Refused(_))));
        let decided = tokio::time::timeout(PATIENCE, decided).await;
        let book = decided.unwrap_or_else(|_| panic!("lease {lease} waits: {:?}", self.book.borrow())).unwrap();
        book.leases[&LeaseId(lease)].clone()
    }
}

fn lease(id: u64, profile: &str, device: u32, starts: &[u8]) -> Lent {
    let share = AdmittedShare { milli: 1_000, mig_starts: starts.to_vec(), ..AdmittedShare::default() };
    let part = AdmittedPart { devices: [(device, share)].into(), ..AdmittedPart::default() };
    let capacity = AdmittedCapacity {
        mig_profile: profile.to_owned(),
        nodes: [(SALT.node_id(NODE), part)].into(),
        ..AdmittedCapacity::default()
    };
    let record = DonorRecord { capacity, ..DonorRecord::new(LeaseId(id), id, Delivery::Namespace) };
    let lease = Lease::new(LeaseId(id), RequestId(id), "polytechnic".parse().unwrap(), PeeringId(1));
    (Lease { state: Some(LeaseState::Connecting), fencing_token: id, ..lease }, record)
}

fn profiles(layout: &MigLayout) -> Vec<&str> {
    layout.instances.iter().map(|instance| instance.profile.as_str()).collect()
}

async fn empty_devices_may_be_cut(cluster: &Cluster, agent: &Agent) {
    let halves = |layout: &MigLayout| profiles(layout) == ["3g.40gb", "3g.40gb"];
    agent
        .offers("two empty devices", |layouts| {
            layouts.len() == 2 && layouts.iter().all(|layout| halves(layout) && layout.repartition)
        })
        .await;
    let research = Api::<Pod>::namespaced(cluster.admin(), "research");
    research.create(&PostParams::default(), &pod("half", "nvidia.com/mig-3g.40gb", 1)).await.unwrap();
    agent
        .offers("one instance in local use, and no device to cut", |layouts| {
            let local = layouts.iter().flat_map(|layout| &layout.instances).filter(|instance| instance.local).count();
            local == 1 && layouts.iter().all(|layout| halves(layout) && !layout.repartition)
        })
        .await;
    // A lease of another profile waits no longer than pods take to end.
    agent.lend(vec![lease(90, "7g.80gb", 0, &[0])]);
    let LeaseCut::Refused(refusal) = agent.cut(90).await else { panic!("cut under a pod") };
    assert_eq!(refusal.code, "mig-in-use");
    agent.lend(Vec::new());
    research.delete("half", &DeleteParams::default().grace_period(0)).await.unwrap();
    agent.offers("empty devices again", |layouts| layouts.iter().all(|layout| layout.repartition)).await;
}

async fn leases_are_cut_and_end(cluster: &Cluster, agent: &Agent) {
    agent.lend(vec![lease(91, "7g.80gb", 0, &[0]), lease(92, "1g.10gb", 1, &[6, 4])]);
    assert_eq!([agent.cut(91).await, agent.cut(92).await], [LeaseCut::Ready, LeaseCut::Ready]);
    let node = mig_node::node(&cluster.admin()).await;
    assert!(node.labels()[CONFIG].starts_with("comity-") && node.annotations()[BEFORE] == "halves");
    let text = mig_node::text(&cluster.admin()).await;
    let (head, rest) = text.split_once("# begin of comity-agent's configurations\n").unwrap();
    let (_, tail) = rest.split_once("# end of comity-agent's configurations\n").unwrap();
    assert_eq!(format!("{head}{tail}"), OWNERS);
    agent
        .offers("the instances of the leases, which stay", |layouts| {
            profiles(&layouts[0]) == ["7g.80gb"]
                && profiles(&layouts[1]).contains(&"1g.10gb")
                && layouts.iter().all(|layout| !layout.repartition)
        })
        .await;
    agent.lend(Vec::new());
    eventually("the owner's configuration returns", || async {
        let node = mig_node::node(&cluster.admin()).await;
        node.labels()[CONFIG] == "halves" && !node.annotations().contains_key(BEFORE)
    })
    .await;
    // The kubelet remembers nvidia.com/mig-7g.80gb, which is no device.
    agent
        .offers("the devices as before", |layouts| {
            layouts.len() == 2
                && layouts.iter().all(|layout| profiles(layout) == ["3g.40gb", "3g.40gb"] && layout.repartition)
        })
        .await;
}

async fn a_failed_change_is_refused(cluster: &Cluster, agent: &Agent, manager: &MigManager) {
    manager.fail(true);
    agent.lend(vec![lease(93, "7g.80gb", 0, &[0])]);
    let LeaseCut::Refused(refusal) = agent.cut(93).await else { panic!("the manager failed") };
    assert!(refusal.code == "mig-failed" && refusal.message.contains("\"failed\""), "{refusal:?}");
    assert_eq!(mig_node::node(&cluster.admin()).await.labels()[CONFIG], "halves");
    manager.fail(false);
    agent.lend(Vec::new());
    agent.offers("devices to cut after a pause", |layouts| layouts.iter().all(|layout| layout.repartition)).await;
}

/// With the agent's account, on a node that it may cut and on one that it may not.
async fn the_agent_writes_nothing_else(cluster: &Cluster) {
    let nodes = Api::<Node>::all(cluster.agent.client());
    let dry = PatchParams { dry_run: true, ..PatchParams::default() };
    let refused = async |node: &str, metadata: Value| {
        nodes.patch(node, &dry, &Patch::Merge(json!({ "metadata": metadata }))).await.is_err()
    };
    let own = "comity-0123456789ab";
    assert!(!refused(NODE, json!({ "labels": { CONFIG: own }, "annotations": { BEFORE: "halves" } })).await);
    assert!(!refused(NODE, json!({ "annotations": { "comity.dev/mig-change": "{}" } })).await);
    for (node, metadata) in [
        (NODE, json!({ "labels": { CONFIG: "all-disabled" } })),
        (NODE, json!({ "labels": { CONFIG: null } })),
        (NODE, json!({ "labels": { CONFIG: "comity-x" } })),
        (NODE, json!({ "labels": { "nvidia.com/mig.config.state": "pending" } })),
        (NODE, json!({ "labels": { "comity.dev/mig": null } })),
        (NODE, json!({ "annotations": { BEFORE: "all-disabled" } })),
        ("gpu-1", json!({ "annotations": { "comity.dev/mig-change": "{}" } })),
        (NODE, json!({ "annotations": { "other": "x" } })),
        ("gpu-1", json!({ "labels": { CONFIG: own } })),
        ("gpu-1", json!({ "labels": { "comity.dev/mig": "true" } })),
        ("gpu-1", json!({ "annotations": { BEFORE: "x" } })),
    ] {
        assert!(refused(node, metadata.clone()).await, "{node} {metadata}");
    }
    let maps = Api::<ConfigMap>::namespaced(cluster.agent.client(), NAMESPACE);
    let map = maps.get(CONFIG_MAP).await.unwrap();
    let text = map.data.clone().unwrap()["config.yaml"].clone();
    let replace = async |text: String| {
        let mut changed = map.clone();
        changed.data.as_mut().unwrap().insert("config.yaml".to_owned(), text);
        maps.replace(CONFIG_MAP, &PostParams { dry_run: true, ..PostParams::default() }, &changed).await
    };
    let end = "# end of comity-agent's configurations";
    let with = |line: &str| text.replace(end, &format!("{line}\n{end}"));
    assert!(replace(with("  comity-0123456789ab:\n    - devices: [0]\n      mig-enabled: false")).await.is_ok());
    for (changed, word) in [
        (text.replace("# ours", "# theirs"), "owner's configurations"),
        (text.replace("\"3g.40gb\": 2\n  all", "\"3g.40gb\": 1\n  all"), "owner's configurations"),
        (text.replace(end, "# no end"), "owner's configurations"),
        (with("  halves:\n    - devices: [0]\n      mig-enabled: false"), "only configurations comity-*"),
        (with("other: x"), "only configurations comity-*"),
    ] {
        assert_ne!(changed, text, "the text changes");
        let (_, message) = refusal(replace(changed).await);
        assert!(message.contains(word), "{message}");
    }
    let mut other = map.clone();
    other.data.as_mut().unwrap().insert("another".to_owned(), "x".to_owned());
    assert!(maps.replace(CONFIG_MAP, &PostParams::default(), &other).await.is_err());
    let everywhere = Api::<ConfigMap>::namespaced(cluster.agent.client(), "kube-system");
    assert_eq!(refusal(everywhere.get("extension-apiserver-authentication").await).0, 403);
}
