//! `comity-bench chaos`: a federation, or its brokers alone, under random faults.

use std::time::Duration;

use super::arguments::whole::whole;
use anyhow::{Result, bail};
use comity_scenarios::brokers::broker_faults::BrokerFaultKind;
use comity_scenarios::brokers::{self, BrokersConfig};
use comity_scenarios::chaos::federation_faults::Shape;
use comity_scenarios::chaos::{self, ChaosConfig};
use comity_scenarios::now_ms;

/// Approximate memory of one control plane with simulated nodes.
const CONTROL_PLANE_MIB: usize = 450;
/// Memory reserved for brokers, agents and everything else.
const OTHERS_MIB: usize = 4_096;

#[derive(Debug, clap::Args)]
pub(crate) struct ChaosArgs {
    /// Tests the brokers alone, with faults of networks, clocks and disks, and member changes; root on Linux
    #[arg(long, conflicts_with_all = ["origins", "donors", "leases", "control_planes"])]
    brokers: bool,
    /// With --brokers: kinds of faults to leave out, separated by commas
    #[arg(long, value_name = "KINDS", value_delimiter = ',', requires = "brokers")]
    without: Vec<BrokerFaultKind>,
    /// Clusters that borrow
    #[arg(long, default_value_t = 10, value_parser = whole::<u32>(1..=50))]
    origins: u32,
    /// Clusters that lend 16 GPUs each; the last one shares each GPU four ways
    #[arg(long, default_value_t = 5, value_parser = whole::<u32>(1..=20))]
    donors: u32,
    /// Concurrent leases to keep in demand
    #[arg(long, default_value_t = 50, value_parser = whole::<u32>(1..=500))]
    leases: u32,
    /// Minutes of faults
    #[arg(long, default_value_t = 15, value_parser = whole::<u32>(1..=1_440))]
    minutes: u32,
    /// Repeats the faults of an earlier run [default: the time]
    #[arg(long, value_parser = whole::<u64>(0..=u64::MAX))]
    seed: Option<u64>,
    /// Clusters with a real API server: the donors, then origins [default: as many as the memory allows]
    #[arg(long, value_name = "N", value_parser = whole::<u32>(0..=u32::MAX))]
    control_planes: Option<u32>,
    /// Prints one JSON object instead of a table
    #[arg(long)]
    json: bool,
}

/// Runs and prints.
///
/// # Errors
/// When it cannot be run, or when something was violated.
pub(crate) async fn run(arguments: &ChaosArgs) -> Result<()> {
    if arguments.brokers {
        return run_brokers(arguments).await;
    }
    let (origins, donors) = (arguments.origins as usize, arguments.donors as usize);
    let control_planes = match arguments.control_planes {
        Some(wanted) => wanted as usize,
        None => affordable_control_planes(&std::fs::read_to_string("/proc/meminfo")?, donors, donors + origins),
    };
    let report = chaos::run(ChaosConfig {
        shape: Shape { donors, origins, control_planes },
        leases: arguments.leases as usize,
        length: Duration::from_secs(u64::from(arguments.minutes) * 60),
        seed: arguments.seed.unwrap_or_else(now_ms),
    })
    .await?;
    if arguments.json {
        println!("{}", report.figures);
    } else {
        println!("{report}");
    }
    if !report.violations.is_empty() {
        bail!("seed {}: {} violations:\n{}", report.seed, report.violations.len(), report.violations.join("\n"));
    }
    Ok(())
}

async fn run_brokers(arguments: &ChaosArgs) -> Result<()> {
    let report = brokers::run(&BrokersConfig {
        length: Duration::from_secs(u64::from(arguments.minutes) * 60),
        seed: arguments.seed.unwrap_or_else(now_ms),
        without: arguments.without.clone(),
    })
    .await?;
    if arguments.json {
        println!("{}", report.json());
    } else {
        println!("{report}");
    }
    if !report.is_good() {
        let violations = report.violations();
        bail!("seed {}: {} violations:\n{}", report.seed, violations.len(), violations.join("\n"));
    }
    Ok(())
}

/// Number of control planes that the available memory allows, from the text of /proc/meminfo.
fn affordable_control_planes(meminfo: &str, least: usize, most: usize) -> usize {
    let available = meminfo
        .lines()
        .find_map(|line| line.strip_prefix("MemAvailable:")?.trim().strip_suffix(" kB")?.parse::<usize>().ok());
    let mib = available.unwrap_or(0) / 1_024;
    (mib.saturating_sub(OTHERS_MIB) / CONTROL_PLANE_MIB).clamp(least, most)
}

#[cfg(test)]
mod tests {
    use super::affordable_control_planes;

    #[test]
    fn memory_decides_and_each_donor_has_one() {
        let meminfo = |gib: usize| format!("MemTotal: 1 kB\nMemAvailable:   {} kB\n", gib << 20);
        assert_eq!(affordable_control_planes(&meminfo(2), 5, 15), 5);
        assert_eq!(affordable_control_planes(&meminfo(8), 5, 15), 9);
        assert_eq!(affordable_control_planes(&meminfo(64), 5, 15), 15);
        assert_eq!(affordable_control_planes("", 5, 15), 5);
    }
}
