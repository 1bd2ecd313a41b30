//! The network between two Liqos: two API servers with Liqo's real controllers and networking, and both agents' halves
//! with the rights of `deploy/agent/`. No gateway runs here: nodes are simulated, and Liqo's gateways need geneve in
//! the kernel.

use std::time::{Duration, Instant};

use comity_agent_liqo::donor::{DonorSettings, LiqoDonor};
use comity_agent_liqo::network::{
    GatewaySettings, LiqoNetwork, NetworkSettings, NetworkState, NetworkStatus, ObservedNetwork,
};
use comity_agent_liqo::origin::{LiqoOrigin, OriginSettings};
use comity_agent_liqo::{
    LiqoPeer, configuration, foreign_cluster, gateway_client, gateway_server, ipam_network, public_key,
    wg_gateway_client, wg_gateway_server,
};
use comity_agent_model::forward_target::ForwardTarget;
use comity_testkit::{
    Binaries, Component, ControlPlane, ControlPlaneConfig, LiqoControllers, LiqoControllersConfig, LiqoVersion, Needs,
    SimulatedNode,
};
use comity_types::Side;
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::{Namespace, Secret, Service};
use kube::api::{DynamicObject, ListParams, Patch, PatchParams};
use kube::config::{AuthInfo, KubeConfigOptions, Kubeconfig};
use kube::core::ApiResource;
use kube::{Api, Client, Config};
use serde_json::{Value, json};

const MANIFESTS: [&str; 6] = [
    include_str!("../../../deploy/agent/rbac.yaml"),
    include_str!("../../../deploy/agent/tenant-role.yaml"),
    include_str!("../../../deploy/agent/admission.yaml"),
    include_str!("../../../deploy/agent/liqo-donor.yaml"),
    include_str!("../../../deploy/agent/liqo-origin.yaml"),
    include_str!("../../../deploy/agent/liqo-network.yaml"),
];
/// Both clusters' pods have the same addresses.
const POD_CIDR: &str = "10.200.0.0/16";
/// An address as a provider of load balancers assigns it.
const ADDRESS: &str = "192.0.2.10";
/// Longest wait in these tests.
const PATIENCE: Duration = Duration::from_secs(90);

/// One cluster and its agent's half.
struct Half {
    plane: ControlPlane,
    config: Config,
    admin: Client,
    agent: Client,
    network: LiqoNetwork,
    side: Side,
    /// The other cluster, as Liqo knows it.
    peer: LiqoPeer,
    /// The state that the other side sent.
    received: Option<NetworkState>,
    /// Stopped before the API server.
    controllers: Option<LiqoControllers>,
    _dir: tempfile::TempDir,
}

impl Half {
    async fn start(binaries: &Binaries, version: LiqoVersion, side: Side) -> Self {
        let (name, other) = match side {
            Side::Donor => ("donor", "origin"),
            Side::Origin => ("origin", "donor"),
        };
        let dir = tempfile::tempdir().unwrap();
        let mut config = ControlPlaneConfig::new(name, dir.path().join("cluster"));
        config.nodes = vec![SimulatedNode::without_gpus("node-1")];
        let plane = ControlPlane::start(binaries, config).await.unwrap();
        let liqo = LiqoControllersConfig { version, cluster_id: name.into(), pod_cidr: POD_CIDR.into() };
        let controllers = LiqoControllers::start(binaries, &plane, &liqo).await.unwrap();
        for manifest in MANIFESTS {
            plane.kubectl_with_input(&["apply", "-f", "-"], manifest).await.unwrap();
        }
        let token = ["create", "token", "comity-agent", "-n", "comity-system", "--duration=1h"];
        let token = plane.kubectl(&token).await.unwrap();
        let kubeconfig = Kubeconfig::from_yaml(plane.admin_kubeconfig()).unwrap();
        let config = Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await.unwrap();
        let mut as_agent = config.clone();
        as_agent.auth_info = AuthInfo { token: Some(token.trim().to_owned().into()), ..AuthInfo::default() };
        let agent = Client::try_from(as_agent).unwrap();
        let settings = NetworkSettings {
            liqo_namespace: "liqo".into(),
            liqo_version: format!("v{}", version.number()),
            gateway: GatewaySettings::default(),
            patience: Duration::from_secs(60),
        };
        Self {
            admin: plane.client(),
            network: LiqoNetwork::new(agent.clone(), settings),
            plane,
            config,
            agent,
            side,
            peer: LiqoPeer { peering: "peer-1".into(), cluster: format!("{other}-cluster"), liqo_id: other.into() },
            received: None,
            controllers: Some(controllers),
            _dir: dir,
        }
    }

