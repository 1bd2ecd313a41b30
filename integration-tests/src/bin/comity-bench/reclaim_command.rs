//! `comity-bench reclaim`: leases reclaimed at random.

use anyhow::{Result, bail};
use comity_simulation::reclaim::Reclaims;

use super::arguments::report_args::{ReportArgs, completed};
use super::arguments::whole::whole;

#[derive(Debug, clap::Args)]
pub(crate) struct ReclaimArgs {
    /// Leases to reclaim before the simulation ends
    #[arg(long, default_value_t = 1_000, value_parser = whole::<u64>(1..=100_000))]
    reclaims: u64,
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
pub(crate) fn run(arguments: &ReclaimArgs) -> Result<()> {
    let report = completed(Reclaims { seed: arguments.seed, reclaims: arguments.reclaims }.run())?;
    arguments.output.print(&report, &report.table())?;
    if report.holds() { Ok(()) } else { bail!("an invariant of reclaims was violated; see the report") }
}
