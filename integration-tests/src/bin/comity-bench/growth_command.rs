//! `comity-bench growth`: the largest federation that one broker holds.

use std::io::IsTerminal as _;
use std::time::Duration;

use anyhow::Result;
use comity_scenarios::growth::{self, GrowthConfig, MAX_LEASES, MAX_NODES_PER_CLUSTER};

use super::arguments::whole::whole;

#[derive(Debug, clap::Args)]
pub(crate) struct GrowthArgs {
    /// Total GPUs of all donors, eight per node
    #[arg(long, default_value_t = 1_000_000, value_parser = whole::<u32>(8..=10_000_000))]
    gpus: u32,
    /// Active leases to reach, from a quarter of a GPU to a whole node each; needs five GPUs per lease
    #[arg(long, default_value_t = 100_000, value_parser = whole::<u32>(1..=MAX_LEASES))]
    leases: u32,
    /// Nodes of each donor; the last one has the rest
    #[arg(long, default_value_t = 5_000, value_name = "N", value_parser = whole::<u32>(1..=MAX_NODES_PER_CLUSTER))]
    nodes_per_cluster: u32,
    /// Log entries between two snapshots: the broker's --snapshot-every
    #[arg(long, default_value_t = 10_000, value_name = "N", value_parser = whole::<u64>(100..=1_000_000))]
    snapshot_every: u64,
    /// Prints one JSON object instead of a table
    #[arg(long)]
    json: bool,
}

/// Measures and prints.
///
/// # Errors
/// When the sizes contradict each other, a process does not start, or a lease is missing at the end.
pub(crate) async fn run(arguments: &GrowthArgs) -> Result<()> {
    let watched = !arguments.json && std::io::stderr().is_terminal();
    let config = GrowthConfig {
        gpus: arguments.gpus,
        leases: arguments.leases,
        nodes_per_cluster: arguments.nodes_per_cluster,
        snapshot_every: arguments.snapshot_every,
        rest: Duration::from_secs(10),
    };
    let report = growth::run(&config, |doing| {
        if watched {
            eprint!("\r\x1b[K{doing}");
        }
    })
    .await?;
    if watched {
        eprint!("\r\x1b[K");
    }
    if arguments.json {
        println!("{}", report.json());
    } else {
        print!("{report}");
    }
    Ok(())
}
