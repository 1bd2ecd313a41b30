//! Flags and variables that override the configuration file.

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;

use clap::Args;
use comity_agent_model::settings::{InvalidSetting, InvalidSettings};
use comity_runtime::telemetry::{OTLP_ENDPOINT_VARIABLE, TelemetryError};
use comity_runtime::{LogFormat, private_files};

use crate::config::{Config, ConfigError, FabricModeName, KubernetesConfig, StandbySettings};
use crate::enrollment::token_source::JoinTokenSource;

/// Name of the configuration file that `comity-agent join` writes into the state directory.
pub(super) const CONFIG_FILE: &str = "agent.yaml";

/// Topics of the full help.
const FABRIC: &str = "Fabric";
pub(super) const LOGS: &str = "Logs and metrics";

/// Flags that override the file.
#[derive(Debug, Args)]
pub(super) struct Settings {
    /// Configuration file, YAML.
    ///
    /// Default: agent.yaml in the state directory, if it exists.
    #[arg(long, env = "COMITY_AGENT_CONFIG", value_name = "FILE")]
    pub(super) config: Option<PathBuf>,
    /// State: keys, certificate and records.
    #[arg(long, env = "COMITY_AGENT_STATE", value_name = "DIR")]
    pub(super) state: Option<PathBuf>,
    /// Token, a file with it, or - for stdin.
    #[arg(long, env = "COMITY_AGENT_JOIN_TOKEN", value_name = "TOKEN|FILE|-", hide_env_values = true)]
    join_token: Option<JoinTokenSource>,
    /// Brokers, HOST:PORT separated by commas.
    ///
    /// Default: those of the join token.
    #[arg(long, env = "COMITY_AGENT_BROKERS", value_name = "LIST", value_delimiter = ',')]
    brokers: Vec<String>,
    /// Kubeconfig of this cluster.
    #[arg(long, env = "COMITY_AGENT_KUBECONFIG", value_name = "FILE", conflicts_with = "inventory")]
    kubeconfig: Option<PathBuf>,
    /// Inventory of a host without Kubernetes.
    #[arg(long, env = "COMITY_AGENT_INVENTORY", value_name = "FILE")]
    inventory: Option<PathBuf>,
    /// UDP listen address of the fabric.
    #[arg(long, hide_short_help = true, help_heading = FABRIC, env = "COMITY_AGENT_FABRIC_LISTEN",
        value_name = "ADDRESS:PORT")]
    fabric_listen: Option<SocketAddr>,
    /// Where others reach the fabric, HOST:PORT separated by commas; port 0 is the one listened on.
    #[arg(long, hide_short_help = true, help_heading = FABRIC, env = "COMITY_AGENT_FABRIC_ENDPOINTS",
        value_name = "LIST", value_delimiter = ',')]
    fabric_endpoints: Vec<String>,
    /// Traffic in the tunnels: the donor's API only, or pods too.
    #[arg(long, hide_short_help = true, help_heading = FABRIC, env = "COMITY_AGENT_FABRIC_MODE", value_name = "MODE")]
    fabric_mode: Option<FabricModeName>,
    /// Where tenants reach leased namespaces; in a pod, the pod's address.
    #[arg(long, hide_short_help = true, help_heading = FABRIC, env = "COMITY_AGENT_ACCESS_LISTEN",
        value_name = "ADDRESS")]
    access_listen: Option<IpAddr>,
    /// Name that kubeconfigs have for it, as in comity-agent.comity-system.svc.
    #[arg(long, hide_short_help = true, help_heading = FABRIC, env = "COMITY_AGENT_ACCESS_HOST", value_name = "HOST")]
    access_host: Option<String>,
    /// Listen address of metrics and probes; unauthenticated.
    #[arg(long, hide_short_help = true, help_heading = LOGS, env = "COMITY_AGENT_ADMIN_LISTEN",
        value_name = "ADDRESS:PORT")]
    admin_listen: Option<SocketAddr>,
    /// text or json.
    #[arg(long, hide_short_help = true, help_heading = LOGS, env = "COMITY_AGENT_LOG_FORMAT", value_name = "FORMAT")]
    log_format: Option<String>,
    /// As in info,comity_agent=debug.
    #[arg(long, hide_short_help = true, help_heading = LOGS, env = "COMITY_AGENT_LOG", value_name = "FILTER")]
    log: Option<String>,
    /// Term of the Lease of an agent with several replicas, in seconds; absent: this process is the only one.
    #[arg(long, hide_short_help = true, env = "COMITY_AGENT_STANDBY_LEASE_SECONDS", value_name = "SECONDS")]
    standby_lease_seconds: Option<u64>,
    /// Checks and prints the configuration in force as YAML, and exits.
    #[arg(long, hide_short_help = true)]
    pub(super) dump_config: bool,
}

impl Settings {
    /// The configuration file in force, if there is one.
    pub(super) fn file(&self) -> Option<PathBuf> {
        let in_state = || {
            let state = self.state.clone().unwrap_or_else(|| Config::default().state_dir);
            Some(state.join(CONFIG_FILE)).filter(|file| file.exists())
        };
        self.config.clone().or_else(in_state)
    }

    /// The file, overridden by flags and variables. Refuses a file that other users could change: it has the cluster's
    /// own policy.
    pub(super) fn resolve(self) -> Result<Config, ConfigError> {
        let mut config = match self.file() {
            Some(file) => {
                private_files::check_writers(&file)?;
                Config::read(&file)?
            }
            None => Config::default(),
        };
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
            let unrestricted = config.kubernetes.is_some_and(|kubernetes| kubernetes.unrestricted);
            config.kubernetes = Some(KubernetesConfig { kubeconfig: Some(kubeconfig), context: None, unrestricted });
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
        if let Some(lease_seconds) = self.standby_lease_seconds {
            config.standby = Some(StandbySettings { lease_seconds });
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
        Ok(config)
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use std::fs::{self, Permissions};
    use std::os::unix::fs::PermissionsExt as _;

    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        settings: Settings,
    }

    #[test]
    fn other_user_rewrites_agent_configuration() {
        let home = tempfile::tempdir().unwrap();
        let file = home.path().join(CONFIG_FILE);
        fs::write(&file, "reserve: {gpusPerNode: 1}\n").unwrap();
        let resolve = |mode| {
            fs::set_permissions(&file, Permissions::from_mode(mode)).unwrap();
            Line::parse_from(["agent", "--config", file.to_str().unwrap()]).settings.resolve()
        };
        for mode in [0o664, 0o646, 0o666] {
            let error = resolve(mode).unwrap_err().to_string();
            assert!(error.ends_with(&format!("run: chmod go-w {}", file.display())), "{mode:o}: {error}");
        }
        assert_eq!(resolve(0o644).unwrap().reserve.gpus_per_node, 1);
    }
}
