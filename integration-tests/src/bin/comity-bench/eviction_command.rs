//! `comity-bench eviction`: how fast the evicted lose what they had.

use std::time::Duration;

use super::arguments::whole::whole;
use anyhow::{Result, ensure};
use comity_scenarios::eviction::{self, EvictionCase, EvictionConfig};

#[derive(Debug, clap::Args)]
pub(crate) struct EvictionArgs {
    /// Runs of each case
    #[arg(long, default_value_t = 20, value_parser = whole::<u32>(1..=1_000))]
    runs: u32,
    /// Cases, separated by commas, in the order in which each run tries them
    #[arg(
        long,
        value_delimiter = ',',
        default_value = "user-revoked,origin-evicted,donor-stopped,donor-killed,institution-suspended,donor-evicted"
    )]
    cases: Vec<EvictionCase>,
    /// How long an offline donor is away, in seconds
    #[arg(long, default_value_t = 10, value_name = "SECONDS", value_parser = whole::<u64>(1..=600))]
    offline_seconds: u64,
    /// Prints one JSON object instead of a table
    #[arg(long)]
    json: bool,
}

/// Runs and prints.
///
/// # Errors
/// When it cannot be run, or something takes longer than its limit.
pub(crate) async fn run(arguments: &EvictionArgs) -> Result<()> {
    let is_last = |case: &EvictionCase| *case == EvictionCase::DonorEvicted;
    ensure!(!arguments.cases.is_empty(), "--cases is empty: write --cases origin-evicted");
    ensure!(
        !arguments.cases.iter().rev().skip(1).any(is_last),
        "--cases: write donor-evicted last, once: an evicted donor keeps its namespaces until the next run"
    );
    let config = EvictionConfig {
        runs: arguments.runs,
        cases: arguments.cases.clone(),
        offline: Duration::from_secs(arguments.offline_seconds),
    };
    let report = eviction::run(&config, |progress| eprintln!("{progress}")).await?;
    if arguments.json {
        println!("{}", report.json());
    } else {
        println!("{report}");
    }
    let (slow, failures) = (report.over_limit(), report.failures.len());
    ensure!(slow == 0 && failures == 0, "{slow} times are over their limit, and {failures} cases were not measured");
    Ok(())
}
