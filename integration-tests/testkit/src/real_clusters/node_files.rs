//! Settings of real nodes, and the files that their daemons read.

use std::fs;
use std::net::{IpAddr, Ipv4Addr};
use std::path::Path;

use super::cni::{Cni, PluginNode};
use super::gpu_box::{Board, GpuBox};
use super::{DNS_IMAGE, PAUSE_IMAGE, RealClustersError};
use crate::kubeconfig;
use crate::pki::{Authority, write_private};

const DNS: &str = include_str!("../../kubernetes/coredns.yaml");

/// Maximum nodes of a cluster; its pod network has room for four.
pub(super) const MAX_NODES: u32 = 3;

/// Names, addresses and size of one cluster. Node addresses are from the documentation blocks (RFC 5737).
#[derive(Debug, Clone, Copy)]
pub(super) struct NodeSettings {
    pub(super) name: &'static str,
    /// Address of the first node; the others have the following ones.
    pub(super) node_ip: &'static str,
    pub(super) gateway: &'static str,
    /// Pod network of the first node, a /24; the others have the following ones.
    pub(super) pod_network: &'static str,
    /// Pod network of all nodes, if there are several.
    pub(super) pod_networks: &'static str,
    pub(super) service_network: &'static str,
    /// The first address of the service network: the API server, for pods.
    pub(super) service_ip: Ipv4Addr,
    /// The address of the DNS Service.
    pub(super) dns_ip: &'static str,
    /// GPUs of each node.
    pub(super) gpus: u32,
    /// GPUs of each node that a DRA driver publishes.
    pub(super) dra_gpus: u32,
    /// Number of nodes.
    pub(super) nodes: u32,
    pub(super) cni: Cni,
    /// Whether the Node objects name their pods' networks.
    pub(super) names_pod_networks: bool,
    /// Whether DNS runs, on the first node.
    pub(super) dns: bool,
    /// Seconds of silence after which a node is not ready.
    pub(super) node_grace: u64,
}

pub(super) const ORIGIN: NodeSettings = NodeSettings {
    name: "origin",
    node_ip: "198.51.100.10",
    gateway: "198.51.100.1",
    pod_network: "10.210.0.0/24",
    pod_networks: "10.210.0.0/22",
    service_network: "10.211.0.0/24",
    service_ip: Ipv4Addr::new(10, 211, 0, 1),
    dns_ip: "10.211.0.10",
    gpus: 0,
    dra_gpus: 0,
    nodes: 1,
    cni: Cni::Bridge,
    names_pod_networks: false,
    dns: false,
    node_grace: 50,
};

pub(super) const DONOR: NodeSettings = NodeSettings {
    name: "donor",
    node_ip: "203.0.113.10",
    gateway: "203.0.113.1",
    pod_network: "10.220.0.0/24",
    pod_networks: "10.220.0.0/22",
    service_network: "10.221.0.0/24",
    service_ip: Ipv4Addr::new(10, 221, 0, 1),
    dns_ip: "10.221.0.10",
    ..ORIGIN
};

/// Its name is that of an interface of the router, which has at most 15 characters.
pub(super) const SECOND_DONOR: NodeSettings = NodeSettings {
    name: "second-donor",
    node_ip: "192.0.2.10",
    gateway: "192.0.2.1",
    pod_network: "10.230.0.0/24",
    pod_networks: "10.230.0.0/22",
    service_network: "10.231.0.0/24",
    service_ip: Ipv4Addr::new(10, 231, 0, 1),
    dns_ip: "10.231.0.10",
    ..ORIGIN
};

impl NodeSettings {
    /// The folder of the N-th node, from 1.
    pub(super) fn folder(&self, node: u32) -> String {
        if node < 2 { self.name.to_owned() } else { format!("{}-{node}", self.name) }
    }

    pub(super) fn node_name(&self, node: u32) -> String {
        if node < 2 { format!("{}-node", self.name) } else { format!("{}-node-{node}", self.name) }
    }

    pub(super) fn ip(&self, node: u32) -> Ipv4Addr {
        let first: Ipv4Addr = self.node_ip.parse().expect("the addresses above are addresses");
        Ipv4Addr::from_bits(first.to_bits() + node.saturating_sub(1))
    }

    pub(super) fn pods_of(&self, node: u32) -> String {
        let (first, length) = self.pod_network.split_once('/').expect("the networks above are networks");
        let first: Ipv4Addr = first.parse().expect("the networks above are networks");
        format!("{}/{length}", Ipv4Addr::from_bits(first.to_bits() + 256 * node.saturating_sub(1)))
    }

