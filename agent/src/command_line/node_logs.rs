//! Log flags of the programs that run on nodes and read no configuration file.

use clap::Args;
use comity_runtime::telemetry::{self, OTLP_ENDPOINT_VARIABLE, TelemetryGuard};
use comity_runtime::{LogFormat, TelemetryConfig};

use super::failure::Failure;
use super::settings::LOGS;

#[derive(Debug, Args)]
pub(super) struct NodeLogs {
    /// text or json.
    #[arg(long, hide_short_help = true, help_heading = LOGS, env = "COMITY_AGENT_LOG_FORMAT", value_name = "FORMAT",
        default_value = "text")]
    log_format: LogFormat,
    /// As in info,comity_agent=debug.
    #[arg(long, hide_short_help = true, help_heading = LOGS, env = "COMITY_AGENT_LOG", value_name = "FILTER",
        default_value = telemetry::DEFAULT_FILTER)]
    log: String,
}

impl NodeLogs {
    /// Starts logs and traces of the service, until the result is dropped.
    pub(super) fn start(self, service: &str) -> Result<TelemetryGuard, Failure> {
        Ok(telemetry::init(&TelemetryConfig {
            service: service.to_owned(),
            log_format: self.log_format,
            filter: self.log,
            otlp_endpoint: std::env::var(OTLP_ENDPOINT_VARIABLE).ok().filter(|value| !value.is_empty()),
        })?)
    }
}
