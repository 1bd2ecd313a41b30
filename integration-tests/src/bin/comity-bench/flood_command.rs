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
    /// Nothing else keeps the cores busy, and the flood's threads have the brokers' priority
    #[arg(long)]
    idle_baseline: bool,
    /// How many times as long the slowest hundredth of submissions may take during a flood
    #[arg(long, default_value_t = 2.0, value_name = "RATIO", value_parser = ratio)]
    limit: f64,
    /// Prints one JSON object instead of a table
    #[arg(long)]
    json: bool,
}

/// Runs and prints.
///
/// # Errors
/// When it cannot be run, or a flood delays submissions by more than the limit.
pub(crate) async fn run(arguments: &FloodArgs) -> Result<()> {
    ensure!(!arguments.floods.is_empty(), "--floods is empty: write --floods quotes");
    let config = FloodConfig {
        floods: arguments.floods.clone(),
        nodes_per_donor: arguments.nodes_per_donor,
        length: Duration::from_secs(arguments.seconds),
        has_idle_baseline: arguments.idle_baseline,
    };
    let report = flood::run(&config, |progress| eprintln!("{progress}")).await?;
    if arguments.json {
        println!("{}", report.json());
    } else {
        println!("{report}");
    }
    let over: Vec<String> = report.over_limit(arguments.limit).iter().map(ToString::to_string).collect();
    ensure!(
        over.is_empty(),
        "the p99 ratio of {} is above {}: see the table; --limit changes the limit",
        over.join(", "),
        arguments.limit
    );
    Ok(())
}

/// Parses a ratio from 1 to 1,000.
fn ratio(text: &str) -> Result<f64, String> {
    let parsed = text.trim().parse::<f64>().ok().filter(|ratio| (1.0..=1_000.0).contains(ratio));
    parsed.ok_or_else(|| "write a number from 1 to 1000".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_is_a_number_from_one_to_a_thousand() {
        assert_eq!([ratio("1"), ratio(" 2.5 ")], [Ok(1.0), Ok(2.5)]);
        for bad in ["0.9", "1001", "NaN", "inf", "", "twice"] {
            assert!(ratio(bad).is_err(), "{bad}");
        }
    }
}
