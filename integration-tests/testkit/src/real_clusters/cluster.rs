//! One of the running clusters.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};

use super::host_port::HostPort;
use super::node_files::NodeSettings;
use super::{RealClustersError, in_network, read_pid};
use crate::binaries::Binaries;
use crate::image::{self, Image};
use crate::kubectl::{self, KubectlError};
use crate::pki::write_private;

const METRICS_SERVER: &str = include_str!("../../kubernetes/metrics-server.yaml");
const METRICS_IMAGE: &str = "comity.local/metrics-server:1";
/// Timeout of an API server's restart; 2 s is usual.
const ANSWERS_WITHIN: Duration = Duration::from_secs(120);

/// One of the clusters.
#[derive(Debug)]
pub struct RealCluster {
    pub(super) settings: NodeSettings,
    dir: PathBuf,
    kubectl: PathBuf,
    /// The first process of each node.
    init_pids: Vec<u32>,
    liqo_id: Option<String>,
    host_port: HostPort,
}

impl RealCluster {
    /// Opens a running cluster, whose files are in the folder of its name in `dir`.
    pub(super) fn open(
        settings: NodeSettings,
        dir: &Path,
        binaries: &Binaries,
        liqo_id: Option<String>,
    ) -> Result<Self, RealClustersError> {
        let pid = |node| read_pid(&dir.join(settings.folder(node)).join("init.pid"));
        let init_pids = (1..=settings.nodes).map(pid).collect::<Result<Vec<_>, _>>()?;
        let init_pid = init_pids[0];
        let dir = dir.join(settings.name);
        let probe = binaries.program("probe");
        let host_port = HostPort::open(&probe, init_pid, &settings.api_server())
            .map_err(|source| RealClustersError::Io { path: probe, source })?;
        let cluster = Self { settings, dir, kubectl: binaries.program("kubectl"), init_pids, liqo_id, host_port };
        let (inside, outside) = (cluster.admin_kubeconfig_path(), cluster.host_kubeconfig_path());
        let io = |path: &Path| {
            let path = path.to_owned();
            move |source| RealClustersError::Io { path, source }
        };
        let text = fs::read_to_string(&inside).map_err(io(&inside))?;
        let text = text.replace(&cluster.server_url(), &format!("https://127.0.0.1:{}", cluster.host_port.port));
        write_private(&outside, &text)?;
        Ok(cluster)
    }

