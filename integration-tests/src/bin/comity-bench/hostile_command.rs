//! `comity-bench hostile`: a stolen broker against two agents.

use std::time::Duration;

use anyhow::{Result, bail};
use comity_scenarios::hostile::{self, HostileConfig, Trust};
use comity_scenarios::now_ms;

use super::arguments::whole::whole;

#[derive(Debug, clap::Args)]
pub(crate) struct HostileArgs {
    /// Minutes of attacks
    #[arg(long, default_value_t = 10, value_parser = whole::<u32>(1..=1_440))]
    minutes: u32,
    /// Repeats the attacks of an earlier run [default: the time]
    #[arg(long, value_parser = whole::<u64>(0..=u64::MAX))]
    seed: Option<u64>,
    /// The agents pin no institution's key, and trust the identity key that they see first
    #[arg(long)]
    first_use: bool,
    /// The agents have API servers, on which each has the rights of its ServiceAccount; without, they are hosts
    #[arg(long)]
    kubernetes: bool,
    /// Prints one JSON object instead of a table
    #[arg(long)]
    json: bool,
}

/// Runs and prints.
///
/// # Errors
/// When it cannot be run, or when something was violated.
pub(crate) async fn run(arguments: &HostileArgs) -> Result<()> {
    let report = hostile::run(HostileConfig {
        length: Duration::from_secs(u64::from(arguments.minutes) * 60),
        seed: arguments.seed.unwrap_or_else(now_ms),
        trust: if arguments.first_use { Trust::FirstUse } else { Trust::Pinned },
        kubernetes: arguments.kubernetes,
    })
    .await?;
    if arguments.json {
        println!("{}", report.json());
    } else {
        println!("{report}");
    }
    if !report.violations.is_empty() {
        bail!("seed {}: {} violations:\n{}", report.seed, report.violations.len(), report.violations.join("\n"));
    }
    Ok(())
}
