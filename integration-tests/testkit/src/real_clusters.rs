//! Runs two clusters with real kubelets and containers, or three, joined by a router. Needs Linux and root.
//!
//! ```text
//! origin 198.51.100.10 ── [router 198.51.100.1 │ 203.0.113.1] ── 203.0.113.10 donor
//!                                              │   192.0.2.1] ── 192.0.2.10 second donor, on demand
//! ```
//!
//! Each cluster is one node, or up to three: a set of namespaces in which containerd, kubelet, kube-proxy and every
//! container run, and on the first its control plane. The host's network, mounts and sysctls stay as they are, so a
//! process on the host reaches the clusters only by entering a network: [`RealClusters::command_in`] starts an agent on
//! a node or a broker in the router, and [`RealCluster::kubectl`] runs kubectl on the cluster's node.
//!
//! Nodes with GPUs run NVIDIA's device plugin and GPU Feature Discovery over a stand-in for the library of NVIDIA's
//! driver ([`GpuBox`]). Containers get device nodes, behind which there is nothing.
//!
//! The CNI plugin is a plain bridge, which enforces no NetworkPolicies. The donor may have Calico instead, which does
//! enforce them ([`RealClustersConfig::donor_cni`]).

mod cluster;
mod cni;
mod faults;
mod gpu_box;
mod gpu_changes;
mod host_port;
mod images;
mod kueue;
mod liqo;
mod machine;
mod node_files;
mod nvidia_runtime;
mod supervisor;

use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use crate::binaries::Binaries;
use crate::kubectl::KubectlError;
use crate::pki::PkiError;
use crate::port::random;

use node_files::{DONOR, MAX_NODES, NodeSettings, ORIGIN, SECOND_DONOR};
use supervisor::Supervisor;

pub use cluster::RealCluster;
pub use cni::Cni;
pub use faults::Line;
pub use gpu_box::{Board, GpuBox, MigStrategy, SharedName};
pub use kueue::KueueError;
pub use liqo::{LIQO_NAMESPACE, LimitsEnforcement, LiqoCluster, LiqoConfig};
pub use nvidia_runtime::VisibleDevices;

const CLUSTERS_SCRIPT: &str = include_str!("../kubernetes/real-clusters");
/// The image of pod sandboxes.
const PAUSE_IMAGE: &str = "comity.local/pause:1";
/// The image of the clusters' DNS.
const DNS_IMAGE: &str = "comity.local/coredns:1";
/// The image of workloads: prints its GPUs and serves HTTP on port 8080. Runs as user 65532; every node has it.
pub const PROBE_IMAGE: &str = "comity.local/probe:1";

/// The parameters of the clusters.
#[derive(Debug, Clone)]
pub struct RealClustersConfig {
    /// Whole L40S of each of the origin's nodes; [`RealCluster::set_gpus`] changes them.
    pub origin_gpus: u32,
    /// Whole L40S of each of the donor's nodes.
    pub donor_gpus: u32,
    /// Whole L40S of a second donor, which has one node; 0: there is no second donor.
    pub second_donor_gpus: u32,
    /// GPUs of each of the donor's nodes that a stand-in for NVIDIA's DRA driver publishes. The cluster has no
    /// DeviceClass of them: that comes with the driver's chart.
    pub donor_dra_gpus: u32,
    /// Nodes of the origin, 1 to 3; the first has the control plane.
    pub origin_nodes: u32,
    /// Nodes of the donor, 1 to 3; the first has the control plane.
    pub donor_nodes: u32,
    /// What connects the donor's pods. [`Cni::Calico`] needs the programs of
    /// [`Binaries::with_calico`](crate::Binaries::with_calico).
    pub donor_cni: Cni,
    /// Whether Node objects name the networks of their pods (`spec.podCIDRs`).
    pub names_pod_networks: bool,
    /// Whether pods of both clusters have the same addresses, those of the origin.
    pub pods_overlap: bool,
    /// Whether all have CoreDNS.
    pub dns: bool,
    /// Liqo for all. Like `dns`, it needs the programs of [`Needs::Liqo`](crate::Needs::Liqo).
    pub liqo: Option<LiqoConfig>,
    /// Silence after which a node of the origin is not ready. Kubernetes' default is 50 s.
    pub origin_node_grace: Duration,
    /// Silence after which a node of a donor is not ready.
    pub donor_node_grace: Duration,
    /// How long the start may take; 6 to 15 s is usual, 20 to 30 s with Liqo.
    pub patience: Duration,
}

impl Default for RealClustersConfig {
    /// One node each, no GPU for the origin, four for the donor, no second donor, the bridge plugin, neither DNS nor
    /// Liqo, 20 s of silence at the origin and 50 s at donors, five minutes.
    fn default() -> Self {
        Self {
            origin_gpus: 0,
            donor_gpus: 4,
            second_donor_gpus: 0,
            donor_dra_gpus: 0,
            origin_nodes: 1,
            donor_nodes: 1,
            donor_cni: Cni::Bridge,
            names_pod_networks: false,
            pods_overlap: false,
            dns: false,
            liqo: None,
            origin_node_grace: Duration::from_secs(20),
            donor_node_grace: Duration::from_secs(50),
            patience: Duration::from_secs(300),
        }
    }
}