    async fn apply(&self) -> ObservedNetwork {
        self.network.apply(|| Some((self.peer.clone(), self.side, self.received.clone()))).await.unwrap()
    }

    fn of<K>(&self) -> Api<K>
    where
        K: kube::Resource<Scope = kube::core::NamespaceResourceScope>,
        K::DynamicType: Default,
    {
        Api::namespaced(self.admin.clone(), &self.peer.tenant_namespace())
    }

    fn objects(&self, kind: &ApiResource) -> Api<DynamicObject> {
        Api::namespaced_with(self.admin.clone(), &self.peer.tenant_namespace(), kind)
    }

    async fn spec(&self, kind: &ApiResource, pointer: &str) -> Value {
        let found = self.objects(kind).get(&self.peer.liqo_id).await.unwrap();
        found.data.pointer(pointer).cloned().unwrap_or_default()
    }

    /// The gateway's public key, in Liqo's Secret.
    async fn gateway_key(&self) -> Value {
        let secret = self.of::<Secret>().get(&format!("gw-{}", self.peer.liqo_id)).await.unwrap();
        serde_json::to_value(&secret.data.unwrap()["publicKey"]).unwrap()
    }

    /// Objects of the network that are left in the tenant namespace.
    async fn left(&self) -> Vec<String> {
        let mut left = Vec::new();
        let kinds = [
            configuration(),
            gateway_server(),
            gateway_client(),
            public_key(),
            wg_gateway_server(),
            wg_gateway_client(),
            ipam_network(),
        ];
        for kind in kinds {
            let found = self.objects(&kind).list_metadata(&ListParams::default()).await.unwrap();
            left.extend(found.items.into_iter().map(|object| format!("{} {:?}", kind.kind, object.metadata.name)));
        }
        for object in self.of::<Deployment>().list_metadata(&ListParams::default()).await.unwrap() {
            left.push(format!("Deployment {:?}", object.metadata.name));
        }
        for object in self.of::<Service>().list_metadata(&ListParams::default()).await.unwrap() {
            left.push(format!("Service {:?}", object.metadata.name));
        }
        left
    }

    async fn stop(self) {
        drop(self.controllers);
        self.plane.stop().await.unwrap();
    }
}

/// Both sides apply and send each other their state in the form of the envelopes.
async fn relay(origin: &mut Half, donor: &mut Half) -> (NetworkStatus, NetworkStatus) {
    let (at_origin, at_donor) = (origin.apply().await, donor.apply().await);
    let sent = |side: Side, seen: &ObservedNetwork| {
        seen.local
            .as_ref()
            .map(|local| NetworkState::read(side, &local.encode(), &["0.0.0.0/0".parse().unwrap()]).unwrap())
    };
    donor.received = sent(Side::Origin, &at_origin).or(donor.received.take());
    origin.received = sent(Side::Donor, &at_donor).or(origin.received.take());
    (at_origin.status, at_donor.status)
}

