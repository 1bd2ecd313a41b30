//! Two clusters with real kubelets and containers, joined by a router. Linux and root.
//!
//! ```text
//! origin 198.51.100.10 ── [router 198.51.100.1 │ 203.0.113.1] ── 203.0.113.10 donor
//! ```
//!
//! Each cluster is one node: a set of namespaces in which its control plane, containerd, kubelet, kube-proxy and every
//! container run. The host's network, mounts and sysctls stay as they are, so a process on the host reaches the
//! clusters only by entering a network: [`RealClusters::command_in`] starts an agent on a node or a broker in the
//! router, and [`RealCluster::kubectl`] runs kubectl on the cluster's node.
//!
//! The CNI plugin here is a plain bridge, which does not enforce NetworkPolicy.

mod machine;
mod node_files;
mod supervisor;

use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};

use crate::binaries::{Binaries, cache_folder};
use crate::image;
use crate::kubectl::{self, KubectlError};
use crate::pki::PkiError;
use crate::port::random;

use node_files::{DONOR, NodeSettings, ORIGIN};
use supervisor::Supervisor;

const SCRIPT: &str = include_str!("../kubernetes/real-clusters");
/// The image of pod sandboxes.
const PAUSE_IMAGE: &str = "comity.local/pause:1";
/// The image of workloads: prints its GPUs and serves HTTP on port 8080. Runs as user 65532; every node has it.
pub const PROBE_IMAGE: &str = "comity.local/probe:1";
/// What the two clusters should be.
#[derive(Debug, Clone)]
pub struct RealClustersConfig {
    /// GPUs of the origin's node.
    pub origin_gpus: u32,
    /// GPUs of the donor's node. Its node carries the labels of an H100.
    pub donor_gpus: u32,
    /// How long the start may take; 6 to 15 s is usual.
    pub patience: Duration,
}

impl Default for RealClustersConfig {
    /// None for the origin, four for the donor, three minutes.
    fn default() -> Self {
        Self { origin_gpus: 0, donor_gpus: 4, patience: Duration::from_secs(180) }
    }
}

/// Why the clusters are not there.
#[derive(Debug, thiserror::Error)]
pub enum RealClustersError {
    /// This machine cannot run them.
    #[error("real clusters cannot run here: {}", .0.join("; "))]
    Missing(Vec<String>),
    /// Starting or stopping failed.
    #[error("{what}; the supervisor says:\n{log}")]
    Supervisor {
        /// What did not happen.
        what: String,
        /// The end of its log.
        log: String,
    },
    /// A file or program cannot be used.
    #[error("cannot use {}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// What the system says.
        #[source]
        source: io::Error,
    },
    /// A command on a node failed.
    #[error("'{command}' on the node of {cluster} ended with {status}: {stderr}")]
    Command {
        /// The cluster.
        cluster: &'static str,
        /// The command.
        command: String,
        /// How it ended.
        status: std::process::ExitStatus,
        /// What it said.
        stderr: String,
    },
    /// Certificates could not be made.
    #[error(transparent)]
    Pki(#[from] PkiError),
}

/// A place in the network of the two clusters.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Where {
    /// The origin's node.
    Origin,
    /// The donor's node.
    Donor,
    /// The router between them, which reaches both nodes.
    Router,
}

/// One of the two clusters.
#[derive(Debug)]
pub struct RealCluster {
    settings: NodeSettings,
    dir: PathBuf,
    kubectl: PathBuf,
    init_pid: u32,
}

/// Both clusters. Dropping this ends them and every process in their networks.
#[derive(Debug)]
pub struct RealClusters {
    /// The one that borrows.
    pub origin: RealCluster,
    /// The one that lends.
    pub donor: RealCluster,
    router_pid: u32,
    supervisor: Supervisor,
}

impl RealClusters {
    /// What this machine lacks, each with its remedy. Empty: they can run.
    #[must_use]
    pub fn missing() -> Vec<String> {
        machine::missing()
    }

