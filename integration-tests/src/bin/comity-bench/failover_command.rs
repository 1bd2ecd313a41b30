//! `comity-bench failover`: failover, compared with etcd.

use super::arguments::whole::whole;
use anyhow::{Result, ensure};
use comity_scenarios::failover;

#[derive(Debug, clap::Args)]
pub(crate) struct FailoverArgs {
    /// Kills of each store's leader
    #[arg(long, default_value_t = 30, value_parser = whole::<u32>(1..=50))]
    kills: u32,
    /// Prints one JSON object instead of a table
    #[arg(long)]
    json: bool,
}

/// Runs and prints.
///
/// # Errors
/// When it cannot be run, or a write is lost.
pub(crate) async fn run(arguments: &FailoverArgs) -> Result<()> {
    let report = failover::run(arguments.kills, |progress| eprintln!("{progress}")).await?;
    if arguments.json {
        eprintln!("{report}");
        println!("{}", report.json());
    } else {
        println!("{report}");
    }
    ensure!(report.lost() == 0, "{} acknowledged writes are lost", report.lost());
    Ok(())
}