/// Relays until the condition holds.
async fn until(
    what: &str,
    origin: &mut Half,
    donor: &mut Half,
    holds: impl Fn(&NetworkStatus, &NetworkStatus) -> bool,
) {
    let began = Instant::now();
    loop {
        let (at_origin, at_donor) = relay(origin, donor).await;
        if holds(&at_origin, &at_donor) {
            return;
        }
        assert!(began.elapsed() < PATIENCE, "{what}: still {at_origin:?} and {at_donor:?}");
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
}

fn is_ready(status: &NetworkStatus) -> bool {
    *status == NetworkStatus::Ready { connected: false }
}

fn waits_for(status: &NetworkStatus, what: &str) -> bool {
    matches!(status, NetworkStatus::Pending(reason) if reason.contains(what))
}

pub(crate) async fn two_liqos_are_connected_and_parted() {
    let version = LiqoVersion::from_environment().unwrap();
    let binaries = Binaries::with_liqo(Needs::Liqo, version).await.unwrap();
    let (mut donor, mut origin) =
        tokio::join!(Half::start(&binaries, version, Side::Donor), Half::start(&binaries, version, Side::Origin),);
    for half in [&donor, &origin] {
        half.network.check_installed().await.unwrap();
        assert!(waits_for(&half.apply().await.status, "is not made yet"));
    }
    exchange_keys(&origin, &donor).await;
    they_connect(&mut origin, &mut donor).await;
    changes_by_others_are_reverted(&mut origin, &mut donor).await;
    objects_of_others_are_left_alone(&origin).await;
    each_side_leaves_by_itself(&origin, &donor).await;
    donor.stop().await;
    origin.stop().await;
}

fn donor_half(donor: &Half) -> LiqoDonor {
    let port = donor.config.cluster_url.port_u16().unwrap();
    let advertised = donor.plane.server_url().trim_start_matches("https://").to_owned();
    let ca_pem = std::fs::read_to_string(donor.plane.ca_path()).unwrap();
    let target = ForwardTarget::new("127.0.0.1", port);
    LiqoDonor::new(donor.agent.clone(), DonorSettings::new("donor", target, &advertised, &ca_pem))
}

fn origin_half(origin: &Half) -> LiqoOrigin {
    LiqoOrigin::new(origin.agent.clone(), OriginSettings { liqo_network: true, ..OriginSettings::default() })
}

/// Exchanges the keys of the two Liqos up to both tenant namespaces.
async fn exchange_keys(origin: &Half, donor: &Half) {
    let challenge = donor_half(donor).challenge(&donor.peer).await.unwrap();
    origin_half(origin).answer(&origin.peer, &challenge).await.unwrap();
}

async fn they_connect(origin: &mut Half, donor: &mut Half) {
    let (at_origin, at_donor) = relay(origin, donor).await;
    assert!(waits_for(&at_origin, "donor-cluster has not sent") && waits_for(&at_donor, "has not sent"));
    until("both have remapped", origin, donor, |at_origin, at_donor| {
        waits_for(at_origin, "has not sent the endpoint")
            && waits_for(at_donor, "of type LoadBalancer has no address yet")
    })
    .await;
    for half in [&*origin, &*donor] {
        assert_eq!(half.spec(&configuration(), "/spec/remote/cidr/pod/0").await, POD_CIDR);
        assert_eq!(half.spec(&configuration(), "/spec/local/cidr/pod/0").await, POD_CIDR);
        let remapped = half.spec(&configuration(), "/status/remote/cidr/pod/0").await;
        assert!(remapped.is_string() && remapped != POD_CIDR, "both have the same addresses: {remapped}");
    }
    // Assigns the address as a provider of load balancers would.
    let services = donor.of::<Service>();
    let given = json!({ "status": { "loadBalancer": { "ingress": [{ "ip": ADDRESS }] } } });
    services.patch_status("gw-origin", &PatchParams::default(), &Patch::Merge(&given)).await.unwrap();
    until("both gateways are set up", origin, donor, |at_origin, at_donor| is_ready(at_origin) && is_ready(at_donor))
        .await;

    assert_eq!(origin.spec(&gateway_client(), "/spec/endpoint").await["addresses"], json!([ADDRESS]));
    assert_eq!(origin.spec(&gateway_client(), "/spec/endpoint/port").await, 51_840);
    for half in [&*origin, &*donor] {
        let name = format!("gw-{}", half.peer.liqo_id);
        assert!(half.of::<Deployment>().get(&name).await.is_ok(), "Liqo has made the gateway {name}");
    }
    assert_eq!(origin.spec(&public_key(), "/spec/publicKey").await, donor.gateway_key().await);
    assert_eq!(donor.spec(&public_key(), "/spec/publicKey").await, origin.gateway_key().await);
}

async fn changes_by_others_are_reverted(origin: &mut Half, donor: &mut Half) {
    let merge = |value: Value| Patch::Merge(value);
    let strange = json!({ "spec": { "mtu": 9_000, "endpoint": { "addresses": ["203.0.113.66"] } } });
    let clients = origin.objects(&gateway_client());
    clients.patch("donor", &PatchParams::default(), &merge(strange)).await.unwrap();
    let key = json!({ "spec": { "publicKey": "AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=" } });
    donor.objects(&public_key()).patch("origin", &PatchParams::default(), &merge(key)).await.unwrap();
    origin.objects(&public_key()).delete("donor", &Default::default()).await.unwrap();
    relay(origin, donor).await;
    assert_eq!(origin.spec(&gateway_client(), "/spec/mtu").await, 1_340);
    assert_eq!(origin.spec(&gateway_client(), "/spec/endpoint").await["addresses"], json!([ADDRESS]));
    assert_eq!(origin.spec(&public_key(), "/spec/publicKey").await, donor.gateway_key().await);
    assert_eq!(donor.spec(&public_key(), "/spec/publicKey").await, origin.gateway_key().await);

    // A deleted gateway is made again, with another key, which the other side learns.
    let before = origin.gateway_key().await;
    origin.objects(&gateway_client()).delete("donor", &Default::default()).await.unwrap();
    let began = Instant::now();
    loop {
        let (at_origin, at_donor) = relay(origin, donor).await;
        let secret = origin.of::<Secret>().get_opt("gw-donor").await.unwrap();
        if secret.is_some() && is_ready(&at_origin) && is_ready(&at_donor) {
            let now = origin.gateway_key().await;
            if now != before && donor.spec(&public_key(), "/spec/publicKey").await == now {
                break;
            }
        }
        assert!(began.elapsed() < PATIENCE, "no new key: {at_origin:?} and {at_donor:?}");
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    // Assigned ranges stay while nothing is withdrawn.
    let given = origin.spec(&configuration(), "/status/remote/cidr/pod/0").await;
    let other = json!({ "metadata": { "labels": { "touched": "yes" } }, "spec": { "remote": { "cidr": { "external": ["10.99.0.0/16"] } } } });
    origin.objects(&configuration()).patch("donor", &PatchParams::default(), &merge(other)).await.unwrap();
    until("the configuration is as it was", origin, donor, |at_origin, _| is_ready(at_origin)).await;
    assert_ne!(origin.spec(&configuration(), "/spec/remote/cidr/external/0").await, "10.99.0.0/16");
    assert_eq!(origin.spec(&configuration(), "/status/remote/cidr/pod/0").await, given);
}

async fn objects_of_others_are_left_alone(origin: &Half) {
    let label =
        |value: Value| Patch::Merge(json!({ "metadata": { "labels": { "app.kubernetes.io/managed-by": value } } }));
    let configurations = origin.objects(&configuration());
    configurations.patch("donor", &PatchParams::default(), &label(json!("somebody"))).await.unwrap();
    let NetworkStatus::Refused(reason) = origin.apply().await.status else { panic!("it was taken over") };
    assert!(reason.starts_with("liqo-network-by-hand") && reason.contains("liqoctl network reset"), "{reason}");
    configurations.patch("donor", &PatchParams::default(), &label(json!("comity-agent"))).await.unwrap();
    assert!(is_ready(&origin.apply().await.status));
}

async fn each_side_leaves_by_itself(origin: &Half, donor: &Half) {
    // The donor is dead.
    donor.plane.kill(Component::ApiServer);
    origin.network.remove(&origin.peer).await.unwrap();
    origin.network.remove(&origin.peer).await.unwrap();
    nothing_is_left(origin).await;
    origin_half(origin).remove_identity(&origin.peer).await.unwrap();
    // The donor is back, and its controllers run again.
    donor.plane.restart(Component::ApiServer).unwrap();
    donor.plane.ready().await.unwrap();
    let began = Instant::now();
    while let Err(error) = donor.network.remove(&donor.peer).await {
        assert!(began.elapsed() < PATIENCE, "{error}");
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
    nothing_is_left(donor).await;
    donor_half(donor).remove_tenant(&donor.peer).await.unwrap();
    for half in [origin, donor] {
        let namespaces = Api::<Namespace>::all(half.admin.clone());
        assert!(namespaces.get_opt(&half.peer.tenant_namespace()).await.unwrap().is_none());
        let clusters = Api::<DynamicObject>::all_with(half.admin.clone(), &foreign_cluster());
        assert!(clusters.get_opt(&half.peer.liqo_id).await.unwrap().is_none());
    }
}

/// Kubernetes' garbage collection removes what Liqo made from the objects, a moment later.
async fn nothing_is_left(half: &Half) {
    let began = Instant::now();
    loop {
        let left = half.left().await;
        if left.is_empty() {
            return;
        }
        assert!(began.elapsed() < PATIENCE, "{} has still {left:?}", half.plane.name());
        tokio::time::sleep(Duration::from_millis(250)).await;
    }
}
