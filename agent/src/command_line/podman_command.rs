//! `comity-agent podman`.

use std::ffi::OsString;
use std::os::unix::process::CommandExt as _;

use clap::Args;
use comity_agent_model::settings::{InvalidSetting, InvalidSettings};

use super::failure::Failure;
use super::settings::Settings;
use crate::config::ConfigError;

/// `comity-agent podman`.
#[derive(Debug, Args)]
pub(super) struct PodmanArgs {
    #[command(flatten)]
    settings: Settings,
    /// Arguments of podman.
    #[arg(last = true, required = true, value_name = "ARGUMENTS")]
    arguments: Vec<OsString>,
}

/// Becomes podman, on the store of the guests' images and containers.
pub(super) fn run(args: PodmanArgs) -> Result<(), Failure> {
    let config = args.settings.resolve()?;
    let Some(site) = &config.site else {
        let reason = "guests' containers run only with it; see docs/host.md";
        return Err(ConfigError::from(InvalidSettings::from(InvalidSetting::new("site", "", reason))).into());
    };
    let error = comity_agent_site::podman_command(site, &config.state_dir).args(args.arguments).exec();
    Err(Failure::System(format!("cannot run {}: {error}", site.podman.display())))
}
