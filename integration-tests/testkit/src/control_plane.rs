//! Runs a Kubernetes control plane on loopback with simulated nodes, without root.

mod cert_manager;
mod component;
mod files;
mod readiness;

use std::collections::BTreeMap;
use std::fmt;
use std::fs;
use std::io;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use crate::binaries::Binaries;
use crate::daemon::Daemon;
use crate::kubectl::{self, KubectlError};
use crate::pki::{Authority, PkiError};
use crate::process::{self, SweepError};
use crate::simulated_node::SimulatedNode;
use crate::{kubeconfig, port};

pub use cert_manager::{CertManager, CertManagerError};
pub use component::Component;
pub(crate) use component::SERVICE_NETWORK;
use files::{FOLDERS, Files};

/// Maximum attempts to start, in case other processes take the ports.
const TRIES: u32 = 3;

/// The parameters of a control plane.
#[derive(Debug, Clone)]
pub struct ControlPlaneConfig {
    /// The cluster's name: the context in the kubeconfig, and in errors.
    pub name: String,
    /// Its own folder, created if absent.
    pub dir: PathBuf,
    /// The nodes to create.
    pub nodes: Vec<SimulatedNode>,
    /// Whether `stop` keeps the state, so that a later start in the same folder has the same objects, port and
    /// credentials. Makes etcd's writes durable.
    pub keep_state: bool,
    /// A user whose requests the API server logs in [`ControlPlane::audit_log`].
    pub audited_user: Option<String>,
    /// How long the start may take; 4 to 10 s is usual, more on a loaded machine.
    pub patience: Duration,
}

impl ControlPlaneConfig {
    /// No nodes, nothing kept, two minutes of patience.
    #[must_use]
    pub fn new(name: &str, dir: impl Into<PathBuf>) -> Self {
        Self {
            name: name.to_owned(),
            dir: dir.into(),
            nodes: Vec::new(),
            keep_state: false,
            audited_user: None,
            patience: Duration::from_secs(120),
        }
    }
}

