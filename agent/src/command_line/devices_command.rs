//! `comity-agent devices`.

use clap::Args;

use super::failure::Failure;
use super::output_format::OutputFormat;
use super::settings::Settings;
use crate::devices::ReaderCounts;
use crate::services::local_api::{SOCKET, fetch_devices};

/// `comity-agent devices`.
#[derive(Debug, Args)]
pub(super) struct DevicesArgs {
    /// Output format.
    #[arg(short, long, value_enum, default_value_t, value_name = "FORMAT", hide_short_help = true)]
    output: OutputFormat,
    #[command(flatten)]
    settings: Settings,
}

/// Prints the devices that the running agent knows, with their holders.
pub(super) async fn devices(args: DevicesArgs) -> Result<(), Failure> {
    let config = args.settings.resolve()?;
    let table = fetch_devices(&config.state_dir.join(SOCKET)).await;
    let table = table.map_err(|error| Failure::System(error.to_string()))?;
    if config.usage.devices.is_none() {
        eprintln!(
            "comity-agent: no device readers are configured (usage.devices): only devices of DRA drivers are known"
        );
    } else {
        let ReaderCounts { read, failed } = table.readers();
        if failed > 0 || read == 0 {
            eprintln!(
                "comity-agent: device readers that answer: {read}, that do not: {failed}; devices of other nodes are not \
                 known (comity-agent doctor has a remedy)"
            );
        }
    }
    args.output.print(&table.text(), &table);
    Ok(())
}
