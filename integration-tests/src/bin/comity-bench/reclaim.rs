//! Leases reclaimed at random.

use anyhow::{Result, anyhow, bail};
use comity_simulation::reclaim::Reclaims;

use super::whole::whole;

#[derive(Debug, clap::Args)]
pub(crate) struct ReclaimArgs {
    /// Leases that are being reclaimed before it ends
    #[arg(long, default_value_t = 1_000, value_parser = whole::<u64>(1..=100_000))]
    reclaims: u64,
    /// Seed of all that is drawn
    #[arg(long, default_value_t = 1, value_parser = whole::<u64>(0..=u64::MAX))]
    seed: u64,
    /// Prints one JSON object instead of a table
    #[arg(long)]
    json: bool,
}

/// Simulates and prints.
///
/// # Errors
/// When the core refuses what it should not, or what must hold did not.
pub(crate) fn run(arguments: &ReclaimArgs) -> Result<()> {
    let report = Reclaims { seed: arguments.seed, reclaims: arguments.reclaims }
        .run()
        .map_err(|refusal| anyhow!("the core refused what it should not have, so there are no figures: {refusal}"))?;
    if arguments.json {
        println!("{}", serde_json::to_string(&report)?);
    } else {
        print!("{}", report.table());
    }
    if report.holds() { Ok(()) } else { bail!("what must hold of leases that are being reclaimed did not") }
}
