//! `comity-bench bound`: an upper bound on the GPU capacity that any policy allocates.

use std::io::IsTerminal as _;

use anyhow::Result;
use comity_simulation::bound::bound;

use super::arguments::workload::WorkloadArgs;

#[derive(Debug, clap::Args)]
pub(crate) struct BoundArgs {
    #[command(flatten)]
    workload: WorkloadArgs,
    /// Demand between two decisions, in percent of the capacity; smaller is slower and closer to single tasks
    #[arg(long, default_value_t = 2.0, value_parser = step)]
    step_percent: f64,
    /// Prints one JSON object instead of a table
    #[arg(long)]
    json: bool,
}

fn step(text: &str) -> Result<f64, String> {
    let value = text.parse().ok().filter(|value| (0.1..=50.0).contains(value));
    value.ok_or_else(|| "write a number from 0.1 to 50, such as 2".to_owned())
}

/// Computes and prints.
///
/// # Errors
/// When a file cannot be read, or the linear programme has no solution.
pub(crate) fn run(arguments: &BoundArgs) -> Result<()> {
    let trace = arguments.workload.read()?;
    let watched = !arguments.json && std::io::stderr().is_terminal();
    let bound = bound(&trace, arguments.step_percent, |demand| {
        if watched {
            eprint!("\r{demand:>6.1} % demand");
        }
    })?;
    if arguments.json {
        println!("{}", serde_json::to_string(&bound)?);
        return Ok(());
    }
    if watched {
        eprintln!();
    }
    println!("demand, %  work-conserving, %  free choice, %");
    for mark in &bound.marks {
        let (demand, conserving, free) = (mark.demand_percent, mark.work_conserving_percent, mark.free_choice_percent);
        println!("{demand:>9.0}{conserving:>20.2}{free:>16.2}");
    }
    Ok(())
}