/// Why a control plane does not run.
#[derive(Debug, thiserror::Error)]
pub enum ControlPlaneError {
    /// A daemon ended.
    #[error("{component} of cluster {cluster} ended with {status}; its log says:\n{log}")]
    Ended {
        /// The cluster.
        cluster: String,
        /// The daemon.
        component: &'static str,
        /// Its exit status.
        status: std::process::ExitStatus,
        /// The last lines of its log.
        log: String,
    },
    /// The cluster did not become ready.
    #[error("cluster {cluster} is still waiting for {what} after {after:?}; the log of {component} says:\n{log}")]
    NotReady {
        /// The cluster.
        cluster: String,
        /// The missing condition.
        what: String,
        /// The timeout.
        after: Duration,
        /// The daemon whose log most likely has the reason.
        component: &'static str,
        /// The last lines of its log.
        log: String,
    },
    /// A daemon could not be started.
    #[error("cannot start {component} of cluster {cluster}")]
    Start {
        /// The cluster.
        cluster: String,
        /// The daemon.
        component: &'static str,
        /// The cause.
        #[source]
        source: io::Error,
    },
    /// A file or folder of the cluster cannot be used.
    #[error("cannot use {} for cluster {cluster}", path.display())]
    File {
        /// The cluster.
        cluster: String,
        /// The file or folder.
        path: PathBuf,
        /// The cause.
        #[source]
        source: io::Error,
    },
    /// The API server refused.
    #[error("the API server of cluster {cluster} refuses {what}")]
    Api {
        /// The cluster.
        cluster: String,
        /// The operation.
        what: String,
        /// Its answer.
        #[source]
        source: Box<kube::Error>,
    },
    /// The cluster's own kubeconfig cannot be read back.
    #[error("the kubeconfig of cluster {cluster} is not usable")]
    Kubeconfig {
        /// The cluster.
        cluster: String,
        /// Why.
        #[source]
        source: kube::config::KubeconfigError,
    },
    /// Certificates could not be created.
    #[error(transparent)]
    Pki(#[from] PkiError),
    /// The folder is in use, or leftovers of an earlier run cannot be removed.
    #[error(transparent)]
    Sweep(#[from] SweepError),
}

/// The ports of one control plane, stored with its state so that kubeconfigs stay valid.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
struct Ports {
    etcd: u16,
    etcd_peer: u16,
    api_server: u16,
}

/// A running control plane. Dropping it kills its daemons and removes its files.
pub struct ControlPlane {
    config: ControlPlaneConfig,
    kubectl: PathBuf,
    ports: Ports,
    admin_kubeconfig: String,
    client: kube::Client,
    daemons: BTreeMap<Component, Daemon>,
    /// Removes the files, after the daemons above have been dropped.
    _files: Files,
}

impl ControlPlane {
    /// Removes leftovers of an earlier process in the same folder, starts the daemons, and waits until the API server
    /// is ready, every node is Ready and the namespace `default` has its ServiceAccount.
    ///
    /// # Errors
    ///
    /// Names the daemon that ended, with its exit status and the end of its log, or the condition that was not met in
    /// time.
    pub async fn start(binaries: &Binaries, config: ControlPlaneConfig) -> Result<Self, ControlPlaneError> {
        let mut tries = 1;
        loop {
            match Self::start_once(binaries, config.clone()).await {
                Err(ControlPlaneError::Ended { log, component, .. })
                    if tries < TRIES && log.contains("address already in use") =>
                {
                    tracing::warn!(cluster = config.name, component, "a port was taken in between, trying others");
                    tries += 1;
                }
                result => return result,
            }
        }
    }

    async fn start_once(binaries: &Binaries, config: ControlPlaneConfig) -> Result<Self, ControlPlaneError> {
        let began = Instant::now();
        let run = config.dir.join("run");
        let swept = process::own(&run)?;
        if !swept.is_empty() {
            tracing::info!(cluster = config.name, ?swept, "ended daemons of an earlier run");
        }
        let files = Files { dir: config.dir.clone(), keep: config.keep_state };
        if !config.keep_state {
            files.remove_state();
        }
        for folder in FOLDERS {
            let path = config.dir.join(folder);
            fs::create_dir_all(&path).map_err(|source| file_error(&config, &path, source))?;
        }
        let ports = ports(&config)?;
        let server_url = format!("https://127.0.0.1:{}", ports.api_server);
        let (authority, admin_kubeconfig) = credentials(&config, &server_url)?;
        let layout = component::Layout { config: &config, binaries, authority: &authority, ports };

        let mut daemons = BTreeMap::new();
        for component in [Component::Etcd, Component::ApiServer] {
            daemons.insert(component, layout.start(component)?);
        }
        let waiting = readiness::Waiting::new(&config, &admin_kubeconfig, began).await?;
        waiting.for_api_server(&daemons).await?;
        for component in [Component::ControllerManager, Component::Scheduler, Component::Kwok] {
            daemons.insert(component, layout.start(component)?);
        }
        waiting.create_nodes(&config.nodes).await?;
        waiting.for_nodes_and_accounts(&daemons).await?;
        tracing::info!(cluster = config.name, took = ?began.elapsed(), %server_url, "control plane is ready");
        Ok(Self {
            kubectl: binaries.program("kubectl"),
            ports,
            admin_kubeconfig,
            client: waiting.into_client(),
            daemons,
            _files: files,
            config,
        })
    }

    /// The cluster's name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.config.name
    }

    /// The API server's address: `https://127.0.0.1:PORT`.
    #[must_use]
    pub fn server_url(&self) -> String {
        format!("https://127.0.0.1:{}", self.ports.api_server)
    }

    /// A kubeconfig with all rights, in YAML.
    #[must_use]
    pub fn admin_kubeconfig(&self) -> &str {
        &self.admin_kubeconfig
    }

    /// Path of [`Self::admin_kubeconfig`], readable by its owner only.
    #[must_use]
    pub fn admin_kubeconfig_path(&self) -> PathBuf {
        self.config.dir.join("admin.kubeconfig")
    }

    /// Writes a kubeconfig for another user in a group; returns its path.
    ///
    /// # Errors
    ///
    /// When the certificate cannot be created or the file cannot be written.
    pub fn kubeconfig_for(&self, user: &str, group: &str) -> Result<PathBuf, ControlPlaneError> {
        let authority = Authority::open(&self.config.dir.join("pki"))?;
        let identity = authority.client(user, user, Some(group))?;
        let text = kubeconfig::render(&self.config.name, &self.server_url(), authority.ca_pem(), &identity);
        let path = self.config.dir.join(format!("{user}.kubeconfig"));
        crate::pki::write_private(&path, &text)?;
        Ok(path)
    }

    /// Requests of [`ControlPlaneConfig::audited_user`], one JSON object (`audit.k8s.io/v1` `Event`) a line.
    #[must_use]
    pub fn audit_log(&self) -> PathBuf {
        audit_log(&self.config)
    }

    /// The certificate of the cluster's authority.
    #[must_use]
    pub fn ca_path(&self) -> PathBuf {
        self.config.dir.join("pki/ca.crt")
    }

    /// A client with all rights.
    #[must_use]
    pub fn client(&self) -> kube::Client {
        self.client.clone()
    }

    /// The folder with one pid file per daemon, from which the next start removes leftovers.
    pub(crate) fn run_dir(&self) -> PathBuf {
        self.config.dir.join("run")
    }

    /// The folder with one log per daemon.
    #[must_use]
    pub fn log_dir(&self) -> PathBuf {
        self.config.dir.join("log")
    }

    /// Runs kubectl as administrator; returns its standard output.
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
    /// As [`ControlPlane::kubectl`].
    pub async fn kubectl_with_input(&self, args: &[&str], input: &str) -> Result<String, KubectlError> {
        self.kubectl_as(&self.admin_kubeconfig_path(), args, input).await
    }

    /// Runs kubectl with another kubeconfig, such as a tenant's.
    ///
    /// # Errors
    ///
    /// As [`ControlPlane::kubectl`].
    pub async fn kubectl_as(&self, kubeconfig: &Path, args: &[&str], input: &str) -> Result<String, KubectlError> {
        let mut command = tokio::process::Command::new(&self.kubectl);
        command.env("KUBECONFIG", kubeconfig).env("KUBECACHEDIR", self.config.dir.join("kubectl-cache"));
        kubectl::run(command, args, input).await
    }

    /// Process id of a daemon while it runs.
    #[must_use]
    pub fn pid(&self, component: Component) -> Option<u32> {
        self.daemons.get(&component).and_then(Daemon::pid)
    }

    /// Kills a daemon with SIGKILL; it stays down until [`ControlPlane::restart`].
    pub fn kill(&self, component: Component) {
        if let Some(daemon) = self.daemons.get(&component) {
            daemon.kill();
        }
    }

    /// Restarts a daemon with the same arguments, without waiting until it serves.
    ///
    /// # Errors
    ///
    /// When the program cannot be started.
    pub fn restart(&self, component: Component) -> Result<(), ControlPlaneError> {
        let Some(daemon) = self.daemons.get(&component) else { return Ok(()) };
        daemon.restart().map_err(|source| ControlPlaneError::Start {
            cluster: self.config.name.clone(),
            component: daemon.name(),
            source,
        })
    }

    /// Waits until the API server reports that it is ready, as after a restart.
    ///
    /// # Errors
    ///
    /// When a daemon has ended, or the configured patience is exceeded.
    pub async fn ready(&self) -> Result<(), ControlPlaneError> {
        let waiting = readiness::Waiting::new(&self.config, &self.admin_kubeconfig, Instant::now()).await?;
        waiting.for_api_server(&self.daemons).await
    }

    /// Stops every daemon and removes the files, except a state to keep.
    ///
    /// # Errors
    ///
    /// When a file cannot be removed.
    pub async fn stop(self) -> Result<(), ControlPlaneError> {
        let Self { config, daemons, _files: files, .. } = self;
        end(daemons);
        files.remove().map_err(|source| file_error(&config, &config.dir, source))
    }
}

impl fmt::Debug for ControlPlane {
    /// Omits the credentials.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ControlPlane").field("name", &self.config.name).field("server_url", &self.server_url()).finish()
    }
}

