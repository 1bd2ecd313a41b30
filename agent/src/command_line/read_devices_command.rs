//! `comity-agent read-devices`.

use std::net::SocketAddr;
use std::path::PathBuf;

use clap::Args;
use comity_agent_kubernetes::pod_resources::KUBELET_SOCKET;
use comity_runtime::Shutdown;

use super::failure::Failure;
use super::node_logs::NodeLogs;
use crate::services::device_reader::{self, DeviceReader};

/// Settings of `comity-agent read-devices`.
#[derive(Debug, Args)]
pub(super) struct ReadDevicesSettings {
    /// Name of this node.
    #[arg(long, env = "COMITY_AGENT_NODE", value_name = "NAME")]
    node: String,
    /// Listen address of the page; unauthenticated.
    #[arg(long, env = "COMITY_AGENT_LISTEN", value_name = "ADDRESS:PORT", default_value = "0.0.0.0:7484")]
    listen: SocketAddr,
    /// The kubelet's socket of its pod-resources API.
    #[arg(long, env = "COMITY_AGENT_KUBELET_SOCKET", value_name = "FILE", default_value = KUBELET_SOCKET)]
    socket: PathBuf,
    #[command(flatten)]
    logs: NodeLogs,
}

/// Runs until a signal.
pub(super) async fn read_devices(settings: ReadDevicesSettings) -> Result<(), Failure> {
    let ReadDevicesSettings { node, listen, socket, logs } = settings;
    let _telemetry = logs.start("comity-agent-devices")?;
    let shutdown = Shutdown::new();
    shutdown.listen_for_signals().map_err(|error| Failure::System(format!("cannot listen for signals: {error}")))?;
    device_reader::serve(DeviceReader { node, socket }, listen, shutdown.token())
        .await
        .map_err(|error| Failure::System(format!("cannot listen on {listen}: {error}; choose another --listen")))
}
