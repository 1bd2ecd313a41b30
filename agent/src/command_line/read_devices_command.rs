//! `comity-agent read-devices`.

use std::net::SocketAddr;
use std::path::PathBuf;

use clap::Args;
use comity_agent_kubernetes::pod_resources::KUBELET_SOCKET;
use comity_runtime::telemetry::{self, OTLP_ENDPOINT_VARIABLE};
use comity_runtime::{LogFormat, Shutdown, TelemetryConfig};

use super::failure::Failure;
use super::settings::LOGS;
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
    /// text or json.
    #[arg(long, hide_short_help = true, help_heading = LOGS, env = "COMITY_AGENT_LOG_FORMAT", value_name = "FORMAT",
        default_value = "text")]
    log_format: LogFormat,
    /// As in info,comity_agent=debug.
    #[arg(long, hide_short_help = true, help_heading = LOGS, env = "COMITY_AGENT_LOG", value_name = "FILTER",
        default_value = telemetry::DEFAULT_FILTER)]
    log: String,
}

/// Runs until a signal.
pub(super) async fn read_devices(settings: ReadDevicesSettings) -> Result<(), Failure> {
    let ReadDevicesSettings { node, listen, socket, log_format, log } = settings;
    let _telemetry = telemetry::init(&TelemetryConfig {
        service: "comity-agent-devices".to_owned(),
        log_format,
        filter: log,
        otlp_endpoint: std::env::var(OTLP_ENDPOINT_VARIABLE).ok().filter(|value| !value.is_empty()),
    })?;
    let shutdown = Shutdown::new();
    shutdown.listen_for_signals().map_err(|error| Failure::System(format!("cannot listen for signals: {error}")))?;
    device_reader::serve(DeviceReader { node, socket }, listen, shutdown.token())
        .await
        .map_err(|error| Failure::System(format!("cannot listen on {listen}: {error}; choose another --listen")))
}