/// Why the clusters do not run.
#[derive(Debug, thiserror::Error)]
pub enum RealClustersError {
    /// This machine cannot run them.
    #[error("real clusters cannot run here: {}", .0.join("; "))]
    Missing(Vec<String>),
    /// Starting or stopping failed.
    #[error("{what}; the supervisor says:\n{log}")]
    Supervisor {
        /// The step that failed.
        what: String,
        /// The end of its log.
        log: String,
    },
    /// A file or program cannot be used.
    #[error("cannot use {}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// The cause.
        #[source]
        source: io::Error,
    },
    /// A command on a node failed.
    #[error("'{command}' in {cluster} ended with {status}: {stderr}")]
    Command {
        /// The cluster.
        cluster: &'static str,
        /// The command.
        command: String,
        /// Its exit status.
        status: std::process::ExitStatus,
        /// Its standard error.
        stderr: String,
    },
    /// A restarted API server does not answer.
    #[error("the API server does not answer two minutes after its restart")]
    Silent(#[source] KubectlError),
    /// The metrics-server was not applied.
    #[error("the objects of the metrics-server cannot be applied")]
    MetricsServer(#[source] KubectlError),
    /// Liqo's chart cannot be rendered.
    #[error("the chart of Liqo cannot be rendered for the cluster '{cluster}': {said}")]
    Chart {
        /// The cluster's id in Liqo.
        cluster: String,
        /// The renderer's error.
        said: String,
    },
    /// Certificates could not be created.
    #[error(transparent)]
    Pki(#[from] PkiError),
}

/// A location in the network of the clusters.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Where {
    /// The origin's node.
    Origin,
    /// The donor's node.
    Donor,
    /// The second donor's node.
    SecondDonor,
    /// The router between them, which reaches all nodes.
    Router,
}

/// The clusters. Dropping this stops them and every process in their networks.
#[derive(Debug)]
pub struct RealClusters {
    /// The cluster that borrows.
    pub origin: RealCluster,
    /// The cluster that lends.
    pub donor: RealCluster,
    /// Another cluster that lends, if the parameters ask for one.
    pub second_donor: Option<RealCluster>,
    router_pid: u32,
    supervisor: Supervisor,
}

impl RealClusters {
    /// Missing requirements of this machine, each with its remedy; empty if the clusters can run.
    #[must_use]
    pub fn missing() -> Vec<String> {
        machine::missing()
    }

    /// Removes leftovers of killed runs, starts the clusters and waits until their nodes are Ready with their GPUs. If
    /// `config` enables them, also waits until DNS answers, Liqo's Deployments are available and its webhook answers.
    ///
    /// # Errors
    ///
    /// [`RealClustersError::Missing`] when the machine cannot run them; otherwise with the end of the log that matters.
    pub async fn start(binaries: &Binaries, config: RealClustersConfig) -> Result<Self, RealClustersError> {
        let missing = [Self::missing(), config.donor_cni.missing()].concat();
        if !missing.is_empty() {
            return Err(RealClustersError::Missing(missing));
        }
        // Not below /tmp, where another user could create this folder first.
        let root = binaries.cache().join("real-clusters");
        private_folder(&root)?;
        supervisor::sweep(&root).await?;
        let id = format!("{:08x}", random() & 0xffff_ffff);
        let dir = root.join(&id);
        private_folder(&dir)?;
        let settings = |cluster: NodeSettings, gpus: u32, nodes: u32, grace: Duration| NodeSettings {
            gpus,
            nodes: nodes.clamp(1, MAX_NODES),
            names_pod_networks: config.names_pod_networks,
            dns: config.dns,
            node_grace: grace.as_secs().max(1),
            ..cluster
        };
        let origin = settings(ORIGIN, config.origin_gpus, config.origin_nodes, config.origin_node_grace);
        let pods = if config.pods_overlap { ORIGIN } else { DONOR };
        let donor = NodeSettings {
            dra_gpus: config.donor_dra_gpus,
            cni: config.donor_cni,
            pod_network: pods.pod_network,
            pod_networks: pods.pod_networks,
            ..DONOR
        };
        let donor = settings(donor, config.donor_gpus, config.donor_nodes, config.donor_node_grace);
        let second_donor = (config.second_donor_gpus > 0)
            .then(|| settings(SECOND_DONOR, config.second_donor_gpus, 1, config.donor_node_grace));
        let mut nodes = vec![(Where::Origin, origin), (Where::Donor, donor)];
        nodes.extend(second_donor.map(|settings| (Where::SecondDonor, settings)));
        if let Err(error) = prepare(&dir, &id, binaries, &config, &nodes) {
            drop(fs::remove_dir_all(&dir));
            return Err(error);
        }
        let began = Instant::now();
        let supervisor = Supervisor::start(&dir, config.patience).await?;
        tracing::info!(took = ?began.elapsed(), dir = %dir.display(), "the clusters are ready");
        let cluster = |settings: NodeSettings, place: Where| {
            let liqo_id = config.liqo.as_ref().and_then(|liqo| liqo.at(place)).map(|liqo| liqo.id.clone());
            RealCluster::open(settings, &dir, binaries, liqo_id)
        };
        Ok(Self {
            origin: cluster(origin, Where::Origin)?,
            donor: cluster(donor, Where::Donor)?,
            second_donor: second_donor.map(|settings| cluster(settings, Where::SecondDonor)).transpose()?,
            router_pid: read_pid(&dir.join("router/init.pid"))?,
            supervisor,
        })
    }

    /// A command in the network of a node or of the router: its files are the host's, its sockets are there. It is
    /// killed with the clusters at the latest.
    ///
    /// # Panics
    /// For the second donor, if there is none.
    #[must_use]
    pub fn command_in(&self, place: Where, program: &Path, args: &[&str]) -> tokio::process::Command {
        let pid = self.cluster(place).map_or(self.router_pid, RealCluster::init_pid);
        let mut command = in_network(pid);
        command.arg(program).args(args);
        command
    }

    /// The router's address on the side of a cluster: brokers in the router are reached there. The origin's side for
    /// the router itself.
    ///
    /// # Panics
    /// For the second donor, if there is none.
    #[must_use]
    pub fn router_address(&self, side: Where) -> &'static str {
        self.cluster(side).unwrap_or(&self.origin).gateway()
    }

    /// The cluster at a place; `None` for the router.
    fn cluster(&self, place: Where) -> Option<&RealCluster> {
        match place {
            Where::Origin => Some(&self.origin),
            Where::Donor => Some(&self.donor),
            Where::SecondDonor => Some(self.second_donor.as_ref().expect("the parameters ask for a second donor")),
            Where::Router => None,
        }
    }

    /// The folder with everything of the clusters; logs are in `run.log`, `origin/log`, `donor/log` and
    /// `second-donor/log`.
    #[must_use]
    pub fn dir(&self) -> &Path {
        &self.supervisor.dir
    }

    /// Stops the clusters and removes all their files.
    ///
    /// # Errors
    ///
    /// When a process, cgroup or file cannot be removed.
    pub async fn stop(mut self) -> Result<(), RealClustersError> {
        // Waiting for it blocks; this thread may have tasks to run meanwhile.
        let task = tokio::task::spawn_blocking(move || self.supervisor.end());
        task.await.unwrap_or_else(|error| {
            Err(RealClustersError::Supervisor { what: "the teardown panicked".into(), log: error.to_string() })
        })
    }
}

