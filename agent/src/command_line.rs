//! `comity-agent`: flags, environment, exit codes.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, Parser, Subcommand};
use comity_agent_kubernetes::api::{KubernetesApiError, KubernetesSource};
use comity_agent_model::settings::{InvalidSetting, InvalidSettings};
use comity_runtime::telemetry::{self, LogFormat, OTLP_ENDPOINT_VARIABLE, TelemetryConfig, TelemetryError};
use comity_runtime::{IdentityKey, Shutdown, SystemClock, SystemEntropy, atomic_file};

use crate::app::{Agent, AgentError};
use crate::config::{Config, ConfigError, FabricModeName, KubernetesConfig};
use crate::enrollment::join::{JoinError, JoinInput, join_or_load};
use crate::services::nodes::follower::{self, FollowerConfig, FollowerError};

/// `sysexits.h`: the command was used wrongly.
const USAGE: u8 = 64;

/// The agent of one cluster of a Comity federation.
#[derive(Debug, Parser)]
#[command(name = "comity-agent", version, about)]
#[command(
    after_help = "Exit codes: 0 stopped as asked, 64 bad configuration (one sentence says what), 1 anything else."
)]
pub struct CommandLine {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// Runs the agent; joins first if it has a token and no identity.
    Run(Settings),
    /// Joins the federation with a token, and exits.
    Join(Settings),
    /// Makes this agent's identity key if it has none, and prints the public key for the institution to vouch for.
    IdentityKey(Settings),
    /// On a node other than the gateway of fabric mode tun: leads the node's pods to the gateway.
    Node(NodeSettings),
}

/// Settings of `comity-agent node`.
#[derive(Debug, Args)]
struct NodeSettings {
    /// Kubeconfig of this cluster; default: the pod's ServiceAccount.
    #[arg(long, env = "COMITY_AGENT_KUBECONFIG", value_name = "FILE")]
    kubeconfig: Option<PathBuf>,
    /// Namespace of the gateway's agent, in which the ConfigMap comity-fabric is.
    #[arg(long, env = "COMITY_AGENT_NAMESPACE", value_name = "NAME", default_value = "comity-system")]
    namespace: String,
    /// Name of the vxlan device.
    #[arg(long, env = "COMITY_AGENT_OVERLAY_DEVICE", value_name = "NAME", default_value = "comity0v")]
    device: String,
    /// This node's InternalIP; default: the address that it uses toward the gateway.
    #[arg(long, env = "COMITY_AGENT_NODE_IP", value_name = "ADDRESS")]
    node_ip: Option<Ipv4Addr>,
    /// Listen address of metrics and probes; unauthenticated.
    #[arg(long, env = "COMITY_AGENT_ADMIN_LISTEN", value_name = "ADDRESS:PORT", default_value = "127.0.0.1:7481")]
    admin_listen: SocketAddr,
    /// text or json.
    #[arg(long, env = "COMITY_AGENT_LOG_FORMAT", value_name = "FORMAT", default_value = "text")]
    log_format: LogFormat,
    /// As in info,comity_agent=debug.
    #[arg(long, env = "COMITY_AGENT_LOG", value_name = "FILTER", default_value = telemetry::DEFAULT_FILTER)]
    log: String,
}