    /// Takes down what earlier, killed runs left on this machine, brings both clusters up and waits until their nodes are Ready
    /// with their GPUs.
    ///
    /// # Errors
    ///
    /// [`RealClustersError::Missing`] when the machine cannot run them; otherwise with the end of the log that matters.
    pub async fn start(binaries: &Binaries, config: RealClustersConfig) -> Result<Self, RealClustersError> {
        let missing = Self::missing();
        if !missing.is_empty() {
            return Err(RealClustersError::Missing(missing));
        }
        let root = root_folder();
        private_folder(&root)?;
        supervisor::sweep(&root).await?;
        let id = format!("{:08x}", random() & 0xffff_ffff);
        let dir = root.join(&id);
        private_folder(&dir)?;
        let origin = NodeSettings { gpus: config.origin_gpus, ..ORIGIN };
        let donor = NodeSettings { gpus: config.donor_gpus, ..DONOR };
        if let Err(error) = prepare(&dir, &id, binaries, [&origin, &donor]) {
            drop(fs::remove_dir_all(&dir));
            return Err(error);
        }
        let began = Instant::now();
        let supervisor = Supervisor::start(&dir, config.patience).await?;
        tracing::info!(took = ?began.elapsed(), dir = %dir.display(), "both clusters are ready");
        let cluster = |settings: NodeSettings| {
            let dir = dir.join(settings.name);
            let init_pid = read_pid(&dir.join("init.pid"))?;
            Ok::<_, RealClustersError>(RealCluster { settings, dir, kubectl: binaries.program("kubectl"), init_pid })
        };
        Ok(Self {
            origin: cluster(origin)?,
            donor: cluster(donor)?,
            router_pid: read_pid(&dir.join("router/init.pid"))?,
            supervisor,
        })
    }

    /// A command in the network of a node or of the router: its files are the host's, its sockets are there. It is
    /// killed with the clusters at the latest.
    #[must_use]
    pub fn command_in(&self, place: Where, program: &Path, args: &[&str]) -> tokio::process::Command {
        let pid = match place {
            Where::Origin => self.origin.init_pid,
            Where::Donor => self.donor.init_pid,
            Where::Router => self.router_pid,
        };
        let mut command = in_network(pid);
        command.arg(program).args(args);
        command
    }

    /// The router's address on the side of a cluster: brokers in the router are reached there. The origin's side for the router
    /// itself.
    #[must_use]
    pub fn router_address(&self, side: Where) -> &'static str {
        match side {
            Where::Origin | Where::Router => self.origin.settings.gateway,
            Where::Donor => self.donor.settings.gateway,
        }
    }

    /// The folder with everything of the two clusters; logs are in `run.log`, `origin/log` and `donor/log`.
    #[must_use]
    pub fn dir(&self) -> &Path {
        &self.supervisor.dir
    }

    /// Ends both clusters and removes everything of them.
    ///
    /// # Errors
    ///
    /// When a process, cgroup or file stays.
    pub async fn stop(mut self) -> Result<(), RealClustersError> {
        // Waiting for it blocks; this thread may have tasks to run meanwhile.
        let task = tokio::task::spawn_blocking(move || self.supervisor.end());
        task.await.unwrap_or_else(|error| {
            Err(RealClustersError::Supervisor { what: "the teardown panicked".into(), log: error.to_string() })
        })
    }
}