/// The start of a command line that runs a program in the network of a process.
fn in_network(pid: u32) -> tokio::process::Command {
    let mut command = tokio::process::Command::new("nsenter");
    command.arg("--target").arg(pid.to_string()).args(["--net", "--"]);
    command
}

/// Writes all files that the script needs.
fn prepare(
    dir: &Path,
    id: &str,
    binaries: &Binaries,
    config: &RealClustersConfig,
    nodes: &[(Where, NodeSettings)],
) -> Result<(), RealClustersError> {
    let write =
        |path: PathBuf, text: &str| fs::write(&path, text).map_err(|source| RealClustersError::Io { path, source });
    let cni = machine::cni_folder().unwrap_or("/opt/cni/bin");
    write(dir.join("real-clusters"), CLUSTERS_SCRIPT)?;
    let bin = binaries.folder().display();
    let chart = config.liqo.as_ref().map(|liqo| liqo.version.file("chart")).unwrap_or_default();
    let first = nodes.iter().map(|(_, cluster)| cluster.folder(1));
    let further = nodes.iter().flat_map(|(_, cluster)| (2..=cluster.nodes).map(|number| cluster.folder(number)));
    let all = first.chain(further).collect::<Vec<_>>().join(" ");
    let settings = format!("BIN='{bin}'\nLIQO_CHART='{chart}'\nCGROUP=comity-{id}\nNODES='{all}'\n");
    write(dir.join("settings"), &settings)?;
    for (place, node) in nodes {
        node_files::write(dir, node, cni)?;
        if node.cni == Cni::Calico {
            let nodes: Vec<PathBuf> = (1..=node.nodes).map(|number| dir.join(node.folder(number))).collect();
            cni::add_calico(&dir.join(node.name), &nodes, cni, binaries)?;
        }
        let dir = dir.join(node.name);
        if let Some(liqo) = &config.liqo
            && let Some(cluster) = liqo.at(*place)
        {
            liqo::render(&dir, binaries, liqo, cluster)?;
        }
    }
    images::provide(&dir.join("images"), &binaries.cache().join("images"), binaries, config)
}

fn private_folder(path: &Path) -> Result<(), RealClustersError> {
    fs::create_dir_all(path)
        .and_then(|()| fs::set_permissions(path, fs::Permissions::from_mode(0o700)))
        .map_err(|source| RealClustersError::Io { path: path.to_owned(), source })
}

fn read_pid(path: &Path) -> Result<u32, RealClustersError> {
    fs::read_to_string(path)
        .and_then(|text| text.trim().parse().map_err(io::Error::other))
        .map_err(|source| RealClustersError::Io { path: path.to_owned(), source })
}
