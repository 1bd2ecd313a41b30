//! `comity-bench reclaim`: leases reclaimed at random.

use anyhow::{Result, anyhow, bail};
use comity_simulation::reclaim::Reclaims;

use super::whole::whole;

#[derive(Debug, clap::Args)]
pub(crate) struct ReclaimArgs {
    /// Leases to reclaim before the simulation ends
    #[arg(long, default_value_t = 1_000, value_parser = whole::<u64>(1..=100_000))]
    reclaims: u64,
    /// Seed of the random numbers
    #[arg(long, default_value_t = 1, value_parser = whole::<u64>(0..=u64::MAX))]
    seed: u64,
    /// Prints one JSON object instead of a table
    #[arg(long)]
    json: bool,
}

/// Simulates and prints.
///
/// # Errors
/// When the core refuses a command, or an invariant is violated.
pub(crate) fn run(arguments: &ReclaimArgs) -> Result<()> {
    let report = Reclaims { seed: arguments.seed, reclaims: arguments.reclaims }.run().map_err(|refusal| {
        anyhow!("the core refused a command of the simulation, so there are no results: {refusal}")
    })?;
    if arguments.json {
        println!("{}", serde_json::to_string(&report)?);
    } else {
        print!("{}", report.table());
    }
    if report.holds() { Ok(()) } else { bail!("an invariant of reclaims was violated; see the report") }
}
