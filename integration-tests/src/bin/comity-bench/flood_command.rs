//! `comity-bench flood`: one caller's floods, and the requests that another submits meanwhile.

use std::time::Duration;

use super::arguments::whole::whole;
use anyhow::{Result, ensure};
use comity_scenarios::flood::{self, FloodConfig, FloodKind};

#[derive(Debug, clap::Args)]
pub(crate) struct FloodArgs {
    /// Floods, separated by commas; one row each
    #[arg(long, value_delimiter = ',', default_value = "quotes,submits,cancels,connections,watches,reports,lists")]
    floods: Vec<FloodKind>,
    /// Nodes of eight GPUs that each of four donors offers
    #[arg(long, default_value_t = 500, value_name = "N", value_parser = whole::<usize>(1..=10_000))]
    nodes_per_donor: usize,
    /// Seconds per measurement: without the flood, and during it
    #[arg(long, default_value_t = 10, value_parser = whole::<u64>(1..=600))]
    seconds: u64,
    /// Prints one JSON object instead of a table
    #[arg(long)]
    json: bool,
}

/// Runs and prints.
///
/// # Errors
/// When it cannot be run.
pub(crate) async fn run(arguments: &FloodArgs) -> Result<()> {
    ensure!(!arguments.floods.is_empty(), "--floods is empty: write --floods quotes");
    let config = FloodConfig {
        floods: arguments.floods.clone(),
        nodes_per_donor: arguments.nodes_per_donor,
        length: Duration::from_secs(arguments.seconds),
    };
    let report = flood::run(&config, |progress| eprintln!("{progress}")).await?;
    if arguments.json {
        println!("{}", report.json());
    } else {
        println!("{report}");
    }
    Ok(())
}
