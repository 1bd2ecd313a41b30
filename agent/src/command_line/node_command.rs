//! `comity-agent node`.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;

use clap::Args;
use comity_agent_kubernetes::api::KubernetesSource;
use comity_agent_model::settings::{InvalidSetting, InvalidSettings};
use comity_runtime::Shutdown;

use super::failure::Failure;
use super::node_logs::NodeLogs;
use super::settings::LOGS;
use crate::config::ConfigError;
use crate::services::nodes::follower::{self, FollowerConfig};

/// Settings of `comity-agent node`.
#[derive(Debug, Args)]
pub(super) struct NodeSettings {
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
    #[arg(long, hide_short_help = true, help_heading = LOGS, env = "COMITY_AGENT_ADMIN_LISTEN",
        value_name = "ADDRESS:PORT", default_value = "127.0.0.1:7481")]
    admin_listen: SocketAddr,
    #[command(flatten)]
    logs: NodeLogs,
}

/// Runs until a signal.
pub(super) async fn follow(settings: NodeSettings) -> Result<(), Failure> {
    let is_device = |letter: char| letter.is_ascii_alphanumeric() || "-_.".contains(letter);
    if settings.device.is_empty() || settings.device.len() > 15 || !settings.device.chars().all(is_device) {
        let reason = "want 1 to 15 letters, digits, '-', '_' or '.', as in comity0v".to_owned();
        return Err(
            ConfigError::from(InvalidSettings::from(InvalidSetting::new("device", settings.device, reason))).into()
        );
    }
    let _telemetry = settings.logs.start("comity-agent-node")?;
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