fn audit_log(config: &ControlPlaneConfig) -> PathBuf {
    config.dir.join("log/audit.log")
}

/// Stops the daemons, clients before servers, to keep errors out of the logs.
fn end(daemons: BTreeMap<Component, Daemon>) {
    for (_, daemon) in daemons.into_iter().rev() {
        drop(daemon);
    }
}

fn file_error(config: &ControlPlaneConfig, path: &Path, source: io::Error) -> ControlPlaneError {
    ControlPlaneError::File { cluster: config.name.clone(), path: path.to_owned(), source }
}

/// The stored ports of the folder, or new ones.
fn ports(config: &ControlPlaneConfig) -> Result<Ports, ControlPlaneError> {
    let path = config.dir.join("ports.json");
    let error = |source| file_error(config, &path, source);
    if let Some(kept) = fs::read(&path).ok().and_then(|bytes| serde_json::from_slice(&bytes).ok()) {
        return Ok(kept);
    }
    let [etcd, etcd_peer, api_server] = port::free().map_err(error)?;
    let ports = Ports { etcd, etcd_peer, api_server };
    let bytes = serde_json::to_vec(&ports).map_err(|source| error(source.into()))?;
    fs::write(&path, bytes).map_err(error)?;
    Ok(ports)
}

/// Creates the authority, every daemon's certificate and kubeconfig, and the administrator's kubeconfig.
fn credentials(config: &ControlPlaneConfig, server_url: &str) -> Result<(Authority, String), ControlPlaneError> {
    let authority = Authority::open(&config.dir.join("pki"))?;
    authority.api_server("apiserver", &[IpAddr::from([127, 0, 0, 1]), component::SERVICE_ADDRESS])?;
    authority.client("etcd", "etcd", None)?;
    authority.client("etcd-client", "kube-apiserver", None)?;
    for (file, user, group) in [
        ("controller-manager", "system:kube-controller-manager", None),
        ("scheduler", "system:kube-scheduler", None),
        ("kwok", "kwok", Some("system:masters")),
    ] {
        let identity = authority.client(file, user, group)?;
        let text = kubeconfig::render(&config.name, server_url, authority.ca_pem(), &identity);
        crate::pki::write_private(&authority.path(&format!("{file}.kubeconfig")), &text)?;
    }
    let admin = authority.client("admin", "admin", Some("system:masters"))?;
    let admin_kubeconfig = kubeconfig::render(&config.name, server_url, authority.ca_pem(), &admin);
    crate::pki::write_private(&config.dir.join("admin.kubeconfig"), &admin_kubeconfig)?;
    Ok((authority, admin_kubeconfig))
}
