//! What placing together and moving aside bring.

use std::path::PathBuf;

use anyhow::{Result, anyhow, bail};
use comity_simulation::batching::{BatchingReport, BatchingTest, HEAD, Way, WayReport, campus, row};
use comity_simulation::seeds::Seeds;
use comity_simulation::trace::Trace;

use super::whole::whole;

#[derive(Debug, clap::Args)]
pub(crate) struct BatchingArgs {
    /// CSV of nodes with the columns sn, cpu_milli, memory_mib, gpu (how many) and model; without it a campus of 64
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
    /// GPUs asked for at a time, in parts of what there is
    #[arg(long, default_value_t = 1.0, value_parser = super::place::inflate)]
    demand: f64,
    /// Minutes from one time at which requests come to the next; the more, the more of them wait together
    #[arg(long, default_value_t = 10, value_parser = whole::<u64>(10..=1_440))]
    every_minutes: u64,
    /// Days that are counted; one more passes before
    #[arg(long, default_value_t = 7, value_parser = whole::<u64>(1..=60))]
    days: u64,
    /// Requests of a hundred that say, where leases move, that theirs may (--preemptible --checkpoint)
    #[arg(long, default_value_t = 50, value_parser = whole::<u8>(0..=100))]
    preemptible_percent: u8,
    /// Prints one JSON object instead of a table
    #[arg(long)]
    json: bool,
}

/// Simulates and prints.
///
/// # Errors
/// When a file cannot be used, the core refuses what it should not, or leases moved beyond what the broker promises.
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
        println!("{HEAD}");
    }
    let mut ways = Vec::new();
    for way in Way::ALL {
        let mut seeds = Vec::new();
        for seed in arguments.seeds.iter() {
            let result = test.run(&trace, way, seed).map_err(|refusal| {
                anyhow!("the core refused what it should not have, so there are no figures: {refusal}")
            })?;
            if !arguments.json {
                println!("{}", row(way, &seed.to_string(), &result.figures));
            }
            seeds.push(result);
        }
        let report = WayReport::new(way, seeds);
        if !arguments.json {
            println!("{}", row(way, "mean", &report.mean));
        }
        ways.push(report);
    }
    let report = BatchingReport::new(&test, &trace, ways);
    if arguments.json {
        println!("{}", serde_json::to_string(&report)?);
    } else {
        println!("{}", report.conclusion());
    }
    if report.bound.holds { Ok(()) } else { bail!("leases moved beyond what the broker promises, or stopped") }
}
