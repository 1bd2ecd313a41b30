//! What one real node is, and the files that its daemons read.

use std::fs;
use std::net::{IpAddr, Ipv4Addr};
use std::path::Path;

use super::images::DNS_IMAGE;
use super::{PAUSE_IMAGE, RealClustersError};
use crate::kubeconfig;
use crate::pki::{Authority, write_private};
use crate::simulated_node::H100;

const DNS: &str = include_str!("../../kubernetes/coredns.yaml");

/// One cluster's place in the network. The addresses are from the blocks for documentation (RFC 5737).
#[derive(Debug, Clone, Copy)]
pub(super) struct NodeSettings {
    pub(super) name: &'static str,
    pub(super) node_ip: &'static str,
    pub(super) gateway: &'static str,
    pub(super) pod_network: &'static str,
    pub(super) service_network: &'static str,
    /// The first address of the service network: the API server, for pods.
    pub(super) service_ip: Ipv4Addr,
    /// The address of the DNS Service, where the cluster has one.
    pub(super) dns_ip: &'static str,
    pub(super) gpus: u32,
}

pub(super) const ORIGIN: NodeSettings = NodeSettings {
    name: "origin",
    node_ip: "198.51.100.10",
    gateway: "198.51.100.1",
    pod_network: "10.210.0.0/24",
    service_network: "10.211.0.0/24",
    service_ip: Ipv4Addr::new(10, 211, 0, 1),
    dns_ip: "10.211.0.10",
    gpus: 0,
};

pub(super) const DONOR: NodeSettings = NodeSettings {
    name: "donor",
    node_ip: "203.0.113.10",
    gateway: "203.0.113.1",
    pod_network: "10.220.0.0/24",
    service_network: "10.221.0.0/24",
    service_ip: Ipv4Addr::new(10, 221, 0, 1),
    dns_ip: "10.221.0.10",
    gpus: 0,
};

impl NodeSettings {
    pub(super) fn node_name(&self) -> String {
        format!("{}-node", self.name)
    }

    pub(super) fn server_url(&self) -> String {
        format!("https://{}", self.api_server())
    }

    pub(super) fn api_server(&self) -> String {
        format!("{}:6443", self.node_ip)
    }
}

/// Writes the certificates and configuration of one cluster into `dir`.
pub(super) fn write(dir: &Path, node: &NodeSettings, cni_folder: &str, dns: bool) -> Result<(), RealClustersError> {
    let pki = dir.join("pki");
    let authority = Authority::open(&pki)?;
    certificates(dir, node, &authority)?;
    let mut files = vec![
        ("node.env", node_env(node)),
        ("containerd.toml", containerd(cni_folder)),
        ("cni.conflist", cni(node)),
        ("kubelet.yaml", kubelet(node, &pki, dns)),
        ("kube-proxy.yaml", kube_proxy(node, &pki)),
    ];
    if dns {
        files.push(("coredns.yaml", DNS.replace("@IMAGE@", DNS_IMAGE).replace("@ADDRESS@", node.dns_ip)));
    }
    for (name, text) in files {
        let path = dir.join(name);
        fs::write(&path, text).map_err(|source| RealClustersError::Io { path, source })?;
    }
    Ok(())
}

fn certificates(dir: &Path, node: &NodeSettings, authority: &Authority) -> Result<(), RealClustersError> {
    let node_ip: Ipv4Addr = node.node_ip.parse().expect("the addresses above are addresses");
    let addresses = [node_ip, Ipv4Addr::LOCALHOST, node.service_ip].map(IpAddr::V4);
    authority.api_server("apiserver", &addresses)?;
    authority.client("etcd", "etcd", None)?;
    authority.client("etcd-client", "kube-apiserver", None)?;
    authority.client("kubelet-client", "kube-apiserver-kubelet-client", Some("system:masters"))?;
    let node_user = format!("system:node:{}", node.node_name());
    for (file, user, group) in [
        ("node", node_user.as_str(), Some("system:nodes")),
        ("controller-manager", "system:kube-controller-manager", None),
        ("scheduler", "system:kube-scheduler", None),
        ("kube-proxy", "system:kube-proxy", None),
    ] {
        let identity = authority.client(file, user, group)?;
        let text = kubeconfig::render(node.name, &node.server_url(), authority.ca_pem(), &identity);
        write_private(&authority.path(&format!("{file}.kubeconfig")), &text)?;
    }
    // Another authority: whoever it signs is believed about who somebody else is.
    let front_proxy = Authority::open(&authority.path("front-proxy"))?;
    front_proxy.client("client", "front-proxy-client", None)?;
    let admin = authority.client("admin", "admin", Some("system:masters"))?;
    let text = kubeconfig::render(node.name, &node.server_url(), authority.ca_pem(), &admin);
    write_private(&dir.join("admin.kubeconfig"), &text)?;
    Ok(())
}

/// Read by the script `real-clusters`.
fn node_env(node: &NodeSettings) -> String {
    let labels: Vec<String> = match node.gpus {
        0 => Vec::new(),
        gpus => H100.labels(gpus).into_iter().map(|(key, value)| format!("{key}={value}")).collect(),
    };
    format!(
        "NODE_IP={}\nGATEWAY={}\nPOD_NETWORK={}\nSERVICE_NETWORK={}\nGPUS={}\nNODE_LABELS={}\n",
        node.node_ip,
        node.gateway,
        node.pod_network,
        node.service_network,
        node.gpus,
        labels.join(",")
    )
}

/// `restrict_oom_score_adj`: without it no pod starts where root lacks `CAP_SYS_RESOURCE`. Version 2 of the format is read by
/// containerd 1.6 and by 2.x.
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

fn cni(node: &NodeSettings) -> String {
    format!(
        r#"{{"cniVersion": "0.4.0", "name": "comity", "plugins": [
 {{"type": "bridge", "bridge": "cni0", "isDefaultGateway": true, "hairpinMode": true, "ipMasq": false,
  "ipam": {{"type": "host-local", "ranges": [[{{"subnet": "{}"}}]], "dataDir": "/run/cni/ipam"}}}},
 {{"type": "portmap", "capabilities": {{"portMappings": true}}}}]}}
"#,
        node.pod_network
    )
}

/// The thresholds: a full disk of the machine must neither evict pods nor delete the images that were imported. The
/// intervals are short so that tests see changes soon.
fn kubelet(node: &NodeSettings, pki: &Path, dns: bool) -> String {
    let dns_ip = if dns { node.dns_ip } else { "" };
    format!(
        "apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
authentication: {{anonymous: {{enabled: false}}, webhook: {{enabled: true}}, x509: {{clientCAFile: '{}'}}}}
authorization: {{mode: Webhook}}
containerRuntimeEndpoint: unix:///run/containerd/containerd.sock
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
        node.pod_network
    )
}

/// `conntrack` zeros: otherwise it writes sysctls of the whole machine.
fn kube_proxy(node: &NodeSettings, pki: &Path) -> String {
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
        node.node_name(),
        node.pod_network
    )
}