impl RealCluster {
    /// `origin` or `donor`.
    #[must_use]
    pub fn name(&self) -> &'static str {
        self.settings.name
    }

    /// The name of its node.
    #[must_use]
    pub fn node_name(&self) -> String {
        self.settings.node_name()
    }

    /// The address of its node, which the router and the other node reach.
    #[must_use]
    pub fn node_ip(&self) -> &'static str {
        self.settings.node_ip
    }

    /// The API server's address, good in every network of the two clusters.
    #[must_use]
    pub fn server_url(&self) -> String {
        self.settings.server_url()
    }

    /// A kubeconfig with every right.
    #[must_use]
    pub fn admin_kubeconfig_path(&self) -> PathBuf {
        self.dir.join("admin.kubeconfig")
    }

    /// The certificate of the cluster's authority.
    #[must_use]
    pub fn ca_path(&self) -> PathBuf {
        self.dir.join("pki/ca.crt")
    }

    /// The first process of the node, as the host numbers it.
    #[must_use]
    pub fn init_pid(&self) -> u32 {
        self.init_pid
    }

    /// Runs kubectl on the node as administrator and gives its standard output.
    ///
    /// # Errors
    ///
    /// With kubectl's exit status and standard error, or when it does not end in two minutes.
    pub async fn kubectl(&self, args: &[&str]) -> Result<String, KubectlError> {
        self.kubectl_with_input(args, "").await
    }

    /// Runs kubectl with `input` on its standard input, as `kubectl apply -f -` wants it.
    ///
    /// # Errors
    ///
    /// As [`RealCluster::kubectl`].
    pub async fn kubectl_with_input(&self, args: &[&str], input: &str) -> Result<String, KubectlError> {
        self.kubectl_as(&self.admin_kubeconfig_path(), args, input).await
    }

    /// Runs kubectl on the node with another kubeconfig, a tenant's for one.
    ///
    /// # Errors
    ///
    /// As [`RealCluster::kubectl`].
    pub async fn kubectl_as(&self, kubeconfig: &Path, args: &[&str], input: &str) -> Result<String, KubectlError> {
        let mut command = in_network(self.init_pid);
        command.arg(&self.kubectl);
        command.env("KUBECONFIG", kubeconfig).env("KUBECACHEDIR", self.dir.join("kubectl-cache"));
        kubectl::run(command, args, input).await
    }

    /// Runs a command on the node, in all its namespaces, and gives its standard output.
    ///
    /// # Errors
    ///
    /// With the command's exit status and standard error.
    pub async fn exec_in_node(&self, words: &[&str]) -> Result<String, RealClustersError> {
        let mut command = tokio::process::Command::new("nsenter");
        command.arg("--target").arg(self.init_pid.to_string()).args(["--all", "--"]).args(words);
        self.output(command, &words.join(" ")).await
    }

    /// Sends a daemon of the node a signal: `etcd`, `kube-apiserver`, `kube-controller-manager`, `kube-scheduler`, `containerd`,
    /// `kubelet`, `kube-proxy` or `gpu-plugin`; `KILL`, `STOP`, `CONT`.
    ///
    /// # Errors
    ///
    /// When there is no such daemon.
    pub async fn signal(&self, daemon: &str, signal: &str) -> Result<(), RealClustersError> {
        self.script("signal", daemon, &[signal]).await
    }

    /// Starts a daemon again that has been killed, with the same arguments.
    ///
    /// # Errors
    ///
    /// When there is no such daemon.
    pub async fn start_daemon(&self, daemon: &str) -> Result<(), RealClustersError> {
        self.script("start", daemon, &[]).await
    }

    async fn script(&self, verb: &str, daemon: &str, args: &[&str]) -> Result<(), RealClustersError> {
        let dir = self.dir.parent().unwrap_or(&self.dir);
        let mut command = tokio::process::Command::new("bash");
        command.arg(dir.join("real-clusters")).arg(verb).arg(dir).args([self.name(), daemon]).args(args);
        self.output(command, &format!("{verb} {daemon}")).await.map(drop)
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

/// A command whose program and arguments are still to come, in the network of a process.
fn in_network(pid: u32) -> tokio::process::Command {
    let mut command = tokio::process::Command::new("nsenter");
    command.arg("--target").arg(pid.to_string()).args(["--net", "--"]);
    command
}

/// Writes everything that the script needs.
fn prepare(dir: &Path, id: &str, binaries: &Binaries, nodes: [&NodeSettings; 2]) -> Result<(), RealClustersError> {
    let write =
        |path: PathBuf, text: &str| fs::write(&path, text).map_err(|source| RealClustersError::Io { path, source });
    let cni = machine::cni_folder().unwrap_or("/opt/cni/bin");
    write(dir.join("real-clusters"), SCRIPT)?;
    write(dir.join("settings"), &format!("BIN='{}'\nCGROUP=comity-{id}\n", binaries.folder().display()))?;
    for node in nodes {
        node_files::write(&dir.join(node.name), node, cni)?;
    }
    let images = dir.join("images");
    private_folder(&images)?;
    for (name, program, user) in [(PAUSE_IMAGE, "pause", "65535:65535"), (PROBE_IMAGE, "probe", "65532:65532")] {
        let archive = images.join(format!("{program}.tar"));
        image::write(name, &binaries.program(program), user, &archive)
            .map_err(|source| RealClustersError::Io { path: archive, source })?;
    }
    Ok(())
}

/// Where the folders of all runs on this machine are: not below /tmp, where somebody else could put one first.
fn root_folder() -> PathBuf {
    cache_folder().unwrap_or_else(|| PathBuf::from("/root/.cache/comity")).join("real-clusters")
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