    /// `origin`, `donor` or `second-donor`.
    #[must_use]
    pub fn name(&self) -> &'static str {
        self.settings.name
    }

    /// Number of nodes.
    #[must_use]
    pub fn nodes(&self) -> u32 {
        self.settings.nodes
    }

    /// The name of its first node.
    #[must_use]
    pub fn node_name(&self) -> String {
        self.settings.node_name(1)
    }

    /// The name of its N-th node, from 1.
    #[must_use]
    pub fn nth_node_name(&self, node: u32) -> String {
        self.settings.node_name(node)
    }

    /// The addresses of the pods of its N-th node, from 1.
    #[must_use]
    pub fn nth_pod_cidr(&self, node: u32) -> String {
        self.settings.pods_of(node)
    }

    /// The address of its first node, which the router and the other cluster reach.
    #[must_use]
    pub fn node_ip(&self) -> &'static str {
        self.settings.node_ip
    }

    /// URL of the API server, valid in every network of the two clusters.
    #[must_use]
    pub fn server_url(&self) -> String {
        self.settings.server_url()
    }

    /// The API server's address and port.
    #[must_use]
    pub fn api_server(&self) -> String {
        self.settings.api_server()
    }

    /// The addresses of its pods. Only its nodes route them: a test that needs a route from the other cluster adds one.
    #[must_use]
    pub fn pod_cidr(&self) -> &'static str {
        self.settings.pods()
    }

    /// The addresses of its Services.
    #[must_use]
    pub fn service_cidr(&self) -> &'static str {
        self.settings.service_network
    }

    /// Its cluster id in Liqo, if it has Liqo.
    #[must_use]
    pub fn liqo_id(&self) -> Option<&str> {
        self.liqo_id.as_deref()
    }

    /// The router's address on its side.
    pub(super) fn gateway(&self) -> &'static str {
        self.settings.gateway
    }

    /// A kubeconfig with all rights, valid in every network of the two clusters.
    #[must_use]
    pub fn admin_kubeconfig_path(&self) -> PathBuf {
        self.dir.join("admin.kubeconfig")
    }

    /// A kubeconfig with all rights for processes of the host: a port on loopback leads to the API server as long as
    /// this value lives.
    #[must_use]
    pub fn host_kubeconfig_path(&self) -> PathBuf {
        self.dir.join("host.kubeconfig")
    }

    /// The certificate of the cluster's authority.
    #[must_use]
    pub fn ca_path(&self) -> PathBuf {
        self.dir.join("pki/ca.crt")
    }

    /// The first process of its first node, as the host numbers it.
    #[must_use]
    pub fn init_pid(&self) -> u32 {
        self.init_pids[0]
    }

    /// The first process of its N-th node, from 1.
    ///
    /// # Panics
    /// When it has fewer.
    fn nth_init_pid(&self, node: u32) -> u32 {
        let index = usize::try_from(node).ok().and_then(|node| node.checked_sub(1));
        let pid = index.and_then(|index| self.init_pids.get(index));
        *pid.unwrap_or_else(|| panic!("{} has {} nodes, and no node {node}", self.name(), self.init_pids.len()))
    }

    /// A command in the network of its N-th node, from 1, as
    /// [`RealClusters::command_in`](super::RealClusters::command_in) makes one for the first.
    ///
    /// # Panics
    /// When it has fewer.
    #[must_use]
    pub fn command_in_nth_node(&self, node: u32, program: &Path, args: &[&str]) -> tokio::process::Command {
        let mut command = in_network(self.nth_init_pid(node));
        command.arg(program).args(args);
        command
    }

    /// Runs kubectl on the node as administrator; returns its standard output.
    ///
    /// # Errors
    ///
    /// With kubectl's exit status and standard error, or after two minutes.
    pub async fn kubectl(&self, args: &[&str]) -> Result<String, KubectlError> {
        self.kubectl_with_input(args, "").await
    }

    /// Runs kubectl with `input` on its standard input, as for `kubectl apply -f -`.
    ///
    /// # Errors
    ///
    /// As [`RealCluster::kubectl`].
    pub async fn kubectl_with_input(&self, args: &[&str], input: &str) -> Result<String, KubectlError> {
        self.kubectl_as(&self.admin_kubeconfig_path(), args, input).await
    }

    /// Runs kubectl on the node with another kubeconfig, such as a tenant's.
    ///
    /// # Errors
    ///
    /// As [`RealCluster::kubectl`].
    pub async fn kubectl_as(&self, kubeconfig: &Path, args: &[&str], input: &str) -> Result<String, KubectlError> {
        let mut command = in_network(self.init_pid());
        command.arg(&self.kubectl);
        command.env("KUBECONFIG", kubeconfig).env("KUBECACHEDIR", self.dir.join("kubectl-cache"));
        kubectl::run(command, args, input).await
    }

    /// Runs a command in all namespaces of the first node; returns its standard output.
    ///
    /// # Errors
    ///
    /// With the command's exit status and standard error.
    pub async fn exec_in_node(&self, words: &[&str]) -> Result<String, RealClustersError> {
        self.exec_in_nth_node(1, words).await
    }

    /// Runs a command on the N-th node, from 1, as [`RealCluster::exec_in_node`] does on the first.
    ///
    /// # Errors
    ///
    /// With the command's exit status and standard error.
    ///
    /// # Panics
    /// When it has fewer.
    pub async fn exec_in_nth_node(&self, node: u32, words: &[&str]) -> Result<String, RealClustersError> {
        let mut command = tokio::process::Command::new("nsenter");
        command.arg("--target").arg(self.nth_init_pid(node).to_string()).args(["--all", "--"]).args(words);
        self.output(command, &words.join(" ")).await
    }

    /// Imports an image on every node, from an archive of [`crate::image`].
    ///
    /// # Errors
    ///
    /// As [`RealCluster::exec_in_node`].
    pub async fn import_image(&self, archive: &Path) -> Result<(), RealClustersError> {
        let archive = archive.to_string_lossy();
        for node in 1..=self.nodes() {
            self.exec_in_nth_node(node, &["ctr", "-n", "k8s.io", "images", "import", &archive]).await?;
        }
        Ok(())
    }

    /// Installs a metrics-server, which has no data for half a minute. Needs the programs of
    /// [`Needs::Liqo`](crate::Needs::Liqo).
    ///
    /// # Errors
    ///
    /// When its image cannot be built or its objects cannot be applied.
    pub async fn add_metrics_server(&self, binaries: &Binaries) -> Result<(), RealClustersError> {
        let (archive, program) = (self.dir.join("metrics-server.tar"), binaries.program("metrics-server"));
        let image =
            Image { name: METRICS_IMAGE, program: &program, path: "/metrics-server", user: "65532:65532", tmp: true };
        image::write(&image, &archive).map_err(|source| RealClustersError::Io { path: program.clone(), source })?;
        self.import_image(&archive).await?;
        let objects = METRICS_SERVER.replace("@IMAGE@", METRICS_IMAGE);
        self.kubectl_with_input(&["apply", "--server-side", "-f", "-"], &objects)
            .await
            .map(drop)
            .map_err(RealClustersError::MetricsServer)
    }

    /// Sends a daemon of the first node a signal: `etcd`, `kube-apiserver`, `kube-controller-manager`,
    /// `kube-scheduler`, `containerd`, `kubelet`, `kube-proxy`, `felix`, `nvidia-device-plugin`, `gpu-feature-discovery`
    /// or `dra-driver`; `KILL`, `STOP`, `CONT`.
    ///
    /// # Errors
    ///
    /// When there is no such daemon.
    pub async fn signal(&self, daemon: &str, signal: &str) -> Result<(), RealClustersError> {
        self.signal_in_nth_node(1, daemon, signal).await
    }

    /// Sends a daemon of the N-th node, from 1, a signal, as [`RealCluster::signal`] does on the first.
    ///
    /// # Errors
    ///
    /// When there is no such daemon.
    pub async fn signal_in_nth_node(&self, node: u32, daemon: &str, signal: &str) -> Result<(), RealClustersError> {
        self.script("signal", &[&self.settings.folder(node), daemon, signal]).await
    }

    /// Restarts a killed daemon of the first node with the same arguments.
    ///
    /// # Errors
    ///
    /// When there is no such daemon.
    pub async fn start_daemon(&self, daemon: &str) -> Result<(), RealClustersError> {
        self.start_daemon_in_nth_node(1, daemon).await
    }

    /// Restarts a killed daemon of the N-th node, from 1, with the same arguments.
    ///
    /// # Errors
    ///
    /// When there is no such daemon.
    pub async fn start_daemon_in_nth_node(&self, node: u32, daemon: &str) -> Result<(), RealClustersError> {
        self.script("start", &[&self.settings.folder(node), daemon]).await
    }

    /// Waits until its API server is ready, two minutes at most.
    pub(super) async fn answers(&self) -> Result<(), RealClustersError> {
        let deadline = Instant::now() + ANSWERS_WITHIN;
        loop {
            match self.kubectl(&["get", "--raw", "/readyz"]).await {
                Ok(_) => return Ok(()),
                Err(error) if Instant::now() > deadline => return Err(RealClustersError::Silent(error)),
                Err(_) => tokio::time::sleep(Duration::from_millis(100)).await,
            }
        }
    }

    /// The files of its N-th node, from 1.
    pub(super) fn node_folder(&self, node: u32) -> PathBuf {
        self.dir.with_file_name(self.settings.folder(node))
    }

    /// Runs a command of the script `real-clusters` on the folder of both clusters.
    pub(super) async fn script(&self, verb: &str, args: &[&str]) -> Result<(), RealClustersError> {
        let dir = self.dir.parent().unwrap_or(&self.dir);
        let mut command = tokio::process::Command::new("bash");
        command.arg(dir.join("real-clusters")).arg(verb).arg(dir).args(args);
        self.output(command, &format!("{verb} {}", args.join(" "))).await.map(drop)
    }

    async fn output(&self, mut command: tokio::process::Command, shown: &str) -> Result<String, RealClustersError> {
        let output = command
            .stdin(Stdio::null())
            .kill_on_drop(true)
            .output()
            .await
            .map_err(|source| RealClustersError::Io { path: shown.into(), source })?;
        if output.status.success() {
            return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
        }
        Err(RealClustersError::Command {
            cluster: self.name(),
            command: shown.to_owned(),
            status: output.status,
            stderr: String::from_utf8_lossy(&output.stderr).trim().to_owned(),
        })
    }
}