    /// A node for its network plugin; `root` has the folders of all nodes.
    pub(super) fn plugin_node(&self, root: &Path, node: u32) -> PluginNode {
        PluginNode {
            name: self.node_name(node),
            pods: self.pods_of(node),
            dir: root.join(self.folder(node)),
            kubeconfig: root.join(self.name).join("admin.kubeconfig"),
        }
    }

    /// The addresses of all its pods.
    pub(super) fn pods(&self) -> &'static str {
        if self.nodes < 2 { self.pod_network } else { self.pod_networks }
    }

    pub(super) fn server_url(&self) -> String {
        format!("https://{}", self.api_server())
    }

    pub(super) fn api_server(&self) -> String {
        format!("{}:6443", self.node_ip)
    }
}

/// Writes the certificates and configuration of one cluster into `root`, one folder per node.
pub(super) fn write(root: &Path, cluster: &NodeSettings, cni_folder: &str) -> Result<(), RealClustersError> {
    let pki = root.join(cluster.name).join("pki");
    let authority = Authority::open(&pki)?;
    certificates(&root.join(cluster.name), cluster, &authority)?;
    for number in 1..=cluster.nodes {
        let dir = root.join(cluster.folder(number));
        fs::create_dir_all(&dir).map_err(|source| RealClustersError::Io { path: dir.clone(), source })?;
        node_certificate(&dir, cluster, number, &authority)?;
        let mut files = vec![
            ("node.env", node_env(cluster, number)),
            ("containerd.toml", containerd(&cluster.cni.plugins(&dir, cni_folder))),
            ("cni.conflist", cluster.cni.conflist(&cluster.plugin_node(root, number))),
            ("kubelet.yaml", kubelet(cluster, number, &pki)),
            ("kube-proxy.yaml", kube_proxy(cluster, number, &pki)),
        ];
        if cluster.dns && number == 1 {
            files.push(("coredns.yaml", DNS.replace("@IMAGE@", DNS_IMAGE).replace("@ADDRESS@", cluster.dns_ip)));
        }
        if cluster.gpus > 0 {
            GpuBox::whole(Board::L40s, cluster.gpus).write(&dir, cluster.ip(number))?;
        }
        for (name, text) in files {
            let path = dir.join(name);
            fs::write(&path, text).map_err(|source| RealClustersError::Io { path, source })?;
        }
    }
    Ok(())
}

fn node_certificate(
    dir: &Path,
    cluster: &NodeSettings,
    number: u32,
    authority: &Authority,
) -> Result<(), RealClustersError> {
    let user = format!("system:node:{}", cluster.node_name(number));
    let identity = authority.client(&format!("node-{number}"), &user, Some("system:nodes"))?;
    let text = kubeconfig::render(cluster.name, &cluster.server_url(), authority.ca_pem(), &identity);
    write_private(&dir.join("node.kubeconfig"), &text)?;
    Ok(())
}

fn certificates(dir: &Path, node: &NodeSettings, authority: &Authority) -> Result<(), RealClustersError> {
    let addresses = [node.ip(1), Ipv4Addr::LOCALHOST, node.service_ip].map(IpAddr::V4);
    authority.api_server("apiserver", &addresses)?;
    authority.client("etcd", "etcd", None)?;
    authority.client("etcd-client", "kube-apiserver", None)?;
    authority.client("kubelet-client", "kube-apiserver-kubelet-client", Some("system:masters"))?;
    for (file, user) in [
        ("controller-manager", "system:kube-controller-manager"),
        ("scheduler", "system:kube-scheduler"),
        ("kube-proxy", "system:kube-proxy"),
    ] {
        let identity = authority.client(file, user, None)?;
        let text = kubeconfig::render(node.name, &node.server_url(), authority.ca_pem(), &identity);
        write_private(&authority.path(&format!("{file}.kubeconfig")), &text)?;
    }
    // A separate authority: clients with its certificates may impersonate any user.
    let front_proxy = Authority::open(&authority.path("front-proxy"))?;
    front_proxy.client("client", "front-proxy-client", None)?;
    let admin = authority.client("admin", "admin", Some("system:masters"))?;
    let text = kubeconfig::render(node.name, &node.server_url(), authority.ca_pem(), &admin);
    write_private(&dir.join("admin.kubeconfig"), &text)?;
    Ok(())
}