/// Flags that override the file.
#[derive(Debug, Args)]
struct Settings {
    /// Configuration file, YAML.
    #[arg(long, env = "COMITY_AGENT_CONFIG", value_name = "FILE")]
    config: Option<PathBuf>,
    /// Directory of keys, certificate and records.
    #[arg(long, env = "COMITY_AGENT_STATE", value_name = "DIR")]
    state: Option<PathBuf>,
    /// File with a join token.
    #[arg(long, env = "COMITY_AGENT_JOIN_TOKEN", value_name = "FILE")]
    join_token: Option<PathBuf>,
    /// Brokers, HOST:PORT separated by commas; default: those of the join token.
    #[arg(long, env = "COMITY_AGENT_BROKERS", value_name = "LIST", value_delimiter = ',')]
    brokers: Vec<String>,
    /// Kubeconfig of this cluster.
    #[arg(long, env = "COMITY_AGENT_KUBECONFIG", value_name = "FILE", conflicts_with = "inventory")]
    kubeconfig: Option<PathBuf>,
    /// Inventory file of a host without Kubernetes.
    #[arg(long, env = "COMITY_AGENT_INVENTORY", value_name = "FILE")]
    inventory: Option<PathBuf>,
    /// UDP listen address of the fabric.
    #[arg(long, env = "COMITY_AGENT_FABRIC_LISTEN", value_name = "ADDRESS:PORT")]
    fabric_listen: Option<SocketAddr>,
    /// Where others reach the fabric, HOST:PORT separated by commas; port 0 is the one listened on.
    #[arg(long, env = "COMITY_AGENT_FABRIC_ENDPOINTS", value_name = "LIST", value_delimiter = ',')]
    fabric_endpoints: Vec<String>,
    /// Traffic in the tunnels: the donor's API only, or pods too.
    #[arg(long, env = "COMITY_AGENT_FABRIC_MODE", value_name = "MODE")]
    fabric_mode: Option<FabricModeName>,
    /// Where tenants reach leased namespaces; in a pod, the pod's address.
    #[arg(long, env = "COMITY_AGENT_ACCESS_LISTEN", value_name = "ADDRESS")]
    access_listen: Option<IpAddr>,
    /// Name that kubeconfigs have for it, as in comity-agent.comity-system.svc.
    #[arg(long, env = "COMITY_AGENT_ACCESS_HOST", value_name = "HOST")]
    access_host: Option<String>,
    /// Listen address of metrics and probes; unauthenticated.
    #[arg(long, env = "COMITY_AGENT_ADMIN_LISTEN", value_name = "ADDRESS:PORT")]
    admin_listen: Option<SocketAddr>,
    /// text or json.
    #[arg(long, env = "COMITY_AGENT_LOG_FORMAT", value_name = "FORMAT")]
    log_format: Option<String>,
    /// As in info,comity_agent=debug.
    #[arg(long, env = "COMITY_AGENT_LOG", value_name = "FILTER")]
    log: Option<String>,
    /// Checks and prints the effective configuration as YAML, and exits.
    #[arg(long)]
    dump_config: bool,
}

