//! Shares and waits in a simulated month.

use std::io::IsTerminal as _;
use std::path::PathBuf;

use anyhow::{Context as _, Result, anyhow};
use comity_simulation::month::{ARRANGEMENTS, Month, svg};

use super::whole::whole;

#[derive(Debug, clap::Args)]
pub(crate) struct FairnessArgs {
    /// Days in all; the last third of them with a backlog
    #[arg(long, default_value_t = 30, value_parser = whole::<u64>(6..=366))]
    days: u64,
    /// Months with what institutions lend of dealt to them in other ways, the first as it is: 60 are all ways, which
    /// tells what lending is worth whatever side of the world one is on
    #[arg(long, default_value_t = 1, value_parser = whole::<u8>(1..=ARRANGEMENTS))]
    arrangements: u8,
    /// Seed of all that is drawn
    #[arg(long, default_value_t = 7, value_parser = whole::<u64>(0..=u64::MAX))]
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
    let watched = !arguments.json && std::io::stderr().is_terminal();
    let report = month
        .run_arranged(arguments.arrangements, |done| {
            if watched {
                eprint!("\r\x1b[K{done} of {} months", arguments.arrangements);
            }
        })
        .map_err(|refusal| anyhow!("the core refused what it should not have, so there are no figures: {refusal}"))?;
    if watched && arguments.arrangements > 1 {
        eprint!("\r\x1b[K");
    }
    if let Some(path) = &arguments.plot {
        std::fs::write(path, svg(&report.month))
            .with_context(|| format!("cannot write the plot to {}", path.display()))?;
    }
    if arguments.json {
        println!("{}", serde_json::to_string(&report)?);
    } else {
        print!("{}", report.table());
    }
    Ok(())
}
