//! `comity-bench batching`: placing queued requests together, and migrating leases for them.

use std::path::PathBuf;

use anyhow::{Result, bail};
use comity_simulation::batching::{BATCHING_HEAD, BatchingReport, BatchingTest, Strategy, StrategyReport, campus, row};
use comity_simulation::seeds::Seeds;
use comity_simulation::trace::Trace;

use super::arguments::report_args::completed;
use super::arguments::whole::whole;

#[derive(Debug, clap::Args)]
pub(crate) struct BatchingArgs {
    /// CSV of nodes with the columns sn, cpu_milli, memory_mib, gpu (their number) and model; without it a campus of 64
    /// GPUs
    #[arg(long, value_name = "CSV", requires = "pods")]
    nodes: Option<PathBuf>,
    /// CSV of pods with the columns cpu_milli, memory_mib, num_gpu, gpu_milli (of each GPU) and, where models matter,
    /// gpu_spec
    #[arg(long, value_name = "CSV", requires = "nodes")]
    pods: Option<PathBuf>,
    /// Seeds of the arrivals, first and last included
    #[arg(long, default_value = "42..51", value_name = "FIRST..LAST")]
    seeds: Seeds,
    /// Mean GPUs in demand, as a multiple of the capacity
    #[arg(long, default_value_t = 1.0, value_parser = super::place_command::inflate)]
    demand: f64,
    /// Minutes between arrivals; the longer, the more requests queue together
    #[arg(long, default_value_t = 10, value_parser = whole::<u64>(10..=1_440))]
    every_minutes: u64,
    /// Days to measure, after one day of warm-up
    #[arg(long, default_value_t = 7, value_parser = whole::<u64>(1..=60))]
    days: u64,
    /// Percent of the requests that allow migration (--preemptible --checkpoint), where leases move
    #[arg(long, default_value_t = 50, value_parser = whole::<u8>(0..=100))]
    preemptible_percent: u8,
    /// Prints one JSON object instead of a table
    #[arg(long)]
    json: bool,
}

/// Simulates and prints.
///
/// # Errors
/// When a file cannot be used, the core refuses a command, or moves exceed the broker's bound.
pub(crate) fn run(arguments: &BatchingArgs) -> Result<()> {
    let trace = match (&arguments.nodes, &arguments.pods) {
        (Some(nodes), Some(pods)) => Trace::read(nodes, pods)?,
        _ => campus(),
    };
    let test = BatchingTest {
        demand: arguments.demand,
        every: arguments.every_minutes * 60_000,
        days: arguments.days,
        preemptible_percent: arguments.preemptible_percent,
    };
    if !arguments.json {
        println!("{BATCHING_HEAD}");
    }
    let mut strategies = Vec::new();
    for strategy in Strategy::ALL {
        let mut seeds = Vec::new();
        for seed in arguments.seeds.iter() {
            let result = completed(test.run(&trace, strategy, seed))?;
            if !arguments.json {
                println!("{}", row(strategy, &seed.to_string(), &result.figures));
            }
            seeds.push(result);
        }
        let report = StrategyReport::new(strategy, seeds);
        if !arguments.json {
            println!("{}", row(strategy, "mean", &report.mean));
        }
        strategies.push(report);
    }
    let report = BatchingReport::new(&test, &trace, strategies);
    if arguments.json {
        println!("{}", serde_json::to_string(&report)?);
    } else {
        println!("{}", report.conclusion());
    }
    if report.bound.holds { Ok(()) } else { bail!("leases moved beyond what the broker promises, or stopped") }
}