/// Environment file for the script `real-clusters`.
fn node_env(node: &NodeSettings, number: u32) -> String {
    let others = (1..=node.nodes).filter(|other| *other != number);
    let neighbours: Vec<String> = others.map(|other| format!("{}={}", node.pods_of(other), node.ip(other))).collect();
    let named = if node.names_pod_networks { node.pods_of(number) } else { String::new() };
    let values = [
        ("NODE_NAME", node.node_name(number)),
        ("NODE_IP", node.ip(number).to_string()),
        ("GATEWAY", node.gateway.to_owned()),
        ("POD_NETWORK", node.pods_of(number)),
        ("NAMED_POD_NETWORK", named),
        ("SERVICE_NETWORK", node.service_network.to_owned()),
        ("NODES_OF_CLUSTER", node.nodes.to_string()),
        ("NEIGHBOURS", neighbours.join(" ")),
        ("NODE_GRACE", format!("{}s", node.node_grace)),
        ("CNI", node.cni.name().to_owned()),
        ("GPUS", node.gpus.to_string()),
        ("DRA_GPUS", node.dra_gpus.to_string()),
    ];
    values.iter().map(|(name, value)| format!("{name}='{value}'\n")).collect()
}

/// `restrict_oom_score_adj`: without it no pod starts where root lacks `CAP_SYS_RESOURCE`. Version 2 of the format is
/// read by containerd 1.6 and by 2.x.
fn containerd(cni_folder: &str) -> String {
    format!(
        r#"version = 2
root = "/var/lib/containerd"
state = "/run/containerd"
[grpc]
  address = "/run/containerd/containerd.sock"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "{PAUSE_IMAGE}"
  restrict_oom_score_adj = true
  disable_apparmor = true
  tolerate_missing_hugetlb_controller = true
  disable_hugetlb_controller = true
  [plugins."io.containerd.grpc.v1.cri".containerd]
    snapshotter = "overlayfs"
    default_runtime_name = "runc"
    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
      runtime_type = "io.containerd.runc.v2"
      [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
        SystemdCgroup = false
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "{cni_folder}"
    conf_dir = "/run/cni/net.d"
"#
    )
}

/// The thresholds: a full disk of the machine must neither evict pods nor delete the images that were imported. The
/// intervals are short so that tests see changes soon.
fn kubelet(node: &NodeSettings, number: u32, pki: &Path) -> String {
    let dns_ip = if node.dns { node.dns_ip } else { "" };
    // Older versions of containerd pass no CDI devices to containers: the DRA driver does it for them.
    let runtime = if node.dra_gpus > 0 { "/run/dra-driver/cri.sock" } else { "/run/containerd/containerd.sock" };
    format!(
        "apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
authentication: {{anonymous: {{enabled: false}}, webhook: {{enabled: true}}, x509: {{clientCAFile: '{}'}}}}
authorization: {{mode: Webhook}}
containerRuntimeEndpoint: unix://{runtime}
cgroupDriver: cgroupfs
failCgroupV1: false
failSwapOn: false
maxOpenFiles: 20000
oomScoreAdj: 0
podCIDR: {}
clusterDomain: cluster.local
clusterDNS: [{dns_ip}]
resolvConf: /etc/resolv.conf
imageGCHighThresholdPercent: 100
imageGCLowThresholdPercent: 99
evictionHard: {{memory.available: 100Mi, nodefs.available: 1%, imagefs.available: 1%, nodefs.inodesFree: 1%}}
syncFrequency: 10s
fileCheckFrequency: 10s
nodeStatusUpdateFrequency: 5s
serializeImagePulls: false
shutdownGracePeriod: 0s
",
        pki.join("ca.crt").display(),
        node.pods_of(number)
    )
}

/// `conntrack` zeros: otherwise it writes sysctls of the whole machine.
fn kube_proxy(node: &NodeSettings, number: u32, pki: &Path) -> String {
    format!(
        "apiVersion: kubeproxy.config.k8s.io/v1alpha1
kind: KubeProxyConfiguration
mode: nftables
clientConnection: {{kubeconfig: '{}'}}
hostnameOverride: {}
clusterCIDR: {}
detectLocalMode: ClusterCIDR
conntrack: {{maxPerCore: 0, min: 0, tcpEstablishedTimeout: 0s, tcpCloseWaitTimeout: 0s}}
healthzBindAddress: 127.0.0.1:10256
metricsBindAddress: 127.0.0.1:10249
",
        pki.join("kube-proxy.kubeconfig").display(),
        node.node_name(number),
        node.pods()
    )
}
