//! Shares and waits in a simulated month.

use std::path::PathBuf;

use anyhow::{Context as _, Result, anyhow};
use comity_simulation::month::{Month, svg};

#[derive(Debug, clap::Args)]
pub(crate) struct FairnessArgs {
    /// Days in all; the last third of them with a backlog
    #[arg(long, default_value_t = 30, value_parser = clap::value_parser!(u64).range(6..=366))]
    days: u64,
    /// Seed of all that is drawn
    #[arg(long, default_value_t = 7)]
    seed: u64,
    /// Writes who held how much, hour by hour, as an SVG
    #[arg(long, value_name = "SVG")]
    plot: Option<PathBuf>,
    /// Prints one JSON object instead of tables
    #[arg(long)]
    json: bool,
}

/// Simulates and prints.
///
/// # Errors
/// When the core refuses what it should not, or the plot cannot be written.
pub(crate) fn run(arguments: &FairnessArgs) -> Result<()> {
    let backlog_days = arguments.days / 3;
    let month = Month { seed: arguments.seed, peak_days: arguments.days - backlog_days, backlog_days };
    let report = month
        .run()
        .map_err(|refusal| anyhow!("the core refused what it should not have, so there are no figures: {refusal}"))?;
    if let Some(path) = &arguments.plot {
        std::fs::write(path, svg(&report)).with_context(|| format!("cannot write the plot to {}", path.display()))?;
    }
    if arguments.json {
        println!("{}", serde_json::to_string(&report)?);
    } else {
        print!("{}", report.table());
    }
    Ok(())
}
