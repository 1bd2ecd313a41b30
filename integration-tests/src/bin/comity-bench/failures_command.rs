//! `comity-bench failures`: devices, nodes and donors that fail at random.

use anyhow::{Result, bail};
use comity_simulation::failures::Failures;

use super::arguments::report_args::{ReportArgs, completed};
use super::arguments::whole::whole;

#[derive(Debug, clap::Args)]
pub(crate) struct FailuresArgs {
    /// Failures and recoveries to simulate
    #[arg(long, default_value_t = 1_000, value_parser = whole::<u64>(1..=1_000_000))]
    events: u64,
    /// Seed of the random numbers
    #[arg(long, default_value_t = 1, value_parser = whole::<u64>(0..=u64::MAX))]
    seed: u64,
    #[command(flatten)]
    output: ReportArgs,
}

/// Simulates and prints.
///
/// # Errors
/// When the core refuses a command, or an invariant is violated.
pub(crate) fn run(arguments: &FailuresArgs) -> Result<()> {
    let report = completed(Failures { seed: arguments.seed, events: arguments.events }.run())?;
    arguments.output.print(&report, &report.table())?;
    if report.holds() { Ok(()) } else { bail!("an invariant of failures was violated; see the report") }
}
