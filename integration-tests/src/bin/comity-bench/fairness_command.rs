//! `comity-bench fairness`: shares and waiting times over a simulated month.

use std::io::IsTerminal as _;
use std::path::PathBuf;

use anyhow::{Context as _, Result};
use comity_simulation::month::{ARRANGEMENTS, Month, svg};

use super::arguments::report_args::completed;
use super::arguments::whole::whole;

#[derive(Debug, clap::Args)]
pub(crate) struct FairnessArgs {
    /// Total days; every tenant is backlogged in the last third
    #[arg(long, default_value_t = 30, value_parser = whole::<u64>(6..=366))]
    days: u64,
    /// Months to simulate, each with another assignment of lent nodes to institutions; 60 are all assignments, which
    /// separates the value of lending from that of the time zone
    #[arg(long, default_value_t = 1, value_parser = whole::<u8>(1..=ARRANGEMENTS))]
    arrangements: u8,
    /// Seed of the random numbers
    #[arg(long, default_value_t = 7, value_parser = whole::<u64>(0..=u64::MAX))]
    seed: u64,
    /// Writes an SVG of the GPUs that each institution held, by hour
    #[arg(long, value_name = "SVG")]
    plot: Option<PathBuf>,
    /// Prints one JSON object instead of tables
    #[arg(long)]
    json: bool,
}

/// Simulates and prints.
///
/// # Errors
/// When the core refuses a command, or the plot cannot be written.
pub(crate) fn run(arguments: &FairnessArgs) -> Result<()> {
    let backlog_days = arguments.days / 3;
    let month = Month { seed: arguments.seed, peak_days: arguments.days - backlog_days, backlog_days };
    let watched = !arguments.json && std::io::stderr().is_terminal();
    let report = completed(month.run_arranged(arguments.arrangements, |done| {
        if watched {
            eprint!("\r\x1b[K{done} of {} months", arguments.arrangements);
        }
    }))?;
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