/// Why the process ends.
#[derive(Debug, thiserror::Error)]
enum Failure {
    #[error(transparent)]
    Config(#[from] ConfigError),
    #[error(transparent)]
    Telemetry(#[from] TelemetryError),
    #[error(transparent)]
    Agent(#[from] Box<AgentError>),
    #[error("{0}")]
    System(String),
}

impl From<AgentError> for Failure {
    fn from(error: AgentError) -> Self {
        Self::Agent(Box::new(error))
    }
}

impl From<FollowerError> for Failure {
    fn from(error: FollowerError) -> Self {
        Self::from(match error {
            FollowerError::Kubernetes(error) => AgentError::from(error),
            FollowerError::Fabric(error) => AgentError::from(error),
            FollowerError::Admin(error) => AgentError::from(error),
            FollowerError::Metrics(error) => AgentError::from(error),
        })
    }
}

impl Failure {
    fn code(&self) -> u8 {
        let usage = match self {
            Self::Config(_) | Self::Telemetry(_) => true,
            Self::Agent(error) => matches!(
                **error,
                AgentError::Config(_)
                    | AgentError::NotPrivate(_)
                    | AgentError::CrashPoint(_)
                    | AgentError::Inventory(_)
                    | AgentError::Kubernetes(KubernetesApiError::Unusable { .. })
                    | AgentError::Join(
                        JoinError::NoToken { .. } | JoinError::Token { .. } | JoinError::SomebodyElse { .. }
                    )
            ),
            Self::System(_) => false,
        };
        if usage { USAGE } else { 1 }
    }
}

impl Settings {
    fn resolve(self) -> Result<(Config, bool), ConfigError> {
        let mut config = self.config.as_deref().map_or_else(|| Ok(Config::default()), Config::read)?;
        if let Some(state) = self.state {
            config.state_dir = state;
        }
        if self.join_token.is_some() {
            config.join_token_file = self.join_token;
        }
        if !self.brokers.is_empty() {
            config.brokers = self.brokers;
        }
        if let Some(kubeconfig) = self.kubeconfig {
            config.kubernetes = Some(KubernetesConfig { kubeconfig: Some(kubeconfig), context: None });
            config.inventory_file = None;
        }
        if let Some(inventory) = self.inventory {
            config.inventory_file = Some(inventory);
            config.kubernetes = None;
        }
        if let Some(listen) = self.fabric_listen {
            config.fabric.listen = listen;
        }
        if !self.fabric_endpoints.is_empty() {
            config.fabric.endpoints = self.fabric_endpoints;
        }
        if let Some(mode) = self.fabric_mode {
            config.fabric.mode = mode;
        }
        if let Some(listen) = self.access_listen {
            config.access.listen = listen;
        }
        if self.access_host.is_some() {
            config.access.host = self.access_host;
        }
        if let Some(listen) = self.admin_listen {
            config.admin_listen = listen;
        }
        if let Some(format) = self.log_format {
            let refused = |error: TelemetryError| {
                InvalidSettings::from(InvalidSetting::new("log-format", &format, error.to_string()))
            };
            config.log.format = format.parse::<LogFormat>().map_err(refused)?;
        }
        if let Some(filter) = self.log {
            config.log.filter = filter;
        }
        if config.log.otlp_endpoint.is_none() {
            config.log.otlp_endpoint = std::env::var(OTLP_ENDPOINT_VARIABLE).ok().filter(|value| !value.is_empty());
        }
        Ok((config, self.dump_config))
    }
}

/// The whole of `main`.
#[must_use]
pub fn main() -> ExitCode {
    let action = CommandLine::parse_from_environment();
    comity_runtime::install_crypto_provider();
    let runtime = match tokio::runtime::Builder::new_multi_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => return failed(&Failure::System(format!("cannot start the runtime: {error}"))),
    };
    match runtime.block_on(act(action)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => failed(&failure),
    }
}

fn failed(failure: &Failure) -> ExitCode {
    eprintln!("comity-agent: {failure}");
    ExitCode::from(failure.code())
}

impl CommandLine {
    /// Parses the process's arguments; a wrong one ends it with the code for wrong use.
    fn parse_from_environment() -> Action {
        match Self::try_parse() {
            Ok(line) => line.action,
            Err(error) => {
                // If even this cannot be printed, there is no other way to report it.
                let _ = error.print();
                std::process::exit(if error.use_stderr() { i32::from(USAGE) } else { 0 });
            }
        }
    }
}

async fn act(action: Action) -> Result<(), Failure> {
    let (settings, task) = match action {
        Action::Run(settings) => (settings, Task::Run),
        Action::Join(settings) => (settings, Task::Join),
        Action::IdentityKey(settings) => (settings, Task::IdentityKey),
        Action::Node(settings) => return follow(settings).await,
    };
    let (config, dump) = settings.resolve()?;
    if dump {
        // A configuration that `run` refuses is not printed either.
        if matches!(task, Task::Run) {
            config.check()?;
        }
        print!("{}", config.dump());
        return Ok(());
    }
    let _telemetry = telemetry::init(&TelemetryConfig {
        service: "comity-agent".to_owned(),
        log_format: config.log.format,
        filter: config.log.filter.clone(),
        otlp_endpoint: config.log.otlp_endpoint.clone(),
    })?;
    match task {
        Task::Run => run(config).await,
        Task::Join => join(&config).await,
        Task::IdentityKey => {
            println!("{}", identity_key(&config)?.public());
            Ok(())
        }
    }
}

enum Task {
    Run,
    Join,
    IdentityKey,
}

async fn run(config: Config) -> Result<(), Failure> {
    let shutdown = Shutdown::new();
    shutdown.listen_for_signals().map_err(|error| Failure::System(format!("cannot listen for signals: {error}")))?;
    let agent = tokio::select! {
        agent = Agent::start(config) => agent?,
        () = shutdown.triggered() => return Ok(()),
    };
    shutdown.triggered().await;
    agent.shutdown().await;
    Ok(())
}

async fn follow(settings: NodeSettings) -> Result<(), Failure> {
    let is_device = |letter: char| letter.is_ascii_alphanumeric() || "-_.".contains(letter);
    if settings.device.is_empty() || settings.device.len() > 15 || !settings.device.chars().all(is_device) {
        let reason = "want 1 to 15 letters, digits, '-', '_' or '.', as in comity0v".to_owned();
        return Err(
            ConfigError::from(InvalidSettings::from(InvalidSetting::new("device", settings.device, reason))).into()
        );
    }
    let _telemetry = telemetry::init(&TelemetryConfig {
        service: "comity-agent-node".to_owned(),
        log_format: settings.log_format,
        filter: settings.log,
        otlp_endpoint: std::env::var(OTLP_ENDPOINT_VARIABLE).ok().filter(|value| !value.is_empty()),
    })?;
    let kubernetes = match settings.kubeconfig {
        Some(path) => KubernetesSource::Kubeconfig { path, context: None },
        None => KubernetesSource::InCluster,
    };
    let config = FollowerConfig {
        kubernetes,
        namespace: settings.namespace,
        device: settings.device,
        node_ip: settings.node_ip,
        admin_listen: settings.admin_listen,
    };
    let shutdown = Shutdown::new();
    shutdown.listen_for_signals().map_err(|error| Failure::System(format!("cannot listen for signals: {error}")))?;
    Ok(follower::run(config, &shutdown).await?)
}

fn identity_key(config: &Config) -> Result<IdentityKey, AgentError> {
    atomic_file::create_private_dir(&config.state_dir)?;
    Ok(IdentityKey::load_or_generate(&config.state_dir.join(crate::app::IDENTITY_KEY_FILE), &SystemEntropy)?)
}

async fn join(config: &Config) -> Result<(), Failure> {
    let key = identity_key(config)?;
    let clock = SystemClock::new();
    let joined = join_or_load(JoinInput {
        state: &config.state_dir,
        token: config.join_token_file.as_deref(),
        brokers: &config.brokers,
        key: &key,
        voucher: config.voucher.as_ref(),
        clock: &clock,
        entropy: &SystemEntropy,
    })
    .await;
    let membership = joined.map_err(AgentError::from)?;
    println!("{}", membership.identity.id());
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ended(arguments: &[&str]) -> Option<(u8, String)> {
        let line = CommandLine::try_parse_from(arguments).expect("it is a command line");
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        comity_runtime::install_crypto_provider();
        runtime.block_on(act(line.action)).err().map(|failure| (failure.code(), failure.to_string()))
    }

    #[test]
    fn a_configuration_that_run_refuses_is_not_shown_as_being_in_force() {
        let (code, text) = ended(&["comity-agent", "run", "--dump-config"]).expect("it says not what the cluster is");
        assert!(code == USAGE && text.contains("kubernetes"), "{text}");
        assert_eq!(ended(&["comity-agent", "run", "--inventory", "/nodes.yaml", "--dump-config"]), None);
    }

    #[test]
    fn a_kubeconfig_that_cannot_be_used_is_wrong_use() {
        let missing = "/nonexistent/kubeconfig";
        let (code, text) = ended(&["comity-agent", "node", "--kubeconfig", missing]).expect("there is no such file");
        assert!(code == USAGE && text.contains(missing), "{text}");
    }
}
