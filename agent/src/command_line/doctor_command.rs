//! `comity-agent doctor`.

use clap::Args;
use comity_runtime::SystemClock;
use comity_runtime::checks::{CheckList, Outcome};
use serde::Serialize;

use super::failure::Failure;
use super::output_format::OutputFormat;
use super::settings::Settings;
use crate::preflight::check_agent_host;

/// `comity-agent doctor`.
#[derive(Debug, Args)]
pub(super) struct DoctorArgs {
    /// Output format.
    #[arg(short, long, value_enum, default_value_t, value_name = "FORMAT", hide_short_help = true)]
    output: OutputFormat,
    #[command(flatten)]
    settings: Settings,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Diagnosis<'a> {
    checks: &'a CheckList,
}

pub(super) async fn doctor(args: DoctorArgs) -> Result<(), Failure> {
    let config = args.settings.resolve()?;
    let checks = check_agent_host(&config, &SystemClock::new()).await;
    args.output.print(&checks.text(), &Diagnosis { checks: &checks });
    if checks.has_failed() {
        return Err(Failure::Unhealthy { failed: checks.count(Outcome::Failed) });
    }
    Ok(())
}
