//! `comity-agent read-devices`.

use std::net::SocketAddr;
use std::path::PathBuf;

use clap::Args;
use comity_agent_kubernetes::api::{KubernetesApi, KubernetesSource};
use comity_agent_kubernetes::pod_resources::KUBELET_SOCKET;
use comity_runtime::Shutdown;

use super::failure::Failure;
use super::node_logs::NodeLogs;
use crate::app::AgentError;
use crate::services::device_reader::{self, DeviceReader};

/// The agent in deploy/agent.
const AGENT_USER: &str = "system:serviceaccount:comity-system:comity-agent";

/// Settings of `comity-agent read-devices`.
#[derive(Debug, Args)]
pub(super) struct ReadDevicesSettings {
    /// Name of this node.
    #[arg(long, env = "COMITY_AGENT_NODE", value_name = "NAME")]
    node: String,
    /// Listen address of the page.
    #[arg(long, env = "COMITY_AGENT_LISTEN", value_name = "ADDRESS:PORT", default_value = "0.0.0.0:7484")]
    listen: SocketAddr,
    /// The kubelet's socket of its pod-resources API.
    #[arg(long, env = "COMITY_AGENT_KUBELET_SOCKET", value_name = "FILE", default_value = KUBELET_SOCKET)]
    socket: PathBuf,
    /// Kubeconfig with which tokens are reviewed; default: the pod's ServiceAccount.
    #[arg(long, env = "COMITY_AGENT_KUBECONFIG", value_name = "FILE")]
    kubeconfig: Option<PathBuf>,
    /// The user whose tokens may read the page.
    #[arg(long, env = "COMITY_AGENT_USER", value_name = "USER", default_value = AGENT_USER)]
    agent_user: String,
    #[command(flatten)]
    logs: NodeLogs,
}

/// Runs until a signal.
pub(super) async fn read_devices(settings: ReadDevicesSettings) -> Result<(), Failure> {
    let ReadDevicesSettings { node, listen, socket, kubeconfig, agent_user, logs } = settings;
    let _telemetry = logs.start("comity-agent-devices")?;
    let shutdown = Shutdown::new();
    shutdown.listen_for_signals().map_err(|error| Failure::System(format!("cannot listen for signals: {error}")))?;
    let source = match kubeconfig {
        Some(path) => KubernetesSource::Kubeconfig { path, context: None },
        None => KubernetesSource::InCluster,
    };
    let api = KubernetesApi::connect(&source).await.map_err(AgentError::from)?;
    device_reader::serve(DeviceReader { node, socket, agent_user }, api.client(), listen, shutdown.token())
        .await
        .map_err(|error| Failure::System(format!("cannot listen on {listen}: {error}; choose another --listen")))
}
