//! `comity-bench durable`: durable writes, compared with etcd.

use std::time::Duration;

use super::arguments::whole::whole;
use anyhow::{Result, ensure};
use comity_scenarios::durable::{self, DurableConfig};

/// Eight clients of each of eight users: a broker lets one user have as many commands under way.
const MOST_CLIENTS: usize = 64;

#[derive(Debug, clap::Args)]
pub(crate) struct DurableArgs {
    /// Numbers of concurrent clients, separated by commas; one row each
    #[arg(long, value_delimiter = ',', default_value = "1,16,64", value_parser = whole::<usize>(1..=MOST_CLIENTS))]
    clients: Vec<usize>,
    /// Measurements of each store per row
    #[arg(long, default_value_t = 3, value_parser = whole::<usize>(1..=99))]
    pairs: usize,
    /// Seconds per measurement
    #[arg(long, default_value_t = 5, value_parser = whole::<u64>(1..=600))]
    seconds: u64,
    /// Prints one JSON object instead of a table
    #[arg(long)]
    json: bool,
}

/// Runs and prints.
///
/// # Errors
/// When it cannot be run.
pub(crate) async fn run(arguments: &DurableArgs) -> Result<()> {
    ensure!(!arguments.clients.is_empty(), "--clients is empty: write --clients 1,16,64");
    let config = DurableConfig {
        clients: arguments.clients.clone(),
        pairs: arguments.pairs,
        length: Duration::from_secs(arguments.seconds),
    };
    let report = durable::run(&config, |progress| eprintln!("{progress}")).await?;
    if arguments.json {
        println!("{}", report.json());
    } else {
        println!("{report}");
    }
    Ok(())
}
